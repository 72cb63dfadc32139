"""The sandbox as an MCP server, over stdin and stdout or streamable HTTP.

Promise: a program's outcome is a tool result, marked as an error if the program failed; a fault of the sandbox is a
protocol error, so that no client mistakes it for the program's. Every call has a deadline, and no process outlives the
server. Only this folder imports the official SDK (the extra `mcp`).
"""

from rstar2.sandbox.mcp.serve import serve_http, serve_stdio
from rstar2.sandbox.mcp.tools import McpLimits, create_server

__all__ = ["McpLimits", "create_server", "serve_http", "serve_stdio"]
