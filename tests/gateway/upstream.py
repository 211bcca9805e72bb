"""A scripted model server: each request takes the next script, or the default answer."""

from __future__ import annotations

import asyncio
import json
import random
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from tests.captures import Capture

Script = Callable[["ScriptedUpstream", web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]


class ScriptedUpstream:
    """Answers on a loopback port and remembers what it was asked."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.bodies: list[bytes] = []
        self.scripts: deque[Script] = deque()
        self.default: Script = say("hello")
        self.cancelled = 0
        self.url = ""

    async def start(self, port: int = 0) -> None:
        app = web.Application(client_max_size=2**26)
        app.router.add_post("/v1/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", port)
        await site.start()
        self.port = site._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    async def close(self) -> None:
        await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append(body)
        self.paths.append(request.path)
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        self.bodies.append(await request.read())
        script = self.scripts.popleft() if self.scripts else self.default
        try:
            return await script(self, request, body)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise


def completion(body: dict[str, Any], message: dict[str, Any], finish: str = "stop", n: int = 1) -> dict[str, Any]:
    """A whole reply in vLLM's form, with token ids and log-probabilities when they were asked for."""
    choices = []
    for index in range(n):
        choice: dict[str, Any] = {
            "index": index,
            "message": {"role": "assistant", "refusal": None, **message},
            "logprobs": None,
            "finish_reason": finish,
            "token_ids": None,
        }
        if body.get("return_token_ids"):
            choice["token_ids"] = [7, 8, 2]
        if body.get("logprobs"):
            choice["logprobs"] = {"content": [{"token": "t", "logprob": -0.25, "bytes": [1]}] * 3}
        choices.append(choice)
    prompt = list(range(10 * len(body["messages"])))
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": body["model"],
        "choices": choices,
        "usage": {"prompt_tokens": len(prompt), "total_tokens": len(prompt) + 3 * n, "completion_tokens": 3 * n},
        "prompt_token_ids": prompt if body.get("return_token_ids") else None,
    }


def say(text: str, delay: float = 0.0) -> Script:
    """Answer with a text, streamed when asked to."""

    async def script(upstream: ScriptedUpstream, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        await asyncio.sleep(delay)
        if body.get("stream"):
            return await _stream_words(request, body, text, delay)
        return web.json_response(completion(body, {"content": text}))

    return script


def call(*calls: tuple[str, str, str]) -> Script:
    """Answer with tool calls (id, name, arguments)."""

    async def script(upstream: ScriptedUpstream, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        listed = [
            {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
            for id, name, arguments in calls
        ]
        return web.json_response(completion(body, {"content": "", "tool_calls": listed}, "tool_calls"))

    return script


def reply(status: int, body: bytes, headers: dict[str, str] | None = None) -> Script:
    async def script(upstream: ScriptedUpstream, request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        return web.Response(status=status, body=body, headers={"content-type": "application/json", **(headers or {})})

    return script


def stream(
    *pieces: bytes,
    delay: float = 0.0,
    abort: bool = False,
    hang: bool = False,
    headers: dict[str, str] | None = None,
) -> Script:
    """Send these bytes, each as a piece of its own; then end, break off, or hang."""

    async def script(upstream: ScriptedUpstream, request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        response = await _begin(request, headers)
        for piece in pieces:
            await response.write(piece)
            await asyncio.sleep(delay)
        if hang:
            await asyncio.sleep(30)
        if abort:
            assert request.transport is not None
            request.transport.close()
            await asyncio.sleep(0.05)
        return response

    return script


def recorded(capture: Capture, chance: random.Random) -> Script:
    """Answer as a recording says, a stream cut at random places."""
    kept = {k: v for k, v in capture.answer_headers.items() if k not in ("content-length", "content-encoding")}
    if not capture.streamed:
        return reply(capture.status or 200, capture.answer, kept)
    data = capture.answer
    cuts = sorted(chance.sample(range(1, len(data)), min(len(data) - 1, chance.randint(0, 12))))
    pieces = [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    return stream(*pieces, headers=kept)


def frame(delta: dict[str, Any] | None, finish: str | None = None, index: int = 0, **more: Any) -> bytes:
    """One chunk of a streamed completion."""
    choices = [] if delta is None else [{"index": index, "delta": delta, "finish_reason": finish}]
    chunk = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": choices}
    return b"data: " + json.dumps({**chunk, **more}, separators=(",", ":")).encode() + b"\n\n"


async def _begin(request: web.Request, headers: dict[str, str] | None = None) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8", **(headers or {})})
    await response.prepare(request)
    return response


async def _stream_words(request: web.Request, body: dict[str, Any], text: str, delay: float) -> web.StreamResponse:
    """vLLM's way of streaming: a role chunk with the prompt's ids, then one chunk a token."""
    response = await _begin(request)
    ids, probs = bool(body.get("return_token_ids")), bool(body.get("logprobs"))
    usage = (body.get("stream_options") or {}).get("include_usage")
    prompt = list(range(10 * len(body["messages"])))

    async def send(choices: list[dict[str, Any]], **more: Any) -> None:
        chunk = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": body["model"]}
        data = json.dumps({**chunk, "choices": choices, **more}, separators=(",", ":"), ensure_ascii=False)
        await response.write(f"data: {data}\n\n".encode())

    def choice(delta: dict[str, Any], token: int, finish: str | None) -> dict[str, Any]:
        logprobs = {"content": [{"token": "t", "logprob": -0.5, "bytes": [1], "top_logprobs": []}]} if probs else None
        end = {"stop_reason": None} if finish else {}
        return {
            "index": 0,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": finish,
            **end,
            "token_ids": [token] if ids else None,
        }

    first = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    await send([first], prompt_token_ids=prompt if ids else None, prompt_text=None)
    words = text.split(" ")
    for position, word in enumerate(words):
        await send([choice({"content": word if position == 0 else f" {word}"}, 100 + position, None)])
        if probs:  # a parser that is buffering: only there because log-probabilities were asked for
            await send([choice({}, 200 + position, None)])
        await asyncio.sleep(delay)
    fingerprint = {"system_fingerprint": "fp"}
    await send([choice({}, 2, "stop")], **({} if usage else fingerprint))
    if usage:
        count = 2 * len(words) + 1
        numbers = {"prompt_tokens": len(prompt), "total_tokens": len(prompt) + count, "completion_tokens": count}
        await send([], usage=numbers, **fingerprint)
    await response.write(b"data: [DONE]\n\n")
    return response
