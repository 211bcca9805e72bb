"""From what is reported about a step (by a client, a proxy or a trace) to its event.

The kind selects defaults only: what the step may have changed, and where.
"""

from __future__ import annotations

import re
import time
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from atdp import clock
from atdp.ids import derived_id, is_id, new_id
from atdp.records import (
    Action,
    Actor,
    AnnotationDraft,
    Cause,
    Error,
    EventDraft,
    Message,
    Metadata,
    Observation,
    Outcome,
    Part,
    Replay,
    Source,
    Status,
    Target,
)
from registry.tenants import Key
from services.proxy.sessions import MAX_ID_LENGTH, PendingCall, Session
from services.proxy.tools import Boundary, Effect, boundary_of, effect_of

ReportedId = Annotated[str, Meta(min_length=1, max_length=MAX_ID_LENGTH, pattern=r"^[^\x00-\x1f\x7f]*\Z")]
"""Without control characters (`clients.CONTROL`)."""

DEFAULT_EFFECTS: dict[str, Effect] = {
    "retrieval": "read",
    "memory_read": "read",
    "approval": "none",
    "guardrail": "none",
}
"""Nobody has said what a step does: assume that it writes, unless its kind says otherwise."""

DEFAULT_BOUNDARIES: dict[str, Boundary] = {
    "memory_read": "inside",
    "memory_write": "inside",
    "guardrail": "inside",
    "browser_op": "external",
    "approval": "human",
}

_SHOWN = 60
"""Characters of a wrong word that an error repeats."""
_SPAN_ID = re.compile(r"[0-9a-fA-F]{1,32}")

_WORDS = frozenset({"user_message", "outcome"})
"""Kinds that are messages, not operations: nothing to replay."""


KINDS = (
    "tool_call", "retrieval", "memory_read", "memory_write", "file_op", "browser_op", "code_exec", "approval",
    "user_message", "handoff", "guardrail", "outcome",
)  # fmt: skip
"""What a step can be, beside the client's own kinds, which begin with `x.`."""

_KIND = rf"^({'|'.join(KINDS)}|x\.[a-z0-9_.-]{{1,60}})$"


class Reported(Struct, forbid_unknown_fields=True, kw_only=True):
    """One step that has ended."""

    kind: Annotated[str, Meta(pattern=_KIND)]
    session_id: ReportedId | None = None
    trajectory_id: ReportedId | None = None
    session_hint: ReportedId | None = None
    """The session to take when neither id is given and no session waits for this call."""
    id: ReportedId | None = None
    """Makes sending it again harmless."""
    time: str | None = None
    """When it began (RFC 3339)."""
    duration_ms: Annotated[float, Meta(ge=0)] | None = None
    name: Annotated[str, Meta(max_length=500)] | None = None
    call_id: str | None = None
    """The provider's id of the tool call that this carries out."""
    server: str | None = None
    """The tool server, whose name clients put before the tool's."""
    tool: dict[str, Any] | None = None
    """The tool as its server describes it (name, inputSchema, annotations, …)."""
    parent_id: ReportedId | None = None
    """The event this happened in, such as the model call (`x-evoplane-event-id`) that decided it."""
    causes: list[Cause] = []
    span_id: str | None = None
    arguments: Any = None
    result: Any = None
    text: str | None = None
    decision: str | None = None
    """Of an approval or a guardrail."""
    permissions: list[str] | None = None
    status: Status = "ok"
    error: str | None = None
    error_type: str | None = None
    """The error's class: few different values (`timeout`, `invalid_arguments`, `http_503`)."""
    unfinished: bool = False
    """The tool asks for more and will be called again: the model's call still waits for its result."""
    exit_code: int | None = None
    reason: str | None = None
    effect: Effect | None = None
    boundary: Boundary | None = None
    tags: dict[str, str] = {}
    ext: dict[str, Any] = {}


def report_id(key: Key, reported: Reported) -> str:
    """A client's id is its own: two agents using the same one are two events."""
    return derived_id("ev", key.tenant, key.agent, reported.id) if reported.id else new_id("ev")


def read(item: Any) -> Reported:
    """One report as a client sent it; raises `ValueError` that says what is wrong with it."""
    kind = item.get("kind") if isinstance(item, dict) else None
    if isinstance(kind, str) and re.fullmatch(_KIND, kind) is None:  # the validator would name a regular expression
        raise ValueError(
            f"There is no kind {kind[:_SHOWN]!r}; there are {', '.join(KINDS)}, and your own: "
            "x. and up to 60 of a-z, 0-9, _ . -"
        )
    reported = msgspec.convert(item, Reported)
    _check(reported)
    return reported


def _check(reported: Reported) -> None:
    """Raises `ValueError` when the kind needs a field that is not there, or a time or an id is none."""
    if reported.kind == "user_message" and reported.text is None:
        raise ValueError("A user_message needs its text.")
    if reported.kind in ("tool_call", "handoff") and not (reported.name or reported.call_id):
        raise ValueError(f"A {reported.kind} needs a name.")
    if reported.time is not None:
        clock.parse(reported.time)
    # these are stored as they are, so they must be what they say
    if reported.span_id is not None and _SPAN_ID.fullmatch(reported.span_id) is None:
        raise ValueError("A span_id has at most 32 hexadecimal digits.")
    for id in (reported.parent_id, *(cause.id for cause in reported.causes)):
        if id is not None and not is_id(id, "ev"):
            raise ValueError(
                "A parent_id and the ids of causes are those of events (`ev_…`), as the gateway gave them."
            )


