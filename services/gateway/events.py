"""`POST /v1/events` and `POST /v1/sessions/{id}/end`: steps the agent took that no model call shows."""

from __future__ import annotations

import asyncio
import logging
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Struct

from atdp import clock
from atdp.ids import derived_id, new_id
from atdp.records import (
    Action,
    Actor,
    Cause,
    Error,
    EventDraft,
    Message,
    Metadata,
    Observation,
    Outcome,
    Part,
    Replay,
    Status,
)
from registry.tenants import Key
from services.gateway import errors
from services.gateway.asgi import Request, Send, respond_json
from services.gateway.core import Gateway
from services.gateway.errors import ApiError
from services.proxy.contexts import bare_context
from services.proxy.drafts import InvalidDraft, StoreDraft
from services.proxy.engines.base import StorageFailed
from services.proxy.sessions import MAX_ID_LENGTH, Session
from services.proxy.store import StoreUnavailable, open_reader

_log = logging.getLogger(__name__)


class Reported(Struct, forbid_unknown_fields=True):
    """One event, as the API takes it."""

    kind: Literal["tool_call", "user_message", "outcome"]
    session_id: str | None = None
    trajectory_id: str | None = None
    id: str | None = None
    """Makes sending it again harmless."""
    name: str | None = None
    call_id: str | None = None
    arguments: Any = None
    result: Any = None
    text: str | None = None
    status: Status = "ok"
    error: str | None = None
    reason: str | None = None
    duration_ms: Annotated[float, msgspec.Meta(ge=0)] | None = None
    effect: Literal["none", "read", "idempotent_write", "write", "irreversible"] = "write"


async def events(gateway: Gateway, request: Request, send: Send) -> None:
    """Store one event; 202 with its id once it is durable."""
    key = gateway.authenticate(request, "feedback")
    gateway.require_recording()
    parsed, _ = await request.json(gateway.settings.gateway.max_body_bytes)
    try:
        reported = msgspec.convert(parsed, Reported)
    except msgspec.ValidationError as error:
        raise errors.malformed(f"{error}.") from error
    _check_ids(reported)
    answer = await _told(gateway, key, reported)
    if answer is None:
        answer = await _store(gateway, _session(gateway, key, reported), reported)
    await respond_json(send, 202, answer)


async def end_session(gateway: Gateway, request: Request, send: Send, session_id: str) -> None:
    """Close a session's trajectory: an `outcome` event without a verdict."""
    key = gateway.authenticate(request, "feedback")
    gateway.require_recording()
    session = gateway.sessions.by_id(key, session_id)
    if session is None:
        raise ApiError(404, f"No open session {session_id!r}.", param="session_id", code="session_not_found")
    if session.closed:
        await respond_json(send, 200, {"trajectory_id": session.trajectory_id, "closed": True})
        return
    ended = Reported(kind="outcome", session_id=session_id, status="unknown", reason="ended")
    await respond_json(send, 200, {**await _store(gateway, session, ended), "closed": True})


def _check_ids(reported: Reported) -> None:
    ids = (reported.session_id, reported.trajectory_id, reported.id)
    if any(id is not None and len(id) > MAX_ID_LENGTH for id in ids):
        raise errors.malformed(f"Ids have {MAX_ID_LENGTH} characters at most.")


def _event_id(key: Key, reported: Reported) -> str:
    """A client's id is its own: two agents using the same one are two events."""
    return derived_id("ev", key.tenant, key.agent, reported.id) if reported.id else new_id("ev")


async def _told(gateway: Gateway, key: Key, reported: Reported) -> dict[str, Any] | None:
    """The answer to an event that was stored before: its trajectory may have ended, and begins no other."""
    if not reported.id:
        return None
    id = _event_id(key, reported)
    trajectory = await asyncio.to_thread(_find, gateway, key.tenant, id)
    # looked at last: what was told meanwhile, or waits in the spool, is not to be told again either
    session = gateway.sessions.by_id(key, reported.session_id) if reported.session_id else None
    if trajectory is None and session is not None:
        trajectory = session.told.get(id)
    return None if trajectory is None else {"id": id, "trajectory_id": trajectory}


