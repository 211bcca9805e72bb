"""A governor over keys and a policy of the test's own, and drafts to protect."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from atdp import clock
from atdp.records import Action, EventDraft, Message, Observation, Outcome, Part, Tokens, TrajectoryDraft
from registry.keyring import TenantKeys
from registry.tenant_policy import TenantPolicy
from services.proxy.drafts import SealedBlob, StoreDraft, TrajectoryKey
from services.proxy.governor import Governor
from services.proxy.sealing import Sealer
from tests.proxy.drafting import CONTEXT, header


@dataclass
class Governance:
    """Policies and keys, as the control watcher's picture has them."""

    policies: dict[str, TenantPolicy] = field(default_factory=dict)
    tenant_keys: dict[str, TenantKeys] = field(
        default_factory=lambda: {"a": TenantKeys("a", {1: b"a" * 32}), "b": TenantKeys("b", {1: b"b" * 32})}
    )


def governor(tenant: str = "a", **policy: Any) -> Governor:
    governance = Governance({tenant: TenantPolicy(**policy)} if policy else {})
    return Governor(lambda: governance)


def said(text: str, *more: str, role: str = "user") -> Message:
    return Message(role=role, parts=[Part(type="text", content=each) for each in (text, *more)])


def opened(trajectory: str = "t1", **fields: Any) -> TrajectoryDraft:
    return msgspec.structs.replace(header(trajectory), **fields)


def call(id: str = "e1", text: str = "hi", answer: str = "hello", trajectory: str = "t1", **fields: Any) -> EventDraft:
    """A model call with token ids."""
    given: dict[str, Any] = {
        "o": Observation(messages=[said(text)]),
        "a": Action(messages=[said(answer, role="assistant")]),
        "y": Outcome(status="ok"),
        "kind": "llm_call",
        "ctx": CONTEXT.id,
        "tokens": Tokens(
            prompt_token_ids=[1, 2, 3], completion_token_ids=[4, 5], logprobs=[-0.1, -0.2], policy_versions=[(2, "v1")]
        ),
        **fields,
    }
    return EventDraft(atdp="1.0", id=id, trajectory_id=trajectory, time=clock.now(), **given)


def record(drafts: list[StoreDraft], id: str = "e1") -> dict[str, Any]:
    """The protected record of an event, as the store would write it."""
    return next(
        msgspec.to_builtins(d) for d in drafts if getattr(d, "id", None) == id and not isinstance(d, SealedBlob)
    )


def text(drafts: list[StoreDraft]) -> bytes:
    """Every byte that would be stored, sealed content aside."""
    return msgspec.json.encode([d for d in drafts if not isinstance(d, SealedBlob | TrajectoryKey)])


def opening(drafts: list[StoreDraft], keys: TenantKeys, trajectory: str = "t1") -> Any:
    """A function that opens a stand-in with what the drafts hold."""
    blobs = {d.id: d.data for d in drafts if isinstance(d, SealedBlob)}
    key = next(d for d in drafts if isinstance(d, TrajectoryKey) and d.trajectory_id == trajectory)
    sealer = Sealer(trajectory, keys.unwrap(trajectory, key.key_version, key.wrapped))
    return lambda stand_in: sealer.open(stand_in, blobs[stand_in["sealed"]])
