"""A tool server over streamable HTTP: the desk's two tools, one that reports progress, one that fails."""

import sys

import uvicorn
from common import get_time, get_weather
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.types import ToolAnnotations

server = MCPServer("desk")
server.tool(annotations=ToolAnnotations(read_only_hint=True))(get_weather)
server.tool(annotations=ToolAnnotations(read_only_hint=True))(get_time)


@server.tool()
async def slow(ctx: Context) -> str:
    for step in (1, 2):
        await ctx.report_progress(step, 2)
    return "done"


@server.tool()
def fail() -> str:
    raise ValueError("no")


@server.resource("desk://greeting")
def greeting() -> str:
    return "Hello"


@server.prompt()
def review(code: str) -> str:
    return f"Review: {code}"


if __name__ == "__main__":
    uvicorn.run(server.streamable_http_app(), port=int(sys.argv[1]), log_level="error")
