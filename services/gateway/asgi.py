"""The few ASGI moves the gateway makes: read a request, send a response, notice that the client left."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from functools import cached_property
from typing import Any, TypeVar

import orjson

from services.gateway.errors import ApiError, malformed, too_deep, too_large
from services.proxy.clients import CONTROL
from services.proxy.dialects import CHAT, Dialect

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = Iterable[tuple[bytes, bytes]]

T = TypeVar("T")

JSON = (b"content-type", b"application/json")

MAX_DEPTH = 128
"""Levels of a request's JSON: of those that write it again the first gives up at 254, and an event has some of its
own around it."""
_HOLDERS = frozenset({list, dict})
_UNSENDABLE = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_ESCAPED_COLON = re.compile(rb"(?<!\\)(?:\\\\)*\\u003[aA]")


def header_value(text: str) -> bytes:
    """A name as a header's value; what can't stand there becomes a question mark."""
    return CONTROL.sub("?", text).encode("latin-1", "replace")


def sendable(value: bytes) -> bool:
    """Can it stand in a header? With another value, no server could send the answer at all."""
    return _UNSENDABLE.search(value) is None


def repeats(value: Any, body: bytes) -> bool:
    """Has some object of this JSON a name twice? Then another reader of `body` may see what `value` does not have.

    Parsed are the last values, so that the others' colons are missing when it is written again: to count those is ten
    times as fast as to look at each name.
    """
    written = orjson.dumps(value)
    if written == body:
        return False  # most clients write it as it is written here
    colons = body.count(b":")
    if b"\\u003" in body:
        colons += len(_ESCAPED_COLON.findall(body))
    return colons != written.count(b":")


def require_shallow(value: Any, body: bytes) -> None:
    """Raises 400 for JSON that is nested deeper than what follows can read, redact and write; `body` is its text."""
    if body.count(b"[") + body.count(b"{") <= MAX_DEPTH:
        return  # most requests: there are not even as many lists and objects
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [
            each
            for outer in level
            if type(outer) in _HOLDERS
            for each in (outer.values() if type(outer) is dict else outer)
            if type(each) in _HOLDERS
        ]
        if not level:
            return
    raise too_deep(MAX_DEPTH)


class ClientGone(Exception):
    """The client closed the connection before its request was complete."""


class Request:
    """One HTTP request."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.raw_headers: list[tuple[bytes, bytes]] = list(scope["headers"])
        self.headers: dict[bytes, bytes] = dict(self.raw_headers)
        self.query: bytes = scope.get("query_string", b"")
        self.tag: str | None = None
        """What stood in the path as `/s/<tag>` before the rest."""
        self._receive = receive
        self._watch: asyncio.Task[None] | None = None

    @cached_property
    def text_headers(self) -> list[tuple[str, str]]:
        """The headers as text, in order."""
        return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in self.raw_headers]

    def header(self, name: bytes) -> str | None:
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1").strip()

    def secret(self) -> str:
        """The key that the request brings; empty when it brings none."""
        kind, _, value = (self.header(b"authorization") or "").partition(" ")
        return value.strip() if kind.lower() == "bearer" else self.header(b"x-api-key") or ""

    def bind(self, session_id: str) -> None:
        """The session is this one, whatever else the request says about it."""
        name = b"x-evoplane-session-id"
        self.raw_headers = [*(pair for pair in self.raw_headers if pair[0] != name), (name, session_id.encode())]
        self.headers = dict(self.raw_headers)

    async def body(self, limit: int) -> bytes:
        """The whole body; raises a 413 `ApiError` as soon as it is known to be too large."""
        declared = self.headers.get(b"content-length", b"")
        if declared.isdigit() and int(declared) > limit:
            raise too_large(limit)
        chunks: list[bytes] = []
        size, more = 0, True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            chunk = message.get("body", b"")
            size += len(chunk)
            if size > limit:
                raise too_large(limit)
            chunks.append(chunk)
            more = message.get("more_body", False)
        return b"".join(chunks)

    async def json(self, limit: int) -> tuple[Any, bytes]:
        """The body as JSON, and its bytes; raises a 400 `ApiError` for what is not JSON, or nested too deeply.

        The bytes are as they came, unless names stand in them twice: what is passed on is what was checked.
        """
        body = await self.body(limit)
        try:
            value = orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise malformed(f"The request body is not valid JSON: {error}") from error
        require_shallow(value, body)
        return value, orjson.dumps(value) if repeats(value, body) else body

    def watch(self) -> asyncio.Task[None]:
        """A task that ends when the client leaves; call it after the body was read."""
        if self._watch is None:
            self._watch = asyncio.create_task(self._wait_for_disconnect())
        return self._watch

    async def unless_gone(self, work: Awaitable[T]) -> T:
        """The result of `work`; raises `ClientGone`, the work cancelled, when the client leaves first."""
        task, gone = asyncio.current_task(), self.watch()
        assert task is not None
        waiting, left = True, False

        def leave(_: asyncio.Task[None]) -> None:
            nonlocal left
            if waiting and not gone.cancelled():
                left = True
                task.cancel()

        gone.add_done_callback(leave)
        try:
            # in this task: a task for the work and one that waits for either cost more than all the rest here
            return await work
        except asyncio.CancelledError:
            if left and task.uncancel() == 0:
                raise ClientGone from None
            raise
        finally:
            waiting = False
            gone.remove_done_callback(leave)

    def stop_watching(self) -> None:
        """Call it when the response is out: the watch ends by itself then, in this turn of the loop; if not, it is
        cancelled. (Always cancelling it cost an exception, a traceback and a cycle of 20 objects for the collector.)"""
        if self._watch is not None:
            asyncio.get_running_loop().call_soon(self._watch.cancel)

    async def _wait_for_disconnect(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass


async def respond(send: Send, status: int, body: bytes, headers: Headers = (JSON,)) -> None:
    """A whole response at once."""
    length = (b"content-length", b"%d" % len(body))
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": body})


async def respond_json(send: Send, status: int, value: Any, headers: Headers = ()) -> None:
    await respond(send, status, orjson.dumps(value), [JSON, *headers])


async def respond_error(send: Send, error: ApiError, headers: Headers = (), dialect: Dialect = CHAT) -> None:
    """The error, in the form that the dialect's clients read."""
    await respond_json(send, error.status, dialect.error_body(error.problem), [*error.headers, *headers])
