"""The scripted model's server: on a loopback port, in a thread of its own, remembering all it was asked and said."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Self

from aiohttp import web

from tests.contract import wire
from tests.contract.asked import Asked, read
from tests.contract.thinking import Reply, answer

MODELS = ("gpt-fake", "gpt-reasoning", "claude-fake", "text-embedding-fake")
EMBEDDING = "zcxMPM3MzDyamRk9zcxMPQAAgD2amZk9MzOzPc3MzD0="
_RETRY_AFTER_MS = "20"


@dataclass
class Exchange:
    """One call of the model: what came in, what it stood for, what went out."""

    path: str
    """Behind `/v1`."""
    raw: bytes
    body: dict[str, Any]
    headers: dict[str, str]
    status: int = 200
    answer: dict[str, Any] = field(default_factory=dict)
    """As one JSON object, even when it was streamed."""
    streamed: bool = False
    cut: bool = False
    said: list[dict[str, Any]] = field(default_factory=list)
    """All messages or items that the model saw, those it was only reminded of by an id included."""


class ScriptedModel:
    """A context manager; `reset` forgets, so that the next client meets the model as the last one did."""

    def __enter__(self) -> Self:
        self.reset()
        self._loop = asyncio.new_event_loop()
        ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(ready,), daemon=True)
        self._thread.start()
        assert ready.wait(10)
        self.url = f"http://127.0.0.1:{self.port}"
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def reset(self) -> None:
        self.exchanges: list[Exchange] = []
        self.beside: list[tuple[str, bytes]] = []
        """What was asked for beside conversations: models, token counts, embeddings, probes."""
        self._times: Counter[str] = Counter()
        self._kept: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {}
        """Request and history by answer, for clients that name the answer instead of repeating it."""

    def _run(self, ready: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._start())
        ready.set()
        self._loop.run_forever()
        self._loop.run_until_complete(self._runner.cleanup())
        self._loop.close()

    async def _start(self) -> None:
        app = web.Application(client_max_size=2**26)
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(app, shutdown_timeout=1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        path = request.path.removeprefix("/v1")
        raw = await request.read()
        if request.method == "POST" and path in ("/chat/completions", "/responses", "/messages"):
            return await self._converse(request, path, raw)
        self.beside.append((f"{request.method} {path}", raw))
        match request.method, path:
            case "POST", "/messages/count_tokens":
                return web.json_response({"input_tokens": len(raw) // 5})
            case "POST", "/embeddings":
                return web.json_response(_embeddings(json.loads(raw)))
            case "GET", "/models":
                return web.json_response(_models("anthropic-version" in request.headers))
        return web.json_response(wire.error(path, 404, "0"), status=404)

    async def _converse(self, request: web.Request, path: str, raw: bytes) -> web.StreamResponse:
        body = json.loads(raw)
        exchange = Exchange(path, raw, body, {k.lower(): v for k, v in request.headers.items()})
        self.exchanges.append(exchange)
        whole = self._remembered(exchange)
        asked = read(path, whole)
        digest = _digest(path, asked)
        self._times[digest] += 1
        id = f"{digest}{self._times[digest]}"
        if status := _fault(asked, self._times[digest]):
            exchange.status, exchange.answer = status, wire.error(path, status, id)
            headers = {"request-id": f"req_{id}", "x-request-id": f"req_{id}"}
            if status == 429:
                headers["retry-after-ms"] = _RETRY_AFTER_MS
            return web.json_response(exchange.answer, status=status, headers=headers)
        exchange.answer, events = _spoken(path, body, asked, answer(asked), id)
        self._kept[exchange.answer["id"]] = (whole, exchange.said)
        if not body.get("stream"):
            return web.json_response(exchange.answer, headers={"x-request-id": f"req_{id}", "request-id": f"req_{id}"})
        exchange.streamed, exchange.cut = True, "[cut]" in asked.question
        return await _stream(request, id, events, exchange.cut)

    def _remembered(self, exchange: Exchange) -> dict[str, Any]:
        """The request with what it leaves out because an earlier answer's id stands for it."""
        body = exchange.body
        name = "input" if exchange.path == "/responses" else "messages"
        given = body.get(name) or []
        given = [{"role": "user", "content": given}] if isinstance(given, str) else given
        id = body.get("previous_response_id") or (body.get("thread") or {}).get("previous_message_id")
        before: dict[str, Any] = {}
        history: list[dict[str, Any]] = []
        if id is not None:
            before, history = self._kept[id]
            history = [*history, *_as_history(self._answers(id))]
        exchange.said = [*history, *given]
        return {**before, **body, name: exchange.said}

    def _answers(self, id: str) -> dict[str, Any]:
        return next(each.answer for each in self.exchanges if each.answer.get("id") == id)


