"""The simulated model behind a real socket, in OpenAI's form, with token ids as vLLM gives them."""

from __future__ import annotations

import asyncio
import threading
from types import TracebackType
from typing import Any, Protocol

from aiohttp import web

from atdp.ids import new_id


class Answers(Protocol):
    def answer(self, request: dict[str, Any]) -> dict[str, Any]: ...


class ModelServer:
    """Serves whatever `model` is at the moment, from a thread of its own, on a free port of the loopback."""

    def __init__(self) -> None:
        self.model: Answers | None = None
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> ModelServer:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=5)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        app = web.Application(client_max_size=2**24)
        app.router.add_post("/v1/chat/completions", self._complete)
        runner = web.AppRunner(app, access_log=None)
        self._loop.run_until_complete(runner.setup())
        site = web.TCPSite(runner, "127.0.0.1", 0)
        self._loop.run_until_complete(site.start())
        self.port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
        self._ready.set()
        self._loop.run_forever()
        self._loop.run_until_complete(runner.cleanup())
        self._loop.close()

    async def _complete(self, request: web.Request) -> web.Response:
        body = await request.json()
        assert self.model is not None
        message = self.model.answer(body)
        choice: dict[str, Any] = {
            "index": 0,
            "message": {"role": "assistant", **message},
            "finish_reason": "tool_calls" if message.get("tool_calls") else "stop",
            "logprobs": None,
        }
        usage = {"prompt_tokens": 20, "completion_tokens": 4, "total_tokens": 24}
        reply = {"id": new_id("chatcmpl"), "object": "chat.completion", "created": 1, "model": body["model"],
                 "choices": [choice], "usage": usage}  # fmt: skip
        if body.get("return_token_ids"):
            reply["prompt_token_ids"], choice["token_ids"] = list(range(20)), [5, 6, 7, 2]
        if body.get("logprobs"):
            choice["logprobs"] = {"content": [{"token": "t", "logprob": -0.1, "bytes": None, "top_logprobs": []}] * 4}
        return web.json_response(reply)
