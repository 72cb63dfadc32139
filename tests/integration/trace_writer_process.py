"""A program that appends traces as fast as it can and reports each one after `append` returned, until it is killed.

usage: trace_writer_process.py FILE FIRST_INDEX
"""

import os
import random
import sys
from pathlib import Path

from rstar2.records import Outcome, StopReason, Trace, Turn
from rstar2.records.record_file import RecordWriter

BIG_TEXT = "the quick brown fox " * 400_000
"""8 MB: copying it into the page cache takes long enough for a kill to land inside the write."""


def make_trace(index: int) -> Trace:
    """The same trace for the same index, in whichever process."""
    draw = random.Random(index)
    num_tokens = draw.choice([0, 1, 20, 200])
    text = BIG_TEXT[: draw.choice([0, 10, 5_000, 50_000, len(BIG_TEXT)])]
    turn = Turn(
        token_ids=tuple(draw.randrange(150_000) for _ in range(num_tokens)),
        log_probs=tuple(-draw.expovariate(1.0) for _ in range(num_tokens)),
        text=text,
        stop_reason=StopReason.END_OF_TURN,
    )
    return Trace(f"trace-{index}", "p", (1, 2, 3), "\ud83d ∑", (turn,), Outcome.ANSWERED, sample_index=index)


def main(path: Path, index: int) -> None:
    os.write(1, b"ready\n")
    with RecordWriter[Trace](path) as writer:
        while True:
            writer.append(make_trace(index))
            os.write(1, b"%d\n" % index)
            index += 1


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