def event(
    session: Session, reported: Reported, context_id: str, pending: PendingCall | None, joined_by: str | None
) -> EventDraft:
    """The event of a report; `pending` is the model's call that it carries out, if one is known.

    Raises `ValueError` when the kind needs a field that is not there.
    """
    fields: dict[str, Any] = {"a": _action(reported, pending), "actor": Actor(type="agent")}
    if reported.kind == "user_message":
        if reported.text is None:
            raise ValueError("A user_message needs its text.")
        message = Message(role="user", parts=[Part(type="text", content=reported.text)])
        fields = {"actor": Actor(type="user"), "o": Observation(messages=[message])}
    elif reported.kind == "outcome":
        del fields["a"], fields["actor"]
    elif reported.kind == "approval":
        fields["actor"] = Actor(type="reviewer")
    if reported.kind not in _WORDS:
        fields["replay"] = Replay(
            class_="non_replayable" if reported.kind == "approval" else "approximate",
            boundary=reported.boundary or boundary_of(reported.tool) or DEFAULT_BOUNDARIES.get(reported.kind, "tenant"),
            effect=reported.effect or effect_of(reported.tool) or DEFAULT_EFFECTS.get(reported.kind, "write"),
            stub=True,
        )
    causes = list(reported.causes)
    parent = reported.parent_id
    if pending is not None:
        parent = parent or pending.event_id
        causes.insert(0, Cause(id=pending.event_id, rel="decided_by"))
        fields["step"] = pending.step
    ext = {"reported": {"joined_by": joined_by}, **reported.ext} if joined_by else dict(reported.ext)
    return EventDraft(
        atdp="1.0",
        id=report_id(session.key, reported),
        trajectory_id=session.trajectory_id,
        kind=reported.kind,
        time=_started(reported),
        ctx=context_id,
        duration_ms=_or_unset(reported.duration_ms),
        parent_id=_or_unset(parent),
        causes=causes or UNSET,
        span_id=_or_unset(reported.span_id),
        y=_outcome(reported),
        m=Metadata(tags=_tags(session, reported)),
        ext=ext or UNSET,
        **fields,
    )


def description(session: Session, reported: Reported, event_id: str) -> AnnotationDraft:
    """A report about a call whose result is an event already: what only the report knows, beside that event."""
    said = {
        "duration_ms": reported.duration_ms,
        "effect": reported.effect,
        "boundary": reported.boundary,
        "status": reported.status,
        "error_type": reported.error_type,
        "error": reported.error,
        "exit_code": reported.exit_code,
        "result": reported.result,
        "server": reported.server,
        **reported.ext,
    }
    return AnnotationDraft(
        atdp="1.0",
        id=derived_id("an", session.trajectory_id, event_id, "reported", reported.id or new_id("re")),
        trajectory_id=session.trajectory_id,
        kind="label",
        name="reported",
        label=reported.status,
        targets=[Target(trajectory_id=session.trajectory_id, event_id=event_id)],
        source=Source(kind="code", id=session.key.id),
        time=clock.now(),
        observed_at=_started(reported),
        ext={key: value for key, value in said.items() if value is not None},
    )


def _action(reported: Reported, pending: PendingCall | None) -> Action:
    if reported.kind in ("tool_call", "handoff") and not (reported.name or pending):
        raise ValueError(f"A {reported.kind} needs a name.")
    arguments = reported.arguments if reported.arguments is not None or not pending else pending.arguments
    name = pending.name if pending else reported.name
    return Action(
        name=_or_unset(name or reported.name),
        call_id=reported.call_id if reported.call_id is not None or reported.kind == "tool_call" else UNSET,
        arguments=_or_unset(arguments),
        decision=_or_unset(reported.decision),
        permissions=_or_unset(reported.permissions),
    )


def _outcome(reported: Reported) -> Outcome:
    error: Error | UnsetType = UNSET
    if reported.error is not None or reported.error_type is not None:
        error = Error(type=reported.error_type or "reported", message=_or_unset(reported.error))
    return Outcome(
        status=reported.status,
        result=_or_unset(reported.result),
        error=error,
        exit_code=_or_unset(reported.exit_code),
        reason=_or_unset(reported.reason),
    )


def _started(reported: Reported) -> str:
    """When the step began: as reported, else by its duration before now."""
    if reported.time is not None:
        return clock.timestamp(clock.parse(reported.time))
    return clock.from_epoch(time.time() - (reported.duration_ms or 0.0) / 1000)


def _tags(session: Session, reported: Reported) -> dict[str, str]:
    tags = {**reported.tags, "agent": session.key.agent, "purpose": session.key.purpose}
    if session.version is not None:
        tags["agent_version"] = session.version
    return tags


def _or_unset(value: Any) -> Any:
    return UNSET if value is None else value
