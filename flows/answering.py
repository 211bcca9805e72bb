"""Re-making recorded decisions under a candidate: the overlays the gateway would apply, the same server.

A candidate is not a version yet, so the model server is asked directly; the request is built by the
gateway's own function.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import httpx

from evaluators.cases import Action, Case, action_of
from evoplane.settings import Settings
from registry.manifest import Manifest
from services.router.overlays import apply_overlays

_TIMEOUT_S = 180.0
_ATTEMPTS = 2


def answer_cases(config: Settings, manifest: Manifest, cases: Sequence[Case]) -> dict[str, Action | None]:
    """The candidate's action for each case, by event id; None where the server gave no answer."""
    return asyncio.run(_answer_all(config, manifest, cases))


async def _answer_all(config: Settings, manifest: Manifest, cases: Sequence[Case]) -> dict[str, Action | None]:
    slots = asyncio.Semaphore(config.worker.max_num_seqs)
    async with httpx.AsyncClient(base_url=config.vllm_url, timeout=_TIMEOUT_S) as client:

        async def one(case: Case) -> tuple[str, Action | None]:
            async with slots:
                return case.event_id, await _answer(client, config, manifest, case)

        return dict(await asyncio.gather(*(one(case) for case in cases)))


async def _answer(client: httpx.AsyncClient, config: Settings, manifest: Manifest, case: Case) -> Action | None:
    request: dict[str, Any] = {**case.params, "messages": case.messages, "stream": False, "n": 1}
    if case.tools:
        request["tools"] = case.tools
    request.pop("stream_options", None)
    body = apply_overlays(
        request,
        manifest,
        case.tenant,
        max_items=config.gateway.memory_items,
        max_bytes=config.gateway.memory_bytes,
        max_total=config.gateway.overlay_bytes,
    )[0]
    body["model"] = manifest.policy.served_name
    for _ in range(_ATTEMPTS):
        try:
            reply = await client.post("/v1/chat/completions", json=body)
        except httpx.TransportError:
            continue
        if reply.is_success:
            return action_of(reply.json()["choices"][0]["message"])
        if reply.status_code < 500:
            return None
    return None
