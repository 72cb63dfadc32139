"""Where the answer blocks of a turn stand: whoever grades, counts or shows them asks here. Pure, linear in the text.

Invariant: a block belongs to one turn. A tag is exact, a block needs both of its tags in the same turn, and a second
`<answer>` before the `</answer>` starts it anew.
"""

import re

ANSWER_OPEN, ANSWER_CLOSE = "<answer>", "</answer>"
_TAG = re.compile(f"{ANSWER_OPEN}|{ANSWER_CLOSE}")


def answer_blocks(turn_text: str) -> list[tuple[int, int]]:
    """Start and end of the content of each closed block, without its tags."""
    blocks, start = list[tuple[int, int]](), None
    for tag in _TAG.finditer(turn_text):
        if tag[0] == ANSWER_OPEN:
            start = tag.end()
        elif start is not None:
            blocks.append((start, tag.start()))
            start = None
    return blocks
