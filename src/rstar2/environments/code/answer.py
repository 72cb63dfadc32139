"""Finds the program in the model's own text, and how clean its form is. Pure, linear in the text.

The program is the last fenced code block of the last `<answer>` block, or all of that block if it has no fence. Without
an answer block it is the last code block of the last turn.
"""

import re
from collections.abc import Sequence

from rstar2.records import answer_blocks

_FENCE = re.compile(r"^[ \t]*```[ \t]*(?P<language>[A-Za-z0-9_+-]*)[ \t]*\r?$", re.MULTILINE)


def code_blocks(text: str) -> list[str]:
    """The contents of fenced blocks, in any language. The end of the text closes an open fence."""
    blocks, start = list[str](), None
    for fence in _FENCE.finditer(text):
        if start is None:
            start = fence.end()
        elif not fence["language"]:
            blocks.append(text[start : fence.start()])
            start = None
    if start is not None:
        blocks.append(text[start:])
    return [block.strip("\r\n") for block in blocks]


def extract_program(turns: Sequence[str]) -> str | None:
    """The program; None if there is none, or it is empty."""
    answers = [turn[slice(*block)] for turn in turns for block in answer_blocks(turn)]
    last_turn = turns[-1] if turns else ""
    programs = _programs(answers[-1]) if answers else code_blocks(last_turn)
    return programs[-1] if programs and programs[-1].strip() else None


def format_penalty(turns: Sequence[str]) -> float:
    """`p_format`: 0 with exactly one program in answer blocks, 1 with none, else the extra programs per turn."""
    answers = [turn[slice(*block)] for turn in turns for block in answer_blocks(turn)]
    num_programs = sum(bool(program.strip()) for answer in answers for program in _programs(answer))
    return min(1.0, (num_programs - 1) / len(turns)) if num_programs else 1.0


def _programs(answer: str) -> list[str]:
    return code_blocks(answer) or [answer.strip("\r\n")]
