"""Where a report about a step goes: its session, the model's call it carries out, its place in the log.

Every boundary beside the model's ends here: `/v1/events`, MCP, A2A, traces. What is not the caller's
does not exist. A report is told once: its own id makes repeats harmless, and a call whose result has
come back in a request already is described beside that event, not stored as another.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from atdp.records import AnnotationDraft, Context, EventDraft
from registry.tenants import Key
from services.gateway import errors
from services.gateway.core import Gateway
from services.gateway.errors import ApiError
from services.proxy import reports
from services.proxy.calls import find_pending
from services.proxy.contexts import bare_context
from services.proxy.drafts import Content, InvalidDraft, StoreDraft
from services.proxy.engines.base import StorageFailed
from services.proxy.reports import Reported, report_id
from services.proxy.sessions import PendingCall, Session
from services.proxy.store import StoreUnavailable, open_reader
from services.proxy.tools import tool_context

_log = logging.getLogger(__name__)

Told = dict[str, Any]
"""What the caller is told: the event's `id` and `trajectory_id`."""


async def known(gateway: Gateway, key: Key, reported: Iterable[Reported]) -> dict[str, Told]:
    """The answers to reports that were stored before, by event id: their trajectory may have ended long ago.

    Only what an open session could not answer is looked up.
    """
    wanted = [
        report_id(key, item)
        for item in reported
        if item.id and ((session := _live(gateway, key, item)) is None or not session.opened or session.closed)
    ]
    found = await asyncio.to_thread(_find, gateway, key.tenant, wanted) if wanted else {}
    answers = {id: {"id": id, "trajectory_id": trajectory} for id, trajectory in found.items()}
    for item in reported:
        session = gateway.sessions.by_id(key, item.session_id) if item.session_id and item.id else None
        # looked at last: what was told meanwhile, or waits in the spool, is not to be told again either
        if session is not None and (told := session.told.get(id := report_id(key, item))):
            answers[id] = told
    return answers


def session_of(gateway: Gateway, key: Key, reported: Reported) -> Session:
    """The session a report belongs to; raises 404 for a trajectory that is not open and 400 when nothing is named."""
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
    if reported.session_id is not None:
        return named_session(gateway, key, reported.session_id)
    waiting = waiting_session(gateway, key, reported)
    if waiting is not None:
        return waiting
    if reported.session_hint is None:
        raise errors.malformed("An event needs session_id or trajectory_id.", "session_id")
    return named_session(gateway, key, reported.session_hint)


def named_session(gateway: Gateway, key: Key, session_id: str) -> Session:
    """The session of this name, a new one if need be."""
    return gateway.sessions.named(key, gateway.train_policy(key.tenant), session_id)


def waiting_session(gateway: Gateway, key: Key, reported: Reported) -> Session | None:
    """The key's most recent session whose model made this call and still waits for its result."""
    for session in gateway.sessions.waiting(key):
        if find_pending(session.calls, reported.call_id, reported.name, reported.arguments, reported.server):
            return session
    return None


@dataclass(frozen=True)
class Again:
    """A report about a step that is an event already: what only the report knows goes beside that event."""

    reported: Reported
    event_id: str


@dataclass(frozen=True)
class Ready:
    """An event that is complete but for its place: `fields` are an `EventDraft`'s without trajectory and context."""

    fields: dict[str, Any]
    context: Context


Item = Reported | Again | Ready


async def store_reports(gateway: Gateway, session: Session, items: Sequence[Item]) -> list[Told]:
    """Make reports about one session durable; gives one answer a report.

    Raises a 400 `ApiError` for a report that lacks what its kind needs and 503 when nothing was stored.
    """
    drafts: list[StoreDraft] = [] if session.opened else [session.header]
    contexts = [_context(gateway, session, item, drafts) for item in items]
    calls = dict(session.calls)
    try:
        placing = [_place(session, item, ctx, calls) for item, ctx in zip(items, contexts, strict=True)]
    except (ValueError, msgspec.ValidationError) as error:
        raise errors.malformed(str(error)) from error
    taken = {id: call for id, call in session.calls.items() if id not in calls}
    _take(session, taken)
    try:
        stored = await gateway.store.append(session.key.tenant, [*drafts, *(each.draft for each in placing)])
    except InvalidDraft as error:
        gateway.forget_log(session)
        raise errors.not_recording() from error
    except StoreUnavailable as error:
        _give_back(session, taken)
        raise errors.unrecorded(error) from error
    gateway.contexts.mark_stored(session.key.tenant, drafts, stored)
    answers = []
    for each, result in zip(placing, stored[len(drafts) :], strict=True):
        answers.append(_told(each.draft, result.trajectory_id or session.trajectory_id))
        if answers[-1]["trajectory_id"] == session.trajectory_id:
            _stored(session, each)
        if each.reported is not None and each.reported.id:
            session.told[report_id(session.key, each.reported)] = answers[-1]
    events = [each.draft for each in placing if isinstance(each.draft, EventDraft)]
    gateway.recent.note(session.key, session.session_id, events)
    gateway.harvester.offer(session.key.tenant, events)
    if session.closed:
        gateway.harvester.closed(session.key.tenant, [session.trajectory_id], "outcome")
    return answers


