"""An MCP server with the tools that tests need, written with the SDK.

`mcp_test_server.py` speaks over stdio, `mcp_test_server.py FD` over HTTP at the listening socket with that number.
"""

import asyncio
import socket
import sys
from typing import Annotated, Literal

import uvicorn
from mcp.server.mcpserver import Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import CallToolResult
from pydantic import BaseModel, Field

server = MCPServer("rstar2-tests", log_level="ERROR")


class Point(BaseModel):
    x: float
    y: float = 0.0


class Shape(BaseModel):
    name: str
    corners: list[Point]


@server.tool()
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@server.tool()
def describe(shape: Shape | None = None, unit: Literal["m", "km"] = "m", scale: Annotated[int, Field(ge=1)] = 1) -> str:
    """Describes a shape."""
    return "nothing" if shape is None else f"{shape.name} with {len(shape.corners)} corners, {scale} {unit}"


@server.tool()
def fail(reason: str) -> str:
    """Raises."""
    raise ToolError(reason)


@server.tool()
def crash() -> str:
    """Raises something that nobody expected."""
    raise KeyError("missing")


@server.tool()
async def echo(number: int, seconds: float) -> int:
    """Takes its time."""
    await asyncio.sleep(seconds)
    return number


@server.tool(structured_output=False)
def write(num_chars: int) -> str:
    """Returns a long text."""
    return "first " + "x" * num_chars + " last"


@server.tool(structured_output=False)
def picture() -> Image:
    """An image."""
    return Image(data=b"1234567890", format="png")


@server.tool()
def only_structured() -> CallToolResult:
    """Structured content without a text."""
    return CallToolResult(content=[], structured_content={"é": [1, None]})


@server.tool()
def nothing() -> CallToolResult:
    """Returns nothing."""
    return CallToolResult(content=[])


if __name__ == "__main__":
    if len(sys.argv) > 1:
        listening = socket.socket(fileno=int(sys.argv[1]))
        config = uvicorn.Config(server.streamable_http_app(), log_level="error")
        uvicorn.Server(config).run(sockets=[listening])
    else:
        server.run()
