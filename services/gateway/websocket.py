"""Responses over WebSocket, as Codex and OpenAI's SDK speak it: `GET /v1/responses` with an upgrade.

Each `response.create` is served as the same request over HTTP would be, and its events go back as
messages. The connection remembers its last response, so that a client that stores nothing at the
provider can go on from it; a request that asks for nothing to be generated is answered here.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import orjson

from atdp.ids import new_id
from services.gateway.asgi import Message, Receive, Request, Scope, Send, require_shallow
from services.gateway.core import Gateway
from services.gateway.errors import ApiError, beginning, malformed
from services.gateway.inference import infer
from services.proxy.dialects import RESPONSES
from services.proxy.dialects.base import dicts
from services.proxy.lenient import mended, read_json
from services.proxy.sse import EventSplitter

_MAX_AHEAD = 64
"""Requests a client may send ahead of the answers; together they may be as large as one may be."""
_POLICY = 1008
"""A closed connection's code (RFC 6455, 7.4.1)."""
_LAST = ("response.completed", "response.incomplete")


async def serve_websocket(gateway: Gateway, scope: Scope, receive: Receive, send: Send, path: str) -> None:
    """One connection, from its upgrade to its end."""
    if (await receive())["type"] != "websocket.connect":
        return
    try:
        if path != RESPONSES.path:
            raise ApiError(404, f"No WebSocket at {scope['path']}.", code="unknown_url")
        key = gateway.authenticate(Request({**scope, "method": "GET"}, receive), "infer")
        gateway.require_recording(key.tenant)
    except ApiError as error:
        await _refuse(scope, send, error)
        return
    await send({"type": "websocket.accept"})
    await _Connection(gateway, scope, receive, send).run()


