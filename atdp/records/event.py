"""One step an agent took: e = <o, h, a, y, m>, written once, when the action has ended."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, UnsetType, field

from atdp.records.common import AtdpRecord, Count, Digest, Id, Leaf, PartOfRecord, Time
from atdp.records.governance import Gov
from atdp.records.message import Message, MessagePrefix
from atdp.records.tokens import Tokens

Relation = Literal["input", "decided_by", "retry_of", "gated_by", "corrects", "branch_of"]


class Cause(PartOfRecord, frozen=True):
    id: Id
    rel: Relation


class Actor(PartOfRecord, frozen=True):
    type: Literal["agent", "user", "system", "tool", "reviewer"]
    id: str | UnsetType = UNSET


class Observation(PartOfRecord, frozen=True):
    system_instructions: Leaf | UnsetType = UNSET
    messages: list[Message] | MessagePrefix | UnsetType = UNSET
    state: Leaf | UnsetType = UNSET


class HarnessState(PartOfRecord, frozen=True):
    reasoning: Leaf | UnsetType = UNSET
    summary: Leaf | UnsetType = UNSET
    plan: Leaf | UnsetType = UNSET
    confidence: float | UnsetType = UNSET
    state: Leaf | UnsetType = UNSET


class Action(PartOfRecord, frozen=True):
    messages: list[Message] | UnsetType = UNSET
    name: str | UnsetType = UNSET
    call_id: str | UnsetType | None = UNSET
    """The provider's call id: a foreign key, never an identity."""
    arguments: Leaf | UnsetType = UNSET
    params: dict[str, Any] | UnsetType = UNSET
    permissions: list[str] | UnsetType = UNSET
    decision: str | UnsetType = UNSET
    alternatives: list[Any] | UnsetType = UNSET


class Error(PartOfRecord, frozen=True):
    type: str
    message: Leaf | UnsetType = UNSET


Status = Literal["ok", "error", "timeout", "denied", "cancelled", "truncated", "unknown"]


class Outcome(PartOfRecord, frozen=True):
    """What was known when the action ended; only `ok` may be trained on."""

    status: Status
    result: Leaf | UnsetType = UNSET
    error: Error | UnsetType = UNSET
    exit_code: int | UnsetType = UNSET
    finish_reason: str | UnsetType = UNSET
    reason: str | UnsetType = UNSET
    retries: int | UnsetType = UNSET


class Usage(PartOfRecord, frozen=True):
    """Token counts as the provider reported them (OpenTelemetry's `gen_ai.usage.*`); absent is unknown, not 0."""

    input_tokens: int | UnsetType = UNSET
    output_tokens: int | UnsetType = UNSET
    cache_read_input_tokens: int | UnsetType = UNSET
    cache_creation_input_tokens: int | UnsetType = UNSET
    reasoning_output_tokens: int | UnsetType = UNSET


class Metadata(PartOfRecord, frozen=True):
    usage: Usage | UnsetType = UNSET
    cost_usd: float | UnsetType = UNSET
    ttft_ms: float | UnsetType = UNSET
    tags: dict[str, str] | UnsetType = UNSET


class Replay(PartOfRecord, frozen=True):
    """A claim about (event, context) that replay runs confirm or refute."""

    class_: Literal["deterministic", "approximate", "non_replayable"] = field(name="class")
    effect: Literal["none", "read", "idempotent_write", "write", "irreversible"]
    boundary: Literal["inside", "tenant", "external", "human"] | UnsetType = UNSET
    seed: int | UnsetType = UNSET
    state_before: str | UnsetType = UNSET
    state_after: str | UnsetType = UNSET
    stub: bool | UnsetType = UNSET


Kind = Annotated[
    str,
    Meta(
        pattern="^(llm_call|tool_call|retrieval|memory_read|memory_write|file_op|browser_op|code_exec|approval|"
        r"user_message|handoff|guardrail|outcome|x\..+)$"
    ),
]


class EventDraft(AtdpRecord, frozen=True, kw_only=True, tag="event"):
    """One step: what was observed, under which harness state and context, the action, how it ended."""

    atdp: Literal["1.0"]
    id: Id
    trajectory_id: Id
    kind: Kind
    time: Time
    ctx: Digest
    y: Outcome
    turn: Count | UnsetType = UNSET
    step: Count | UnsetType = UNSET
    parent_id: Id | UnsetType = UNSET
    causes: list[Cause] | UnsetType = UNSET
    actor: Actor | UnsetType = UNSET
    duration_ms: Annotated[float, Meta(ge=0)] | UnsetType = UNSET
    span_id: str | UnsetType = UNSET
    o: Observation | UnsetType = UNSET
    h: HarnessState | UnsetType = UNSET
    a: Action | UnsetType = UNSET
    m: Metadata | UnsetType = UNSET
    tokens: Tokens | UnsetType = UNSET
    replay: Replay | UnsetType = UNSET
    gov: Gov | UnsetType = UNSET
    ext: dict[str, Any] | UnsetType = UNSET


class Event(EventDraft, frozen=True, tag="event"):
    """An event in its chain."""

    seq: Count
    prev_hash: Digest | None
    hash: Digest