@dataclass(frozen=True)
class _Placed:
    """A report and what is stored for it."""

    draft: EventDraft | AnnotationDraft
    reported: Reported | None = None
    call_id: str | None = None
    """The model's call that it carried out, finally."""


def _place(session: Session, item: Item, context_id: str, calls: dict[str, PendingCall]) -> _Placed:
    """The draft of a report; a call that it carried out is taken from `calls`."""
    if isinstance(item, Ready):
        fields = {"atdp": "1.0", "trajectory_id": session.trajectory_id, "ctx": context_id, **item.fields}
        return _Placed(msgspec.convert(fields, EventDraft))
    if isinstance(item, Again):
        return _Placed(reports.description(session, item.reported, item.event_id), item.reported)
    call_id = find_pending(calls, item.call_id, item.name, item.arguments, item.server)
    if call_id is None:
        if item.call_id is not None and item.call_id in session.results:
            return _Placed(reports.description(session, item, session.results[item.call_id]), item)
        return _Placed(reports.event(session, item, context_id, None, None), item, item.call_id)
    joined_by = "call_id" if item.call_id else "arguments"
    joined = msgspec.structs.replace(item, call_id=call_id)
    draft = reports.event(session, joined, context_id, calls[call_id], joined_by)
    if not item.unfinished:
        del calls[call_id]
    return _Placed(draft, item, None if item.unfinished else call_id)


def _take(session: Session, calls: dict[str, PendingCall]) -> None:
    """These calls are being recorded: an equal one at the same time is another, and their results are no events."""
    for id in calls:
        del session.calls[id]
        session.reported.add(id)


def _give_back(session: Session, calls: dict[str, PendingCall]) -> None:
    """They could not be recorded: they wait as before."""
    session.reported.difference_update(calls)
    session.calls = {**calls, **session.calls}


def _context(gateway: Gateway, session: Session, item: Item, drafts: list[StoreDraft]) -> str:
    """What the context that a step was taken under is called; what the log lacks of it is added to the drafts."""
    contents: list[Content] = []
    if isinstance(item, Ready):
        context = item.context
    elif isinstance(item, Reported) and item.tool is not None:
        context, content = tool_context(session.key.agent, item.tool, item.server)
        contents = [content]
    elif session.last_context is not None:
        return session.last_context
    else:
        context = bare_context(session.key.agent)
    drafts.extend(gateway.contexts.unstored(session.key.tenant, context, contents))
    return gateway.contexts.named(session.key.tenant, context)


def _stored(session: Session, placed: _Placed) -> None:
    """The report is durable: let the session go on from it."""
    session.opened = True
    if placed.call_id is not None and isinstance(placed.draft, EventDraft):
        session.reported.add(placed.call_id)
        session.results[placed.call_id] = placed.draft.id
    if isinstance(placed.draft, EventDraft) and placed.draft.kind == "outcome":
        session.closed = True


def _told(draft: EventDraft | AnnotationDraft, trajectory_id: str) -> Told:
    if isinstance(draft, AnnotationDraft):
        return {"id": draft.targets[0].event_id, "trajectory_id": trajectory_id, "annotation_id": draft.id}
    return {"id": draft.id, "trajectory_id": trajectory_id}


def _live(gateway: Gateway, key: Key, item: Reported) -> Session | None:
    return gateway.sessions.by_id(key, item.session_id) if item.session_id else None


def _find(gateway: Gateway, tenant: str, event_ids: list[str]) -> dict[str, str]:
    """The trajectories of stored events; what can't be read is left out, and its report is refused if it ended."""
    reader = open_reader(gateway.settings)
    try:
        records = {id: reader.record(tenant, id) for id in event_ids}
    except StorageFailed as error:
        _log.warning("the log of %s can't be read: %s", tenant, error)
        return {}
    finally:
        reader.close()
    return {id: record["trajectory_id"] for id, record in records.items() if record is not None}