async def _refuse(scope: Scope, send: Send, error: ApiError) -> None:
    if "websocket.http.response" not in (scope.get("extensions") or {}):
        await send({"type": "websocket.close", "code": _POLICY})
        return
    body = orjson.dumps(RESPONSES.error_body(error.problem))
    headers = [(b"content-type", b"application/json"), *error.headers]
    await send({"type": "websocket.http.response.start", "status": error.status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": body})


class _Connection:
    def __init__(self, gateway: Gateway, scope: Scope, receive: Receive, send: Send) -> None:
        self._gateway = gateway
        self._scope = scope
        self._receive = receive
        self._send = send
        self._frames: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._ahead_bytes = 0
        self._gone = asyncio.Event()
        self._last: tuple[str, list[Any]] | None = None
        """The last response's id, and the items of the conversation up to its end."""

    async def run(self) -> None:
        reading = asyncio.create_task(self._read())
        try:
            while (frame := await self._frames.get()) is not None:
                self._ahead_bytes -= len(frame)
                await self._serve(frame)
        finally:
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reading

    async def _read(self) -> None:
        while True:
            message = await self._receive()
            if message["type"] == "websocket.disconnect":
                self._gone.set()
                self._frames.put_nowait(None)
                return
            text = message.get("text")
            frame = text.encode() if text is not None else message.get("bytes") or b""
            self._ahead_bytes += len(frame)
            self._frames.put_nowait(frame)
            # all of it is read, for the client's leaving comes behind it: so there is a bound
            if self._frames.qsize() > _MAX_AHEAD or self._ahead_bytes > self._gateway.settings.gateway.max_body_bytes:
                await self._send({"type": "websocket.close", "code": _POLICY, "reason": "too much sent ahead"})
                self._gone.set()
                self._frames.put_nowait(None)
                return

    async def _serve(self, frame: bytes) -> None:
        try:
            asked = self._request(frame)
        except ApiError as error:
            await self._tell_error(error.status, RESPONSES.error_body(error.problem)["error"])
            return
        if asked.get("generate") is False:
            await self._prewarm(asked)
            return
        answer = _Answer(self._text)
        await self._infer(asked, answer)
        if answer.status != 200:
            await self._tell_error(answer.status, answer.error())
        elif answer.final is not None and answer.final.get("id"):
            self._remember(str(answer.final["id"]), asked, dicts(answer.final.get("output")))

    def _request(self, frame: bytes) -> dict[str, Any]:
        """The request in a message, with what the connection remembers put before it."""
        try:
            asked = orjson.loads(frame)
        except orjson.JSONDecodeError as error:
            raise malformed(f"The message is not valid JSON: {error}") from error
        require_shallow(asked, frame)
        if not isinstance(asked, dict) or asked.pop("type", None) != "response.create":
            raise malformed("A message must be an object of type response.create.", "type")
        if self._last is not None and asked.get("previous_response_id") == self._last[0]:
            del asked["previous_response_id"]
            asked["input"] = [*self._last[1], *_items(asked)]
        return {**asked, "stream": True}

    async def _infer(self, asked: dict[str, Any], answer: _Answer) -> None:
        scope = {**self._scope, "method": "POST"}
        request = Request(scope, self._body(orjson.dumps(asked)))
        request.tag = _tag(scope["path"])
        try:
            await infer(self._gateway, request, answer.take, RESPONSES)
        except ApiError as error:
            answer.refuse(error)

    def _body(self, body: bytes) -> Receive:
        """What an HTTP server would give: the body, and then the client's leaving."""
        given = False

        async def receive() -> Message:
            nonlocal given
            if not given:
                given = True
                return {"type": "http.request", "body": body, "more_body": False}
            await self._gone.wait()
            return {"type": "http.disconnect"}

        return receive

    async def _prewarm(self, asked: dict[str, Any]) -> None:
        response: dict[str, Any] = {
            "id": new_id("resp"), "object": "response", "status": "completed", "model": asked.get("model"),
            "output": [], "error": None, "incomplete_details": None,
            "usage": {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0},
        }  # fmt: skip
        self._remember(str(response["id"]), asked, [])
        begun = {"type": "response.created", "sequence_number": 0, "response": {**response, "status": "in_progress"}}
        ended = {"type": "response.completed", "sequence_number": 1, "response": response}
        for event in (begun, ended):
            await self._text(orjson.dumps(event))

    def _remember(self, id: str, asked: dict[str, Any], output: list[Any]) -> None:
        self._last = (id, [*_items(asked), *output])

    async def _tell_error(self, status: int, error: dict[str, Any]) -> None:
        await self._text(orjson.dumps({"type": "error", "status": status, "error": error}))

    async def _text(self, data: bytes) -> None:
        if not self._gone.is_set():
            await self._send({"type": "websocket.send", "text": data.decode(errors="replace")})


class _Answer:
    """The answer to one request as the HTTP path gives it, event by event."""

    def __init__(self, tell: Any) -> None:
        self.status = 0
        self.final: dict[str, Any] | None = None
        self._tell = tell
        self._splitter = EventSplitter()
        self._body = b""

    async def take(self, message: Message) -> None:
        """In the place of an ASGI server's `send`."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            return
        body = message.get("body", b"")
        if self.status != 200:
            self._body += body
            return
        for event in self._splitter.feed(body):
            if event.data:
                read = read_json(event.data)
                chunk = mended(read.value) if read.odd else read.value
                if isinstance(chunk, dict) and chunk.get("type") in _LAST and isinstance(chunk.get("response"), dict):
                    self.final = chunk["response"]
                await self._tell(event.data)

    def refuse(self, error: ApiError) -> None:
        self.status = error.status
        self._body = orjson.dumps(RESPONSES.error_body(error.problem))

    def error(self) -> dict[str, Any]:
        """What went wrong, as the answer's body says it."""
        try:
            body = orjson.loads(self._body)
        except orjson.JSONDecodeError:
            body = None
        said = body.get("error") if isinstance(body, dict) else None
        return said if isinstance(said, dict) else {"message": beginning(self._body, 2000)}


def _items(asked: dict[str, Any]) -> list[Any]:
    given = asked.get("input")
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": given}]
    return given if isinstance(given, list) else []


def _tag(path: str) -> str | None:
    return path[3:].partition("/")[0] if path.startswith("/s/") else None
