"""The official MCP client and server with the gateway between them: everything as without it, and recorded."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import uvicorn

from services.proxy.store import StoreReader
from tests.gateway.conftest import Running, prepared, serve, with_sections
from tests.gateway.upstream import ScriptedUpstream

pytest.importorskip("mcp", reason="the MCP package is not installed here")

from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.types import CreateMessageResult, ElicitResult, TextContent, ToolAnnotations
from pydantic import BaseModel


class Name(BaseModel):
    name: str


def demo() -> MCPServer:
    """A server with a tool of each kind."""
    server = MCPServer("demo")

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    def add(a: int, b: int) -> int:
        return a + b

    @server.tool()
    async def slow(ctx: Context) -> str:
        for step in (1, 2):
            await ctx.report_progress(step, 2)
        return "done"

    @server.tool()
    def fail() -> str:
        raise ValueError("no")

    @server.tool()
    async def forever() -> str:
        await asyncio.sleep(30)
        return "never"

    @server.tool()
    async def ask(ctx: Context) -> str:
        answer = await ctx.elicit("Your name?", Name)
        return f"{answer.action}"

    @server.resource("demo://greeting")
    def greeting() -> str:
        return "Hello"

    @server.prompt()
    def review(code: str) -> str:
        return f"Review: {code}"

    return server


@pytest.fixture
async def server() -> AsyncIterator[str]:
    config = uvicorn.Config(demo().streamable_http_app(), port=0, log_config=None, lifespan="on")
    running = uvicorn.Server(config)
    task = asyncio.create_task(running.serve())
    while not running.started:
        await asyncio.sleep(0.01)
        assert not task.done()
    yield f"http://127.0.0.1:{running.servers[0].sockets[0].getsockname()[1]}/mcp"
    running.should_exit = running.force_exit = True
    await task


@pytest.fixture
async def gateway(tmp_path: Path, upstream: ScriptedUpstream, server: str) -> AsyncIterator[Running]:
    settings, connection, secrets = prepared(tmp_path, upstream.port)
    settings = with_sections(settings, mcp={"demo": {"url": server}})
    url, *running = await serve(settings)
    async with aiohttp.ClientSession() as http:
        yield Running(url, settings, upstream, http, secrets, StoreReader(settings.store_dir), connection, running)
    running[0].should_exit = True
    await running[1]
    connection.close()


async def use(url: str, headers: dict[str, str], mode: str) -> dict[str, Any]:
    """What a client sees of everything the server has."""
    seen: dict[str, Any] = {}
    progress: list[float] = []

    async def sampled(context: Any, params: Any) -> CreateMessageResult:
        return CreateMessageResult(role="assistant", content=TextContent(type="text", text="hi"), model="m")

    async def elicited(context: Any, params: Any) -> ElicitResult:
        return ElicitResult(action="accept", content={"name": "Ann"})

    async def on_progress(done: float, total: float | None, message: str | None) -> None:
        progress.append(done)

    async def note(name: str, work: Any) -> None:
        try:
            value = (await work).model_dump(mode="json")
            value.pop("meta", None)
        except Exception as error:
            value = f"{type(error).__name__}: {error}"
        seen[name] = value

    import httpx2

    async with contextlib.AsyncExitStack() as stack:
        http = await stack.enter_async_context(httpx2.AsyncClient(headers=headers, timeout=10))
        transport = streamable_http_client(url, http_client=http)
        client = await stack.enter_async_context(
            Client(transport, mode=mode, sampling_callback=sampled, elicitation_callback=elicited)
        )
        await note("list", client.list_tools())
        await note("add", client.call_tool("add", {"a": 1, "b": 2}))
        await note("bad", client.call_tool("add", {"a": "x"}))
        await note("none", client.call_tool("none", {}))
        await note("slow", client.call_tool("slow", {}, progress_callback=on_progress))
        await note("fail", client.call_tool("fail", {}))
        await note("ask", client.call_tool("ask", {}))
        await note("forever", client.call_tool("forever", {}, read_timeout_seconds=0.3))
        await note("resource", client.read_resource("demo://greeting"))
        await note("prompt", client.get_prompt("review", {"code": "x"}))
    seen["progress"] = progress
    return seen


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_the_official_client_sees_the_same_through_the_gateway(gateway: Running, server: str, mode: str) -> None:
    direct = await use(server, {}, mode)
    through = await use(f"{gateway.url}/s/s1/mcp/demo", gateway.headers(), mode)
    assert through == direct
    assert through["progress"] == [1, 2]
    async with asyncio.timeout(5):
        while len(events := gateway.reader.events("support", "northwind")[0]) < (9 if mode == "auto" else 10):
            await asyncio.sleep(0.05)
    ends = [(e["a"]["name"], e["y"]["status"]) for _, e in events if not e["kind"].startswith("x.")]
    assert ends == [
        ("add", "ok"), ("add", "error"), ("none", "error"), ("slow", "ok"), ("fail", "error"),
        ("ask", "ok" if mode == "legacy" else "error"), ("forever", "cancelled"), ("resources/read", "ok"),
        ("prompts/get", "ok"),
    ]  # fmt: skip
    assert events[0][1]["replay"]["effect"] == "read"
    assert len({event["trajectory_id"] for _, event in events}) == 1
