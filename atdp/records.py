"""The four record types of ATDP 1.0 as frozen structs: trajectory, context, event, annotation.

A *draft* is a record before it has its place in the chain; the store adds `seq`, `prev_hash`
and `hash`. An absent optional field is absent from the JSON too. The JSON Schema in this
package is generated from these structs (`atdp.schema`).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

VERSION: Literal["1.0"] = "1.0"

Digest = Annotated[str, Meta(pattern="^sha256:[0-9a-f]{64}$")]
Time = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
Id = Annotated[str, Meta(min_length=1, max_length=200)]
Count = Annotated[int, Meta(ge=0)]
Leaf = Annotated[
    Any,
    Meta(
        description="any JSON value, or a stand-in: {ref, bytes, media_type} for content stored apart, "
        "{sealed, commit, labels, bytes} for sealed content, {redacted, labels} for removed content"
    ),
]
Decision = Literal["allow", "deny", "pending"]


class _Part(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """Base of everything nested inside a record."""


# -- governance


class Redaction(_Part, frozen=True):
    state: Literal["none", "redacted", "sealed"]
    policy: str | UnsetType = UNSET


class Retention(_Part, frozen=True):
    policy: str | UnsetType = UNSET
    expires_at: Time | UnsetType = UNSET
    legal_hold: bool | UnsetType = UNSET


class Basis(_Part, frozen=True):
    kind: Literal["consent", "contract", "legitimate_interest", "legal_obligation", "synthetic", "none"]
    ref: str | UnsetType = UNSET


class Eligibility(_Part, frozen=True):
    """What the record may be used for; deny wins over every later allow."""

    train: Decision | UnsetType = UNSET
    evaluate: Decision | UnsetType = UNSET
    replay: Decision | UnsetType = UNSET
    debug: Decision | UnsetType = UNSET
    cross_tenant: Decision | UnsetType = UNSET


class Gov(_Part, frozen=True):
    tenant: str | UnsetType = UNSET
    classification: Literal["public", "internal", "confidential", "restricted"] | UnsetType = UNSET
    labels: list[str] | UnsetType = UNSET
    redaction: Redaction | UnsetType = UNSET
    retention: Retention | UnsetType = UNSET
    basis: Basis | UnsetType = UNSET
    review: Literal["none", "pending", "approved", "rejected"] | UnsetType = UNSET
    eligibility: Eligibility | UnsetType = UNSET


# -- messages


class Part(_Part, frozen=True):
    """One piece of a message, in OpenTelemetry's words (text, reasoning, tool_call, tool_call_response, …)."""

    type: str
    content: Leaf | UnsetType = UNSET
    id: str | UnsetType | None = UNSET
    name: str | UnsetType = UNSET
    arguments: Leaf | UnsetType = UNSET
    """The arguments' value; the text itself when it is not one JSON object (`malformed`)."""
    response: Leaf | UnsetType = UNSET
    raw: Leaf | UnsetType = UNSET
    """The arguments' text, when writing `arguments` as JSON would not give it back byte for byte."""
    malformed: bool | UnsetType = UNSET


class Message(_Part, frozen=True):
    role: str
    parts: list[Part]
    name: str | UnsetType | None = UNSET
    finish_reason: str | UnsetType = UNSET
    ext: dict[str, Any] | UnsetType = UNSET
    """What a dialect has beyond this form; enough to write the message as it was sent."""


class Changed(_Part, frozen=True):
    """A message of the prefix that came back in another form than it was sent or generated in."""

    at: Count
    """Its place in the prefix, counted from 0."""
    message: Message


class MessagePrefix(_Part, frozen=True):
    """The prompt of call `prefix`, then its answer, then `append`.

    An appended `{event}` stands for the message which that `user_message` or `tool_call` event holds.
    Clients re-serialise arguments, drop reasoning and move cache marks when they send an answer back:
    `changed` holds such messages as they came, so that the prefix form stays exact.
    """

    prefix: Id
    append: list[
        Annotated[
            dict[str, Any],
            Meta(extra_json_schema={"anyOf": [{"required": ["role", "parts"]}, {"required": ["event"]}]}),
        ]
    ]
    changed: list[Changed] | UnsetType = UNSET


Ids = (
    list[int]
    | Annotated[
        dict[str, Any],
        Meta(
            description="{prefix, append}: the prompt ids of call `prefix`, then its completion ids, then "
            "`append`; {ref} or {sealed, commit}: kept apart; {redacted}: removed",
            extra_json_schema={
                "anyOf": [
                    {"required": ["prefix", "append"]},
                    {"required": ["ref"]},
                    {"required": ["sealed", "commit"]},
                    {"required": ["redacted"]},
                ]
            },
        ),
    ]
)


