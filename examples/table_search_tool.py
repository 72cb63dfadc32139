"""An example of your own tool: search a table by words. Try it with

    rstar2 solve --tool examples/table_search_tool.py "Which element melts at -38.83 degrees Celsius?"

A tool is a schema and an async call that returns a typed result; `make_tool` is what the command line asks for.
"""

import csv
import io
from collections.abc import Mapping
from typing import Any

from rstar2.agent import ToolSchema
from rstar2.records import ToolResult, ToolStatus

ELEMENTS = """element,symbol,number,melting point in degrees Celsius
hydrogen,H,1,-259.16
iron,Fe,26,1538
tungsten,W,74,3422
mercury,Hg,80,-38.83
lead,Pb,82,327.46
"""


class TableSearchTool:
    schema = ToolSchema(
        name="search_table",
        description="Find the rows of a table of chemical elements in which all of the words occur.",
        parameters={"type": "object", "properties": {"words": {"type": "string"}}, "required": ["words"]},
    )

    def __init__(self, table: str) -> None:
        self._rows = list(csv.DictReader(io.StringIO(table)))

    async def call(self, arguments: Mapping[str, Any]) -> ToolResult:
        words = arguments["words"].lower().split()
        lines = ["; ".join(f"{name}: {value}" for name, value in row.items()) for row in self._rows]
        found = [line for line in lines if all(word in line.lower() for word in words)]
        return ToolResult(ToolStatus.OK if found else ToolStatus.NO_OUTPUT, "\n".join(found) or "no such row")

    async def close(self) -> None:
        pass


def make_tool() -> TableSearchTool:
    return TableSearchTool(ELEMENTS)
