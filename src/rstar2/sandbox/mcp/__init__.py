"""The sandbox as an MCP server, over stdin and stdout or streamable HTTP.

Promise: what a program does is a result, marked as an error if it failed; a fault of the sandbox is an error of the
protocol, so that no client takes it for the program's. Every call has a deadline, and nothing outlives the server. The
official SDK (the extra `mcp`) is imported here and nowhere above.
"""

from rstar2.sandbox.mcp.serve import serve_http, serve_stdio
from rstar2.sandbox.mcp.tools import McpLimits, create_server

__all__ = ["McpLimits", "create_server", "serve_http", "serve_stdio"]