Logprobs = (
    list[float]
    | Annotated[
        dict[str, Any],
        Meta(
            description="{ref} or {sealed, commit}: kept apart; {redacted}: removed",
            extra_json_schema={
                "anyOf": [{"required": ["ref"]}, {"required": ["sealed", "commit"]}, {"required": ["redacted"]}]
            },
        ),
    ]
)


# -- trajectory


class Agent(_Part, frozen=True):
    name: str
    id: str | UnsetType = UNSET
    version: str | UnsetType = UNSET


class Task(_Part, frozen=True):
    id: str | UnsetType = UNSET
    group_id: str | UnsetType = UNSET
    trial: int | UnsetType = UNSET
    split: str | UnsetType = UNSET


class Parent(_Part, frozen=True):
    trajectory_id: Id | UnsetType = UNSET
    event_id: Id | UnsetType = UNSET
    rel: Literal["subagent", "continuation", "replay", "branch"] | UnsetType = UNSET


class Origin(_Part, frozen=True):
    producer: str | UnsetType = UNSET
    format: str | UnsetType = UNSET
    imported_from: str | UnsetType = UNSET
    trace_id: str | UnsetType = UNSET


class TrajectoryDraft(
    Struct,
    frozen=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    kw_only=True,
    tag_field="record",
    tag="trajectory",
):
    """The header of one task or conversation; it is always record 0 of its chain."""

    atdp: Literal["1.0"]
    trajectory_id: Id
    time: Time
    agent: Agent
    gov: Gov
    session_id: Id | UnsetType = UNSET
    task: Task | UnsetType = UNSET
    parent: Parent | UnsetType = UNSET
    origin: Origin | UnsetType = UNSET
    ext: dict[str, Any] | UnsetType = UNSET


class Trajectory(TrajectoryDraft, frozen=True, tag="trajectory"):
    """A trajectory header in its chain."""

    seq: Count
    prev_hash: Digest | None
    hash: Digest


# -- context


class Model(_Part, frozen=True):
    name: str | UnsetType = UNSET
    provider: str | UnsetType = UNSET
    response_name: str | UnsetType = UNSET
    checkpoint: str | UnsetType = UNSET
    adapter: str | UnsetType = UNSET
    tokenizer: str | UnsetType = UNSET
    chat_template: Digest | UnsetType = UNSET


class HarnessInfo(_Part, frozen=True):
    name: str | UnsetType = UNSET
    version: str | UnsetType = UNSET
    fingerprint: str | UnsetType = UNSET


class PromptInfo(_Part, frozen=True):
    template: str | UnsetType = UNSET
    version: str | UnsetType = UNSET
    fingerprint: Digest | UnsetType = UNSET


class ToolInfo(_Part, frozen=True):
    name: str
    schema: Digest
    """Names the part that holds the tool as the client described it."""
    version: str | UnsetType = UNSET
    server: str | UnsetType = UNSET


class SkillInfo(_Part, frozen=True):
    name: str | UnsetType = UNSET
    version: str | UnsetType = UNSET
    digest: Digest | UnsetType = UNSET


class ContextBody(_Part, frozen=True):
    """Everything versioned that a step was decided under."""

    model: Model | UnsetType = UNSET
    harness: HarnessInfo | UnsetType = UNSET
    prompt: PromptInfo | UnsetType = UNSET
    tools: list[ToolInfo] | UnsetType = UNSET
    skills: list[SkillInfo] | UnsetType = UNSET
    retrieval: dict[str, Any] | UnsetType = UNSET
    memory: dict[str, Any] | UnsetType = UNSET
    guardrails: dict[str, Any] | UnsetType = UNSET
    router: dict[str, Any] | UnsetType = UNSET
    env: dict[str, Any] | UnsetType = UNSET


class Context(
    Struct,
    frozen=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    kw_only=True,
    tag_field="record",
    tag="context",
):
    """A context record: not chained, because its id is the digest of its body."""

    atdp: Literal["1.0"]
    id: Digest
    body: ContextBody


# -- event


class Cause(_Part, frozen=True):
    id: Id
    rel: Literal["input", "decided_by", "retry_of", "gated_by", "corrects", "branch_of"]


class Actor(_Part, frozen=True):
    type: Literal["agent", "user", "system", "tool", "reviewer"]
    id: str | UnsetType = UNSET


class Observation(_Part, frozen=True):
    system_instructions: Leaf | UnsetType = UNSET
    messages: list[Message] | MessagePrefix | UnsetType = UNSET
    state: Leaf | UnsetType = UNSET


class HarnessState(_Part, frozen=True):
    reasoning: Leaf | UnsetType = UNSET
    summary: Leaf | UnsetType = UNSET
    plan: Leaf | UnsetType = UNSET
    confidence: float | UnsetType = UNSET
    state: Leaf | UnsetType = UNSET


