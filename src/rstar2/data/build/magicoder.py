"""Magicoder OSS-Instruct, rewritten as calls: the tool is called with the Python program of the solution. Pure.

The conversation ends with the call: the program's output is not known here, and is not made up.
"""

import ast
import re
import warnings

from rstar2.data.build.source import BuildSource, LeftOut, LeftOutError
from rstar2.data.build.turns import assistant, call, conversation_of
from rstar2.data.catalog_set import HubSource
from rstar2.data.cells import as_text, require
from rstar2.data.conversation import Conversation
from rstar2.data.procedural.tool_format import TOOL_NAME
from rstar2.data.rows import Row
from rstar2.extensions import TOOLS

_BLOCK = re.compile(r"^```[ \t]*([\w+#-]*)[ \t]*\n(.*?)^```[ \t]*$", re.DOTALL | re.MULTILINE)


def convert(row: Row) -> Conversation:
    """Converts a row, without a system text of its own: such calls are made under the agent's."""
    language = as_text(require(row, ("lang",), "language")[1], row, "language")
    if language != "python":
        raise LeftOutError(LeftOut.NOT_PYTHON, language)
    asked = as_text(require(row, ("problem",), "problem")[1], row, "problem")
    program = _program(as_text(require(row, ("solution",), "solution")[1], row, "solution"))
    made = assistant("", [call(TOOL_NAME, {"code": program, "input": ""})])
    tool = TOOLS.load(TOOL_NAME).schema.as_function()
    return conversation_of([{"role": "user", "content": asked}, made], [tool])


def _program(solution: str) -> str:
    programs = [code for language, code in _BLOCK.findall(solution) if language.lower() in ("", "py", "python")]
    if len(programs) != 1 or not programs[0].strip():
        raise LeftOutError(LeftOut.NO_PROGRAM, f"{len(programs)} blocks of Python")
    try:
        with warnings.catch_warnings(action="ignore"):
            ast.parse(programs[0])
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise LeftOutError(LeftOut.BROKEN_PROGRAM, str(error)) from error
    return str(programs[0])


MAGICODER = BuildSource(
    file="sft-function-calls",
    hub=HubSource(
        "ise-uiuc/Magicoder-OSS-Instruct-75K",
        "5f839b1f368a76b161028bb9edff055db34022b2",
        ("data-oss_instruct-decontaminated.jsonl",),
    ),
    num_rows=75_197,
    licence="MIT",
    convert=convert,
)
