"""Python's search for reference cycles, made rare in a process that is ours alone.

It looks through every container that is alive, and libraries such as PyTorch leave a million of them. Thousands of
turns and rollouts a second make it look many times a second, and find nothing: it took two fifths of an engine's time.
"""

import gc

MIN_NEW_CONTAINERS = 50_000
"""Between two looks at the youngest; Python's own number is 700."""
NUM_LOOKS_BETWEEN_OLDER = 20


def look_rarely_for_cycles() -> None:
    """Call it when what the process needs for good is loaded: that is never looked at again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(MIN_NEW_CONTAINERS, NUM_LOOKS_BETWEEN_OLDER, NUM_LOOKS_BETWEEN_OLDER)


def collect_garbage_if_rare() -> None:
    """For whoever has large things, such as tensors, that a cycle might hold on to: at a moment of his own choice."""
    if gc.get_freeze_count():
        gc.collect()
