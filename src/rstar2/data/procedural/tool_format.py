"""Conversations that teach how a call is written and an answer is given, and nothing else.

Invariant: the right program follows a question exactly as often as by chance, one time in n with n programs. So a model
can learn here to repeat a question before it answers, to put numbers into a program, to read a result and to try again
after an error, but not which program answers which question. Each kind of question has habits, drawn at random for each
set: some wrong programs follow it more often than others, so that a model learns to look at the question before it
calls. A few of the programs raise, as a beginner's do; training must unlearn that too.
"""

import io
import random
import re
from collections.abc import Sequence
from contextlib import redirect_stdout
from linecache import cache as source_lines
from traceback import TracebackException
from typing import Any

from rstar2.data.conversation import Conversation
from rstar2.data.procedural.families import FAMILIES

TOOL_NAME = "execute_python_code_with_standard_io"
MAX_TRIES = 3

PROGRAMS = (
    "print({a} * {b})",
    "print({a} + {b})",
    "print({a} - {b})",
    "print({a} % {b})",
    "print({a} // {b})",
    "print({a} ** 2 + {b})",
    "print(pow({a}, {b}, {c}))",
    "print(sum(range({a}, {b} + 1)))",
    'print(int("{a}", {b}))',
    "import math\nprint(math.gcd({a}, {b}))",
    "import math\nprint(math.lcm({a}, {b}))",
    # These raise an error: a module was not imported, a number is given for a string.
    "print(math.gcd({a}, {b}))",
    "print(int({a}, {b}))",
)
MORE_PROGRAMS = (
    'print(bin({a}).count("1"))',
    "print(({c} - {b}) // {a})",
    'print("{words}".lower().count("{letter}"))',
    "from sympy import primepi\nprint(primepi({b}) - primepi({a} - 1))",
    'import numpy as np\nprint(np.base_repr(int("{b}", {a}), {c}).lower())',
)
"""Programs that answer none of the questions here; a model that has seen them has more to try on other questions."""
_FILE = "<cell>"
"""The name that the sandbox gives to a program in its tracebacks."""


Habits = dict[str, list[float]]
"""For each kind of question, how often each program follows it."""


def draw_habits(rng: random.Random, programs: Sequence[str]) -> Habits:
    habits = {}
    for name, family in FAMILIES.items():
        right = programs.index(family.program)
        weights = [rng.expovariate(1) ** 3 for _ in programs]
        weights[right] = 0.0
        chance = 1 / len(programs)
        scale = (1 - chance) / sum(weights)
        habits[name] = [chance if index == right else weight * scale for index, weight in enumerate(weights)]
    return habits


def format_conversation(
    rng: random.Random, programs: Sequence[str], habits: Habits, conversation_id: str
) -> Conversation:
    family = rng.choice(list(FAMILIES.values()))
    question, _ = family.make(rng)
    messages: list[dict[str, Any]] = [{"role": "user", "content": question}]
    for _ in range(MAX_TRIES):
        program = _program(programs, habits[family.name], question, rng)
        output, raised = _run(program)
        arguments = {"code": program, "input": ""}
        call = {"type": "function", "function": {"name": TOOL_NAME, "arguments": arguments}}
        messages += [
            {"role": "assistant", "content": f"<reason> {question}</reason>", "tool_calls": [call]},
            {"role": "tool", "content": output},
        ]
        if not raised:
            break
    answer = output if not raised else _numbers(question)[0]
    closing = f"<reason> Done.</reason>\n<answer>\\boxed{{{answer}}}</answer>"
    messages.append({"role": "assistant", "content": closing})
    return Conversation(tuple(messages), id=conversation_id, source="procedural/tool_format")


def _program(programs: Sequence[str], weights: list[float], question: str, rng: random.Random) -> str:
    a, b, *others = _numbers(question)
    program = rng.choices(programs, weights)[0]
    words, letter = (question, rng.choice("aeinorst")) if "{words}" in program else ("", "")
    return program.format(a=a, b=b, c=others[0] if others else a, words=words, letter=letter)


def _numbers(question: str) -> list[str]:
    return re.findall(r"\d+", question)


def _run(program: str) -> tuple[str, bool]:
    """The program's output as the sandbox would show it, and whether it raised. The programs are our own, so they may
    run here."""
    printed = io.StringIO()
    source_lines[_FILE] = (len(program), None, program.splitlines(keepends=True), _FILE)
    try:
        with redirect_stdout(printed):
            exec(compile(program, _FILE, "exec"), {})
    except Exception as error:
        trace = error.__traceback__
        shown = TracebackException(type(error), error, trace.tb_next if trace else None)
        return "".join(shown.format()).removesuffix("\n"), True
    finally:
        del source_lines[_FILE]
    return printed.getvalue().removesuffix("\n"), False
