"""Relaying JSON-RPC over HTTP: bytes out as they come in, while an observer reads the messages.

An answer is passed on once the observer has taken it, so what it stores is stored before the client
can act on it. The gateway's own errors are JSON-RPC errors too.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Mapping
from typing import Any, Literal, Protocol, TypeVar

import aiohttp
import orjson

from atdp.records import Status
from services.gateway import errors
from services.gateway.asgi import JSON, Request, Send, repeats, require_shallow, respond
from services.gateway.errors import ApiError
from services.gateway.peers import Headers, reply_headers
from services.gateway.upstream import reason
from services.proxy.sse import EventSplitter, ServerSentEvent

JsonRpc = dict[str, Any]
End = Literal["complete", "client_gone", "broken", "timeout", "unreachable"]
_T = TypeVar("_T")

UNANSWERED: dict[End, tuple[Status, str]] = {
    "complete": ("unknown", "no_answer"),
    "client_gone": ("cancelled", "client_disconnected"),
    "broken": ("truncated", "stream_truncated"),
    "timeout": ("timeout", "timeout"),
    "unreachable": ("error", "unreachable"),
}
"""What a call without an answer is, by how its reply ended."""

SERVER_ERROR = -32000
"""JSON-RPC's code for what an implementation defines."""
INVALID_REQUEST = -32600


class Refused(ApiError):
    """An error that the peer itself could have given, for the request of this id."""

    def __init__(self, id: Any, rpc_code: int, message: str, code: str, status: int = 200) -> None:
        super().__init__(status, message, code=code)
        self.id = id
        self.rpc_code = rpc_code


class Observer(Protocol):
    """Reads what passes; whatever it raises as `ApiError` reaches the client instead of the message."""

    async def opened(self, headers: Mapping[str, str]) -> None:
        """The reply's headers are there, before the client gets them."""

    async def message(self, message: JsonRpc) -> None:
        """A message of the server, before the client gets it."""

    async def ended(self, how: End, status: int | None, detail: str) -> None:
        """Nothing more will come: the reply has ended, or there was none."""


def messages_of(body: bytes) -> list[JsonRpc]:
    """The JSON-RPC messages of a body; none when it is something else."""
    return [item for item in _items(_parsed(body)) if isinstance(item, dict)]


def request_messages(body: bytes) -> list[JsonRpc]:
    """The messages of a client's body, which reaches the peer as it came.

    Raises 400 when they are nested too deeply to be recorded, or when the peer could read others than are read here.
    """
    parsed = _parsed(body)
    require_shallow(parsed, body)
    found = [item for item in _items(parsed) if isinstance(item, dict)]
    if isinstance(parsed, list) and len(found) < len(parsed):
        raise Refused(None, INVALID_REQUEST, "A batch holds messages only.", "invalid_request", 400)
    if parsed is not None and repeats(parsed, body):
        raise ambiguous(found[0].get("id") if len(found) == 1 else None)
    return found


def ambiguous(id: Any) -> Refused:
    """The peer may read the other one."""
    return Refused(id, INVALID_REQUEST, "No name stands twice in a message, in any spelling.", "ambiguous_request", 400)


def _parsed(body: bytes) -> Any:
    try:
        return orjson.loads(body) if body else None
    except orjson.JSONDecodeError:
        return None


def _items(parsed: Any) -> list[Any]:
    return parsed if isinstance(parsed, list) else [parsed]


async def respond_jsonrpc_error(send: Send, error: ApiError, id: Any = None, code: int = SERVER_ERROR) -> None:
    """The gateway's own error, as JSON-RPC clients read it."""
    await respond(send, error.status, _error(error, id, code), [JSON, *error.headers])


