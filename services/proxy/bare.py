"""A draft without anything that came from outside: what is stored when redaction fails."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import UNSET

from atdp.canonical import digest
from atdp.records import (
    Action,
    Actor,
    AnnotationDraft,
    Context,
    Eligibility,
    EventDraft,
    Gov,
    Metadata,
    Outcome,
    Redaction,
    TrajectoryDraft,
)
from services.proxy.drafts import Content, Signal, StoreDraft

_SIMPLE = re.compile(r"[A-Za-z0-9._:-]{1,80}")
_OUR_TAGS = ("agent", "agent_version", "role", "purpose", "line")
_OUR_EXT = ("key", "purpose")
_FAILED = {"redaction_failed": True}
_GOV = Gov(redaction=Redaction(state="redacted", policy="failed"), eligibility=Eligibility(train="deny"))


def bare_all(drafts: Iterable[StoreDraft], contexts: dict[str, str]) -> list[StoreDraft]:
    """The drafts without payload. `contexts` maps contexts that were stripped before, and now, to what they became."""
    kept: list[StoreDraft] = []
    for draft in drafts:
        if isinstance(draft, Context):
            stripped = _context(draft)
            contexts[draft.id] = stripped.id
            kept.append(stripped)
        elif isinstance(draft, Content):  # a tool's description, which no record names any more
            kept.append(Content("application/json", b'{"redacted":"drop","labels":["redaction_failed"]}'))
        else:
            kept.append(bare(draft))
    return [
        msgspec.structs.replace(draft, ctx=contexts.get(draft.ctx, draft.ctx))
        if isinstance(draft, EventDraft)
        else draft
        for draft in kept
    ]


def bare(draft: Any) -> Any:
    """The same record, in the same place, without payload."""
    match draft:
        case EventDraft():
            return _event(draft)
        case AnnotationDraft():
            return _annotation(draft)
        case Signal():
            target = draft.target if _SIMPLE.fullmatch(draft.target) else "redaction_failed"
            return msgspec.structs.replace(draft, target=target, annotation=_annotation(draft.annotation))
        case TrajectoryDraft():
            return _trajectory(draft)
        case _:
            return draft


def _context(context: Context) -> Context:
    """What is ours of a context: the version that answered, not the client's tools."""
    body = msgspec.structs.replace(context.body, tools=UNSET, skills=UNSET, retrieval=UNSET, env=UNSET, prompt=UNSET)
    return Context(atdp=context.atdp, id=digest(msgspec.to_builtins(body)), body=body)


def _event(draft: EventDraft) -> EventDraft:
    tags = draft.m.tags if isinstance(draft.m, Metadata) else UNSET
    return EventDraft(
        atdp=draft.atdp,
        id=draft.id,
        trajectory_id=draft.trajectory_id,
        kind=draft.kind if not draft.kind.startswith("x.") or _SIMPLE.fullmatch(draft.kind) else "x.redaction_failed",
        time=draft.time,
        ctx=draft.ctx,
        y=Outcome(status=draft.y.status),
        turn=draft.turn,
        step=draft.step,
        parent_id=draft.parent_id,
        causes=draft.causes,
        actor=Actor(type=draft.actor.type) if isinstance(draft.actor, Actor) else UNSET,
        duration_ms=draft.duration_ms,
        a=Action() if draft.a is not UNSET else UNSET,
        m=Metadata(tags=_ours(tags)) if isinstance(draft.m, Metadata) else UNSET,
        replay=draft.replay,
        gov=_GOV,
        ext=_FAILED,
    )


def _annotation(draft: AnnotationDraft) -> AnnotationDraft:
    return AnnotationDraft(
        atdp=draft.atdp,
        id=draft.id,
        trajectory_id=draft.trajectory_id,
        kind=draft.kind,
        name=draft.name if _SIMPLE.fullmatch(draft.name) else "redaction_failed",
        targets=draft.targets,
        source=msgspec.structs.replace(draft.source, id=UNSET, version=UNSET),
        time=draft.time,
        value=draft.value,
        scale=draft.scale,
        patch=draft.patch,
        confidence=draft.confidence,
        optimizable=draft.optimizable,
        observed_at=draft.observed_at,
        supersedes=draft.supersedes,
        retracted=draft.retracted,
        ext=_FAILED,
    )


def _trajectory(draft: TrajectoryDraft) -> TrajectoryDraft:
    session = draft.session_id
    ext = draft.ext if isinstance(draft.ext, dict) else {}
    return TrajectoryDraft(
        atdp=draft.atdp,
        trajectory_id=draft.trajectory_id,
        time=draft.time,
        agent=draft.agent,
        gov=draft.gov,
        session_id=session if isinstance(session, str) and _SIMPLE.fullmatch(session) else UNSET,
        parent=draft.parent,
        ext={k: v for k, v in ext.items() if k in _OUR_EXT} | _FAILED,
    )


def _ours(tags: Any) -> Any:
    return {k: v for k, v in tags.items() if k in _OUR_TAGS} if isinstance(tags, dict) else UNSET
