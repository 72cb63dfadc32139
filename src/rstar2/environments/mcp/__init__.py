"""Tools of MCP servers: any server, started by command (stdio) or found at an address (streamable HTTP).

Promise: no server outlives the run; a server that dies is restarted, and the call that it lost is an infrastructure
fault; an answer of any size is cut before it is parsed. The official SDK (the extra `mcp`) is imported only when a
recipe names a server.
"""

from rstar2.environments.mcp.tools import McpTools, open_mcp

__all__ = ["McpTools", "open_mcp"]