def _find(gateway: Gateway, tenant: str, event_id: str) -> str | None:
    reader = open_reader(gateway.settings)
    try:
        record = reader.record(tenant, event_id)
    except StorageFailed as error:
        # the store says itself whether it can write; this was only to answer a repetition better
        _log.warning("the log of %s can't be read: %s", tenant, error)
        return None
    finally:
        reader.close()
    return record["trajectory_id"] if record is not None else None


def _session(gateway: Gateway, key: Key, reported: Reported) -> Session:
    if reported.trajectory_id is not None:
        session = gateway.sessions.by_trajectory(key, reported.trajectory_id)
        if session is None:
            raise ApiError(
                404,
                f"No open trajectory {reported.trajectory_id!r}; send a late verdict to /v1/feedback.",
                param="trajectory_id",
                code="trajectory_not_found",
            )
        return session
    if not reported.session_id:
        raise errors.malformed("An event needs session_id or trajectory_id.", "session_id")
    return gateway.sessions.find(key, gateway.train_policy(key.tenant), reported.session_id, [], b"", False)


async def _store(gateway: Gateway, session: Session, reported: Reported) -> dict[str, Any]:
    drafts: list[StoreDraft] = [] if session.opened else [session.header]
    context_id = session.last_context
    if context_id is None:
        context = bare_context(session.key.agent)
        drafts.append(context)
        context_id = context.id
    event = _event(session, reported, context_id)
    drafts.append(event)
    try:
        await gateway.store.append(session.key.tenant, drafts)
    except InvalidDraft as error:
        gateway.forget_log(session)
        raise errors.not_recording() from error
    except StoreUnavailable as error:
        raise errors.not_recording() from error
    session.opened = True
    if reported.id:
        session.told[event.id] = event.trajectory_id
    if reported.kind == "tool_call" and reported.call_id:
        session.calls.pop(reported.call_id, None)
        session.reported.add(reported.call_id)
    if reported.kind == "outcome":
        session.closed = True
    return {"id": event.id, "trajectory_id": event.trajectory_id}


def _event(session: Session, reported: Reported, context_id: str) -> EventDraft:
    fields: dict[str, Any] = {}
    pending = session.calls.get(reported.call_id) if reported.call_id else None
    match reported.kind:
        case "tool_call":
            if not (reported.name or pending):
                raise errors.malformed("A tool_call needs the tool's name.", "name")
            arguments = reported.arguments if reported.arguments is not None or not pending else pending.arguments
            fields["actor"] = Actor(type="agent")
            fields["a"] = Action(
                name=reported.name or (pending.name if pending else ""),
                call_id=reported.call_id,
                arguments=UNSET if arguments is None else arguments,
            )
            fields["replay"] = Replay(class_="approximate", boundary="tenant", effect=reported.effect, stub=True)
            if pending:
                fields.update(
                    parent_id=pending.event_id,
                    step=pending.step,
                    causes=[Cause(id=pending.event_id, rel="decided_by")],
                )
        case "user_message":
            if reported.text is None:
                raise errors.malformed("A user_message needs its text.", "text")
            message = Message(role="user", parts=[Part(type="text", content=reported.text)])
            fields["actor"] = Actor(type="user")
            fields["o"] = Observation(messages=[message])
    error = UNSET if reported.error is None else Error(type="reported", message=reported.error)
    tags = {"agent": session.key.agent, "purpose": session.key.purpose}
    if session.version is not None:
        tags["agent_version"] = session.version
    key = session.key
    return EventDraft(
        atdp="1.0",
        id=_event_id(key, reported),
        trajectory_id=session.trajectory_id,
        kind=reported.kind,
        time=clock.now(),
        ctx=context_id,
        duration_ms=UNSET if reported.duration_ms is None else reported.duration_ms,
        y=Outcome(
            status=reported.status,
            result=UNSET if reported.result is None else reported.result,
            error=error,
            reason=UNSET if reported.reason is None else reported.reason,
        ),
        m=Metadata(tags=tags),
        **fields,
    )
