"""Small drafts for store tests."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from atdp import clock
from atdp.canonical import digest
from atdp.records import (
    Agent,
    AnnotationDraft,
    Context,
    ContextBody,
    EventDraft,
    Gov,
    HarnessInfo,
    Message,
    Observation,
    Outcome,
    Part,
    Source,
    Target,
    TrajectoryDraft,
)
from services.proxy.drafts import Signal

_BODY = ContextBody(harness=HarnessInfo(name="support"))
CONTEXT = Context(atdp="1.0", id=digest(msgspec.to_builtins(_BODY)), body=_BODY)


def header(trajectory: str = "t1", session: str = "s1") -> TrajectoryDraft:
    return TrajectoryDraft(
        atdp="1.0",
        trajectory_id=trajectory,
        session_id=session,
        time=clock.now(),
        agent=Agent(name="support"),
        gov=Gov(tenant="a"),
    )


def event(id: str, trajectory: str = "t1", text: str = "hi", **more: Any) -> EventDraft:
    message = Message(role="user", parts=[Part(type="text", content=text)])
    fields: dict[str, Any] = {"kind": "user_message", "y": Outcome(status="ok"), **more}
    return EventDraft(
        atdp="1.0",
        id=id,
        trajectory_id=trajectory,
        time=clock.now(),
        ctx=CONTEXT.id,
        o=Observation(messages=[message]),
        **fields,
    )


def signal(id: str, kind: Literal["event", "trajectory", "session"], target: str, name: str = "helpful") -> Signal:
    annotation = AnnotationDraft(
        atdp="1.0",
        id=id,
        trajectory_id="pending",
        kind="reward",
        name=name,
        targets=[Target(trajectory_id="pending")],
        source=Source(kind="end_user"),
        time=clock.now(),
        value=1.0,
    )
    return Signal(target_kind=kind, target=target, agent="support", annotation=annotation)