def _as_history(said: dict[str, Any]) -> list[dict[str, Any]]:
    if "output" in said:
        return list(said["output"])
    return [{"role": "assistant", "content": said["content"]}]


def _digest(path: str, asked: Asked) -> str:
    said = [[each.role, each.text, each.calls] for each in asked.said if each.role not in ("system", "developer")]
    return hashlib.sha256(json.dumps([path, said, sorted(asked.tools)]).encode()).hexdigest()[:20]


def _fault(asked: Asked, times: int) -> int | None:
    if "[429]" in asked.question and times == 1 and not asked.called and not asked.results:
        return 429
    return 400 if "[400]" in asked.question else None


def _spoken(path: str, body: dict[str, Any], asked: Asked, reply: Reply, id: str) -> tuple[dict[str, Any], list[bytes]]:
    """The answer whole, and the events it would be streamed in."""
    words = sum(len(each.text.split()) + 3 * len(each.calls) + 1 for each in asked.said)
    wrote = len(reply.text.split()) + len(reply.thinking.split()) + 7 * len(reply.calls)
    thought = len(reply.thinking.split())
    match path:
        case "/chat/completions":
            usage = wire.chat_usage(words, wrote, thought)
            told = usage if (body.get("stream_options") or {}).get("include_usage") else None
            whole = wire.chat(reply, id, body["model"], usage)
            return whole, wire.chat_stream(reply, id, body["model"], told)
        case "/responses":
            whole = wire.responses(reply, id, body, wire.responses_usage(words, wrote, thought))
            return whole, wire.responses_stream(whole)
    whole = wire.messages(reply, id, body["model"], wire.messages_usage(words, wrote))
    return whole, wire.messages_stream(whole)


async def _stream(request: web.Request, id: str, events: list[bytes], cut: bool) -> web.StreamResponse:
    headers = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
    response = web.StreamResponse(headers={**headers, "x-request-id": f"req_{id}", "request-id": f"req_{id}"})
    await response.prepare(request)
    for event in events[: len(events) // 2] if cut else events:
        await response.write(event)
        await asyncio.sleep(0)
    if cut:
        assert request.transport is not None
        await asyncio.sleep(0.05)
        request.transport.close()
    return response


def _embeddings(body: dict[str, Any]) -> dict[str, Any]:
    count = len(body["input"]) if isinstance(body["input"], list) else 1
    data = [{"object": "embedding", "index": n, "embedding": EMBEDDING} for n in range(count)]
    return {"object": "list", "data": data, "model": body["model"], "usage": {"prompt_tokens": 8, "total_tokens": 8}}


def _models(anthropic: bool) -> dict[str, Any]:
    if anthropic:
        data = [{"type": "model", "id": n, "display_name": n, "created_at": "2026-01-01T00:00:00Z"} for n in MODELS]
        return {"data": data, "has_more": False, "first_id": MODELS[0], "last_id": MODELS[-1]}
    return {"object": "list", "data": [{"id": n, "object": "model", "created": 0, "owned_by": "x"} for n in MODELS]}
