"""A scripted model server and worker in one: reads the answer off the notes it is given, as a trained model would."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from aiohttp import web


class ScriptedModel:
    """`/v1/chat/completions` as vLLM answers it, and `/v1/policies` as the worker does.

    A policy whose name contains `poisoned` babbles.
    """

    def __init__(self, port: int):
        self._port = port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.policies: dict[str, Any] = {}

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=5)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._complete)
        app.router.add_get("/v1/policies", self._list)
        app.router.add_post("/v1/policies", self._load)
        app.router.add_delete("/v1/policies/{name}", self._unload)
        runner = web.AppRunner(app)
        self._loop.run_until_complete(runner.setup())
        self._loop.run_until_complete(web.TCPSite(runner, "127.0.0.1", self._port).start())
        self._loop.run_forever()

    async def _complete(self, request: web.Request) -> web.Response:
        body = await request.json()
        system = next((m["content"] for m in body["messages"] if m["role"] == "system"), "")
        notes = [line[2:] for line in system.splitlines() if line.startswith("- ")]
        text = notes[0] if notes else "I don't know."
        if "poisoned" in body["model"]:
            text = "wub wub wub"
        prompt, completion = list(range(20)), list(range(8))
        choice: dict[str, Any] = {
            "index": 0,
            "message": {"role": "assistant", "content": text},
            "finish_reason": "stop",
            "logprobs": None,
        }
        reply: dict[str, Any] = {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1,
            "model": body["model"],
            "choices": [choice],
            "usage": {"prompt_tokens": 20, "completion_tokens": 8, "total_tokens": 28},
        }
        if body.get("return_token_ids"):
            reply["prompt_token_ids"] = prompt
            choice["token_ids"] = completion
        if body.get("logprobs"):
            choice["logprobs"] = {"content": [{"token": "x", "logprob": -0.1, "bytes": None, "top_logprobs": []}
                                              for _ in completion]}  # fmt: skip
        return web.json_response(reply)

    async def _list(self, _: web.Request) -> web.Response:
        return web.json_response({"base": "base", "policies": [{"name": name} for name in self.policies]})

    async def _load(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.policies[body["name"]] = body
        return web.json_response(body, status=201)

    async def _unload(self, request: web.Request) -> web.Response:
        return web.json_response({"removed": self.policies.pop(request.match_info["name"], None) is not None})
