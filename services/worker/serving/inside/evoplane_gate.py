"""What runs inside vLLM's web server: counts requests by model name, holds them while weights change, stamps answers.

vLLM loads it (`--middleware=evoplane_gate.Gate`) in its own environment, so it imports the standard library alone.
Three things need it. An adapter is unloaded when nobody uses it any more, which vLLM does not tell by name. An
in-place change of the base weights must not fall into a running answer, and its first user must not be the probe. And
an answer must say which base weights gave it (`x-evoplane-weights`), because a chat completion does not.

    GET  /evoplane/gate   {"weights", "holding", "held", "in_flight": {name: n}}
    POST /evoplane/gate   {"hold": bool, "weights": name}   either may be left out
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

GENERATING = frozenset(
    {"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/inference/v1/generate"}
)
OWN = "/evoplane/gate"
PASS = b"x-evoplane-probe"
"""A request with this header is let through while others wait. The gateway lets no client's through."""
LONGEST_HOLD_S = 120.0
"""A request that was held for longer is refused: whoever holds must have died."""


class Gate:
    """ASGI middleware; one an engine."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._in_flight: Counter[str] = Counter()
        self._held = 0
        self._open = asyncio.Event()
        self._open.set()
        self._weights = ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif scope["path"] == OWN:
            await self._told(scope, receive, send)
        elif scope["method"] == "POST" and scope["path"] in GENERATING:
            await self._generate(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _generate(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await _body(receive)
        if PASS not in dict(scope["headers"]) and not await self._admitted():
            await _answer(send, 503, {"error": {"message": "the weights are being changed", "code": 503}})
            return
        name = _model(body)
        stamp = (b"x-evoplane-weights", self._weights.encode("latin-1", "replace"))
        told = False

        async def replay() -> MutableMapping[str, Any]:
            nonlocal told
            if told:
                return await receive()
            told = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def stamped(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start" and stamp[1]:
                message = {**message, "headers": [*message.get("headers", []), stamp]}
            await send(message)

        self._in_flight[name] += 1
        try:
            await self._app(scope, replay, stamped)
        finally:
            self._in_flight[name] -= 1
            if not self._in_flight[name]:
                del self._in_flight[name]

    async def _admitted(self) -> bool:
        if self._open.is_set():
            return True
        self._held += 1
        try:
            await asyncio.wait_for(self._open.wait(), LONGEST_HOLD_S)
        except TimeoutError:
            return False
        finally:
            self._held -= 1
        return True

    async def _told(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "POST":
            try:
                said = json.loads(await _body(receive))
                hold, weights = said.get("hold"), said.get("weights")
            except (ValueError, AttributeError):
                await _answer(send, 400, {"error": {"message": "not a JSON object"}})
                return
            if isinstance(weights, str):
                self._weights = weights
            if hold is True:
                self._open.clear()
            elif hold is False:
                self._open.set()
        state = {
            "weights": self._weights,
            "holding": not self._open.is_set(),
            "held": self._held,
            "in_flight": dict(self._in_flight),
        }
        await _answer(send, 200, state)


async def _body(receive: Receive) -> bytes:
    parts = []
    while True:
        message = await receive()
        if message["type"] != "http.request":
            break
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            break
    return b"".join(parts)


def _model(body: bytes) -> str:
    try:
        name = json.loads(body).get("model")
    except (ValueError, AttributeError):
        return ""
    return name if isinstance(name, str) else ""


async def _answer(send: Send, status: int, content: dict[str, Any]) -> None:
    raw = json.dumps(content).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(raw)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": raw})
