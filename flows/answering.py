"""Re-making recorded decisions under a candidate: the overlays the gateway would apply, and a model server.

A candidate is not a version yet, so the model server is asked directly; the request is built by the
gateway's own function. A candidate may also stand behind another base URL: a stronger model, another server.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import aiohttp

from evaluators.cases import Action, Case, Key, action_of
from evaluators.replay.branch import Answer, Request
from evaluators.replay.seeds import seed_of
from evoplane.settings import Settings
from registry.manifest import Manifest, Policy
from services.router.overlays import apply_overlays

_TIMEOUT = aiohttp.ClientTimeout(total=180)
_ATTEMPTS = 2
_QUEUED = 2
"""Requests under way for each the server decodes at once: the next is there when one is done."""


class Answerer:
    """A candidate that can be asked: `async with Answerer(config, manifest) as answer: await answer(request)`.

    Args:
        base_url: another server than the worker's, with or without `/v1`.
        key: its API key.
        token_ids: ask for token ids and log-probabilities (vLLM), for training rows.
    """

    def __init__(
        self,
        config: Settings,
        manifest: Manifest,
        *,
        base_url: str | None = None,
        key: str | None = None,
        token_ids: bool = False,
    ) -> None:
        self._config, self._manifest, self._token_ids = config, manifest, token_ids
        self._url = (base_url or config.vllm_url).rstrip("/").removesuffix("/v1") + "/v1/chat/completions"
        self._headers = {"authorization": f"Bearer {key}"} if key else {}
        self.concurrency = _QUEUED * config.worker.max_num_seqs
        self._slots = asyncio.Semaphore(self.concurrency)

    async def __aenter__(self) -> Answerer:
        connector = aiohttp.TCPConnector(limit=self.concurrency)
        self._http = aiohttp.ClientSession(connector=connector, timeout=_TIMEOUT, headers=self._headers)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self._http.close()

    async def __call__(self, request: Request) -> Answer | None:
        """The candidate's answer; None where the server refused the request or gave none in two attempts."""
        body = self.body(request)
        async with self._slots:
            for _ in range(_ATTEMPTS):
                try:
                    async with self._http.post(self._url, json=body) as reply:
                        if reply.status < 400:
                            return _answer(await reply.json())
                        if reply.status < 500:
                            return None
                except (aiohttp.ClientError, TimeoutError):
                    continue
        return None

    def body(self, request: Request) -> dict[str, Any]:
        """What is sent: the recorded request with the candidate's overlays, name and seed."""
        asked: dict[str, Any] = {**request.params, "messages": request.messages, "stream": False, "n": 1}
        asked["seed"] = request.seed
        if request.tools:
            asked["tools"] = request.tools
        asked.pop("stream_options", None)
        body = apply_overlays(
            asked,
            self._manifest,
            request.tenant,
            max_items=self._config.gateway.memory_items,
            max_bytes=self._config.gateway.memory_bytes,
            max_total=self._config.gateway.overlay_bytes,
        )[0]
        body["model"] = self._manifest.policy.served_name
        if self._token_ids:
            body |= {"return_token_ids": True, "logprobs": True}
        return body


def teacher(config: Settings) -> Answerer:
    """The stronger model of the settings, told nothing but the request; raises `ValueError` when none is set."""
    if not config.replay.teacher_url:
        raise ValueError("no stronger model is set: replay.teacher_url")
    model = config.replay.teacher_model
    key = os.environ.get(config.replay.teacher_key_env)
    manifest = Manifest(policy=Policy(base=model, served_name=model))
    return Answerer(config, manifest, base_url=config.replay.teacher_url, key=key)


def answer_cases(config: Settings, manifest: Manifest, cases: Sequence[Case]) -> dict[Key, Action | None]:
    """The candidate's action for each case, by its key; None where the server gave no answer."""
    return {key: answers[0] for key, answers in answer_repeatedly(config, manifest, cases, 1).items()}


def answer_repeatedly(
    config: Settings,
    manifest: Manifest,
    cases: Sequence[Case],
    repeats: int,
    on_answer: Callable[[], None] = lambda: None,
    base_url: str | None = None,
) -> dict[Key, list[Action | None]]:
    """As `answer_cases`, `repeats` answers for each case, the k-th under the seed every candidate has there."""

    async def ask() -> dict[Key, list[Action | None]]:
        async with Answerer(config, manifest, base_url=base_url) as answer:

            async def one(case: Case, repeat: int) -> Action | None:
                given = await answer(request_of(case, repeat))
                on_answer()
                return None if given is None else action_of(given.message)

            found = await asyncio.gather(*(one(case, repeat) for case in cases for repeat in range(repeats)))
        return {c.key: list(found[i * repeats : (i + 1) * repeats]) for i, c in enumerate(cases)}

    return asyncio.run(ask())


def request_of(case: Case, repeat: int = 0) -> Request:
    """The decision to be made again; a seed the client sent counts for the first repeat."""
    sent = case.params.get("seed")
    seed = sent if isinstance(sent, int) and not repeat else seed_of(case.event_id, repeat)
    return Request(tenant=case.tenant, messages=case.messages, tools=case.tools, params=case.params, seed=seed)


def _said(message: dict[str, Any]) -> dict[str, Any]:
    """What goes into the history: an assistant's message without the server's additions."""
    said = {"role": "assistant", "content": message.get("content")}
    return said | ({"tool_calls": message["tool_calls"]} if message.get("tool_calls") else {})


def _answer(reply: dict[str, Any]) -> Answer:
    choice = reply["choices"][0]
    content = (choice.get("logprobs") or {}).get("content") or []
    return Answer(
        message=_said(choice["message"]),
        prompt_token_ids=reply.get("prompt_token_ids") or [],
        completion_token_ids=choice.get("token_ids") or [],
        logprobs=[entry["logprob"] for entry in content],
        policy_version=str(reply.get("model") or ""),
    )