class Action(_Part, frozen=True):
    messages: list[Message] | UnsetType = UNSET
    name: str | UnsetType = UNSET
    call_id: str | UnsetType | None = UNSET
    """The provider's call id: a foreign key, never an identity."""
    arguments: Leaf | UnsetType = UNSET
    params: dict[str, Any] | UnsetType = UNSET
    permissions: list[str] | UnsetType = UNSET
    decision: str | UnsetType = UNSET
    alternatives: list[Any] | UnsetType = UNSET


class Error(_Part, frozen=True):
    type: str
    message: Leaf | UnsetType = UNSET


Status = Literal["ok", "error", "timeout", "denied", "cancelled", "truncated", "unknown"]


class Outcome(_Part, frozen=True):
    """What was known when the action ended; only `ok` may be trained on."""

    status: Status
    result: Leaf | UnsetType = UNSET
    error: Error | UnsetType = UNSET
    exit_code: int | UnsetType = UNSET
    finish_reason: str | UnsetType = UNSET
    reason: str | UnsetType = UNSET
    retries: int | UnsetType = UNSET


class Usage(_Part, frozen=True):
    input_tokens: int | UnsetType = UNSET
    output_tokens: int | UnsetType = UNSET
    cache_read_input_tokens: int | UnsetType = UNSET
    cache_creation_input_tokens: int | UnsetType = UNSET
    reasoning_output_tokens: int | UnsetType = UNSET


class Metadata(_Part, frozen=True):
    usage: Usage | UnsetType = UNSET
    cost_usd: float | UnsetType = UNSET
    ttft_ms: float | UnsetType = UNSET
    tags: dict[str, str] | UnsetType = UNSET


class Tokens(_Part, frozen=True):
    """Exactly what the model got and gave, as the server reported it; nothing is re-tokenised."""

    prompt_token_ids: Ids | UnsetType = UNSET
    completion_token_ids: Ids | UnsetType = UNSET
    logprobs: Logprobs | UnsetType = UNSET
    policy_versions: list[tuple[int, int | str]] | UnsetType = UNSET
    """Run lengths [count, version] over the completion."""


class Replay(_Part, frozen=True):
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


class EventDraft(
    Struct,
    frozen=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    kw_only=True,
    tag_field="record",
    tag="event",
):
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


# -- annotation


class Target(_Part, frozen=True):
    trajectory_id: Id
    event_id: Id | UnsetType = UNSET
    step: int | UnsetType = UNSET
    token_span: tuple[int, int] | UnsetType = UNSET


class Source(_Part, frozen=True):
    kind: Literal["environment", "code", "llm_judge", "reward_model", "human", "end_user", "implicit"]
    id: str | UnsetType = UNSET
    version: str | UnsetType = UNSET


class Scale(_Part, frozen=True):
    min: float | UnsetType = UNSET
    max: float | UnsetType = UNSET
    higher_is_better: bool | UnsetType = UNSET


class AnnotationDraft(
    Struct,
    frozen=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    kw_only=True,
    tag_field="record",
    tag="annotation",
):
    """A signal that came late: reward, critique, preference, label, replay check, change of governance."""

    atdp: Literal["1.0"]
    id: Id
    trajectory_id: Id
    kind: Literal["reward", "critique", "preference", "label", "replay_check", "governance"]
    name: str
    targets: Annotated[list[Target], Meta(min_length=1)]
    source: Source
    time: Time
    """When it was written; `observed_at` is when it happened."""
    value: float | bool | UnsetType | None = UNSET
    label: str | UnsetType = UNSET
    explanation: Leaf | UnsetType = UNSET
    scale: Scale | UnsetType = UNSET
    chosen: Target | UnsetType = UNSET
    rejected: Target | UnsetType = UNSET
    patch: Gov | UnsetType = UNSET
    confidence: Annotated[float, Meta(ge=0, le=1)] | UnsetType = UNSET
    optimizable: bool | UnsetType = UNSET
    """May a trainer use it directly?"""
    evidence: list[Id] | UnsetType = UNSET
    observed_at: Time | UnsetType = UNSET
    supersedes: Id | UnsetType = UNSET
    retracted: bool | UnsetType = UNSET
    ext: dict[str, Any] | UnsetType = UNSET


class Annotation(AnnotationDraft, frozen=True, tag="annotation"):
    """An annotation in its chain."""

    seq: Count
    prev_hash: Digest | None
    hash: Digest


Record = Trajectory | Context | Event | Annotation
"""One line of an export."""

Draft = TrajectoryDraft | Context | EventDraft | AnnotationDraft
"""What a producer hands to the store."""
