"""How many bytes a session of 100 turns adds to the event log, against the bytes of its last request.

An agent resends its whole history with every turn, so the last request holds everything that was said. It goes
through a real gateway (its HTTP port, sessions and capture) to a scripted upstream. A turn is a user's message, a
tool call, the tool's result and the answer, two requests in all.
"""

from __future__ import annotations

import asyncio
import json
import random
import sqlite3
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import aiohttp
import uvicorn
from aiohttp import web

from evoplane.settings import Settings
from registry import control, pointers, tenants
from registry.manifest import AgentVersion, Manifest, Policy
from services.gateway.app import create_app

TURNS = 100

_MODEL = "smollm2-135m"
_PROSE = " ".join(topics.values())
"""English of Python's own documentation: text must not deflate better than people's does."""
_SYSTEM, _QUESTION, _RESULT, _ANSWER = 4000, 300, 2500, 700
"""Characters of the system prompt, and of a turn's question, tool result and answer."""


def session_size(turns: int = TURNS) -> dict[str, float]:
    """`session_100_turns_ratio`: bytes in the log's rows over bytes of the last request; and what it is made of."""
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_measure(Path(folder), turns))


async def _measure(root: Path, turns: int) -> dict[str, float]:
    upstream, port = await _upstream()
    settings = Settings.model_validate({"paths": {"var": root}, "worker": {"vllm_port": port}})
    secret = _prepare(settings)
    async with _gateway(settings) as url, aiohttp.ClientSession() as http:
        headers = {"authorization": f"Bearer {secret}", "x-evoplane-session-id": "session"}
        last = await _talk(http, f"{url}/v1/chat/completions", headers, turns)
    await upstream.cleanup()
    stored = content_bytes(settings.store_dir / "bench.sqlite")
    return {
        "session_100_turns_ratio": round(stored / last, 3),
        "session_stored_bytes": stored,
        "session_last_request_bytes": last,
    }


async def _talk(http: aiohttp.ClientSession, url: str, headers: dict[str, str], turns: int) -> int:
    """The whole conversation; gives the bytes of its last request."""
    chance = random.Random(7)
    messages: list[dict[str, Any]] = [{"role": "system", "content": _text(chance, _SYSTEM)}]
    tool = {"type": "function", "function": {"name": "look_up", "description": _text(chance, 300), "parameters": {}}}
    size = 0
    for turn in range(turns):
        messages.append({"role": "user", "content": _text(chance, _QUESTION)})
        for _ in range(2):
            body = json.dumps({"model": _MODEL, "messages": messages, "tools": [tool]}).encode()
            size = len(body)
            async with http.post(url, data=body, headers=headers) as response:
                response.raise_for_status()
                message = (await response.json())["choices"][0]["message"]
            messages.append({key: value for key, value in message.items() if value is not None})
            if message.get("tool_calls"):
                call = message["tool_calls"][0]["id"]
                result = json.dumps({"turn": turn, "found": _rows(chance, _RESULT)})
                messages.append({"role": "tool", "tool_call_id": call, "content": result})
    return size


async def _upstream() -> tuple[web.AppRunner, int]:
    chance = random.Random(8)

    async def answer(request: web.Request) -> web.Response:
        body = await request.json()
        asked = body["messages"][-1]["role"] == "user"
        count = len(body["messages"])
        arguments = json.dumps({"query": _text(chance, 60)})
        call = {"id": f"call_{count}", "type": "function", "function": {"name": "look_up", "arguments": arguments}}
        message = {"content": None, "tool_calls": [call]} if asked else {"content": _text(chance, _ANSWER)}
        choice = {
            "index": 0,
            "finish_reason": "tool_calls" if asked else "stop",
            "message": {"role": "assistant", **message},
        }
        usage = {"prompt_tokens": 10 * count, "completion_tokens": 100, "total_tokens": 10 * count + 100}
        reply = {"id": f"chatcmpl-{count}", "object": "chat.completion", "created": 1, "model": _MODEL}
        return web.json_response({**reply, "choices": [choice], "usage": usage})

    app = web.Application(client_max_size=2**26)
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    return runner, runner.addresses[0][1]


def _prepare(settings: Settings) -> str:
    connection = control.connect(settings.control_db)
    with control.transaction(connection):
        tenants.create_agent(connection, "support", _MODEL)
        tenants.create_tenant(connection, "bench", train="allow")
        secret = tenants.create_key(connection, "bench", "support")[1]
        manifest = Manifest(policy=Policy(base=_MODEL, served_name=_MODEL))
        first = AgentVersion(agent="support", version="1", digest=manifest.digest, manifest=manifest)
        pointers.put_version(connection, first)
        pointers.set_champion(connection, "support", "1", "first", "bench")
    connection.close()
    return secret


@asynccontextmanager
async def _gateway(settings: Settings) -> AsyncIterator[str]:
    config = uvicorn.Config(create_app(settings, token_capture=False), port=0, lifespan="on", log_config=None)
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
        if task.done():
            task.result()
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    await task


def content_bytes(database: Path) -> int:
    """Bytes of everything that is in the rows of a tenant's log; pages and indexes not counted."""
    connection = sqlite3.connect(database)
    tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_schema WHERE type='table'")]
    total = 0
    for table in tables:
        columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
        lengths = "+".join(f"coalesce(length(CAST({column} AS BLOB)),0)" for column in columns)
        total += connection.execute(f"SELECT coalesce(sum({lengths}),0) FROM {table}").fetchone()[0]
    connection.close()
    return int(total)


def _text(chance: random.Random, length: int) -> str:
    """So many characters of prose, from anywhere in it."""
    start = chance.randrange(len(_PROSE) - length)
    return _PROSE[start : start + length]


def _rows(chance: random.Random, length: int) -> list[dict[str, Any]]:
    """A tool's result: order lines until there are about so many characters."""
    rows: list[dict[str, Any]] = []
    while len(json.dumps(rows)) < length:
        item = {"order": f"{chance.getrandbits(40):010x}", "sku": chance.randrange(10**6), "qty": chance.randrange(9)}
        rows.append({**item, "price": round(chance.uniform(1, 900), 2), "note": _text(chance, 60)})
    return rows