class Relay:
    """One request to a JSON-RPC peer."""

    def __init__(self, request: Request, send: Send, observer: Observer, id: Any) -> None:
        self._request = request
        self._send = send
        self._observer = observer
        self._id = id
        """Of the request, for errors of our own."""
        self.headers: Headers = []
        """Added to the reply."""

    async def run(self, opening: Awaitable[aiohttp.ClientResponse], whom: str, timeout_s: float) -> None:
        """Relay the response that `opening` gives; errors of its own speak of `whom`."""
        try:
            response = await self._unless_gone(opening)
            if response is None:
                await self._observer.ended("client_gone", None, "the client left")
                return
            async with response:
                await self._observer.opened(response.headers)
                if response.content_type == "text/event-stream":
                    await self._stream(response)
                else:
                    await self._whole(response)
        except TimeoutError:
            await self._failed("timeout", errors.upstream_timeout(whom, timeout_s))
        except aiohttp.ClientConnectorError as error:
            await self._failed("unreachable", errors.upstream_unreachable(whom, reason(error)))
        except aiohttp.ClientError as error:
            await self._failed("broken", errors.upstream_broken(whom, reason(error)))
        except ApiError as error:
            await self._failed("broken", error)
        finally:
            self._request.stop_watching()

    async def _whole(self, response: aiohttp.ClientResponse) -> None:
        raw = await self._unless_gone(response.read())
        if raw is None:
            await self._observer.ended("client_gone", response.status, "the client left")
            return
        body = _decoded(raw, response.headers.get("content-encoding", ""))
        try:
            for message in messages_of(body):
                await self._observer.message(message)
            await self._observer.ended("complete", response.status, errors.beginning(body, 2000))
        except ApiError as error:
            await respond_jsonrpc_error(self._send, error, self._id)
            return
        await respond(self._send, response.status, raw, [*reply_headers(response), *self.headers])

    async def _stream(self, response: aiohttp.ClientResponse) -> None:
        headers = [*reply_headers(response), *self.headers]
        await self._send({"type": "http.response.start", "status": response.status, "headers": headers})
        await self._body(b"", more=True)
        gone = self._request.watch()
        gone.add_done_callback(lambda task: None if task.cancelled() else response.close())
        broken = ""
        try:
            await self._pump(response)
        except ApiError as error:
            # the connection is left open: a clean end would say that all had been told
            await self._body(b"event: message\ndata: " + _error(error, self._id) + b"\n\n", more=True)
            return
        except TimeoutError:
            broken = "the server fell silent"
        except aiohttp.ClientError as error:
            broken = reason(error)
        except zlib.error as error:
            broken = f"its body is not what its content-encoding says: {error}"
        how: End = "client_gone" if gone.done() else ("broken" if broken else "complete")
        await self._observer.ended(how, response.status, broken)
        if how == "complete":
            await self._body(b"", more=False)

    async def _pump(self, response: aiohttp.ClientResponse) -> None:
        splitter = EventSplitter()
        decode = _decoder(response.headers.get("content-encoding", ""))
        if decode is not None:  # not what was asked for: pass it on as it is, read along behind
            while chunk := await response.content.readany():
                for event in splitter.feed(decode.decompress(chunk)):
                    await self._read(event)
                await self._body(chunk, more=True)
            return
        while chunk := await response.content.readany():
            for event in splitter.feed(chunk):
                await self._read(event)
                await self._body(event.raw, more=True)
        for event in splitter.close():
            await self._read(event)
            await self._body(event.raw, more=True)

    async def _read(self, event: ServerSentEvent) -> None:
        for message in messages_of(event.data or b""):
            await self._observer.message(message)

    async def _body(self, body: bytes, *, more: bool) -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": more})

    async def _failed(self, how: End, error: ApiError) -> None:
        try:
            await self._observer.ended(how, None, str(error))
        except ApiError as not_stored:
            error = not_stored
        await respond_jsonrpc_error(self._send, error, self._id)

    async def _unless_gone(self, work: Awaitable[_T]) -> _T | None:
        """The result of `work`, or None when the client left first."""
        task = asyncio.ensure_future(work)
        gone = self._request.watch()
        try:
            await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        return None if task.cancelled() else task.result()


def _error(error: ApiError, id: Any, code: int = SERVER_ERROR) -> bytes:
    problem = {"code": code, "message": str(error), "data": {"type": error.code}}
    return orjson.dumps({"jsonrpc": "2.0", "id": id, "error": problem})


def _decoder(encoding: str) -> Any:
    """Reads gzip and deflate; None for a body that is not encoded."""
    return zlib.decompressobj(47) if encoding.strip().lower() in ("gzip", "x-gzip", "deflate") else None


def _decoded(body: bytes, encoding: str) -> bytes:
    decode = _decoder(encoding)
    try:
        return decode.decompress(body) if decode is not None else body
    except zlib.error:
        return b""
