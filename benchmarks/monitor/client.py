"""The gateway, called in this process: its ASGI application, without a socket between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

import orjson

Application = Callable[..., Awaitable[None]]


class Refused(Exception):
    """The gateway answered with an error."""


class Client:
    """Posts JSON to an application, as one tenant."""

    def __init__(self, app: Application) -> None:
        self._app = app

    async def post(self, path: str, key: str, body: Any) -> tuple[dict[str, Any], dict[str, str]]:
        """(the reply's JSON, its headers); raises `Refused` for an error."""
        data = orjson.dumps(body)
        scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "query_string": b"",
            "headers": [
                (b"authorization", f"Bearer {key}".encode()),
                (b"content-type", b"application/json"),
                (b"content-length", b"%d" % len(data)),
            ],
        }
        given = [{"type": "http.request", "body": data, "more_body": False}]
        gone = asyncio.Event()
        started: MutableMapping[str, Any] = {}
        parts: list[bytes] = []

        async def receive() -> MutableMapping[str, Any]:
            if given:
                return given.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                started.update(message)
            else:
                parts.append(message.get("body", b""))

        await self._app(scope, receive, send)
        gone.set()
        # a reply takes a while over a socket, and the gateway goes on meanwhile
        await asyncio.sleep(0.001)
        answer = b"".join(parts)
        if started["status"] >= 400:
            raise Refused(f"{path}: {started['status']} {answer[:300]!r}")
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in started["headers"]}
        return orjson.loads(answer), headers


@asynccontextmanager
async def running(app: Application) -> AsyncIterator[Client]:
    """The application between its startup and its shutdown."""
    asked: asyncio.Queue[dict[str, str]] = asyncio.Queue()
    told: asyncio.Queue[MutableMapping[str, Any]] = asyncio.Queue()
    life = asyncio.ensure_future(app({"type": "lifespan"}, asked.get, told.put))
    await asked.put({"type": "lifespan.startup"})
    first = await told.get()
    if first["type"] != "lifespan.startup.complete":
        raise Refused(str(first))
    try:
        yield Client(app)
    finally:
        await asked.put({"type": "lifespan.shutdown"})
        await told.get()
        await life
