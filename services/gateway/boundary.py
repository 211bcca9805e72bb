"""Where a report about a step goes: its session, the model's call it carries out, its place in the log.

Every boundary beside the model's ends here: `/v1/events`, MCP, A2A, traces. What is not the caller's
does not exist. A report is told once: its own id makes repeats harmless, and a call whose result has
come back in a request already is described beside that event, not stored as another.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from atdp.records import AnnotationDraft, EventDraft
from registry.tenants import Key
from services.gateway import errors
from services.gateway.core import Gateway
from services.gateway.errors import ApiError
from services.proxy import reports
from services.proxy.calls import find_pending
from services.proxy.contexts import bare_context
from services.proxy.drafts import InvalidDraft, StoreDraft
from services.proxy.engines.base import StorageFailed
from services.proxy.reports import Reported, report_id
from services.proxy.sessions import Session
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


async def store_reports(gateway: Gateway, session: Session, items: Sequence[Reported]) -> list[Told]:
    """Make reports about one session durable; gives one answer a report.

    Raises a 400 `ApiError` for a report that lacks what its kind needs and 503 when nothing was stored.
    """
    drafts: list[StoreDraft] = [] if session.opened else [session.header]
    contexts = [_context(gateway, session, item, drafts) for item in items]
    events: list[EventDraft | AnnotationDraft] = []
    calls = dict(session.calls)
    taken: list[str | None] = []
    for item, context_id in zip(items, contexts, strict=True):
        call_id = find_pending(calls, item.call_id, item.name, item.arguments, item.server)
        try:
            if call_id is None and item.call_id is not None and item.call_id in session.results:
                events.append(reports.description(session, item, session.results[item.call_id]))
            else:
                joined = None if call_id is None else ("call_id" if item.call_id else "arguments")
                item = item if call_id is None else msgspec.structs.replace(item, call_id=call_id)
                events.append(reports.event(session, item, context_id, calls.get(call_id or ""), joined))
        except ValueError as error:
            raise errors.malformed(str(error)) from error
        if call_id is not None and not item.unfinished:
            calls.pop(call_id)
        taken.append(call_id or item.call_id)
    try:
        stored = await gateway.append(session.key.tenant, [*drafts, *events])
    except InvalidDraft as error:
        gateway.forget_log(session)
        raise errors.not_recording() from error
    except StoreUnavailable as error:
        raise errors.not_recording() from error
    for context_id in contexts:
        gateway.contexts.mark_stored(session.key.tenant, context_id)
    placed = [item.trajectory_id or session.trajectory_id for item in stored[len(drafts) :]]
    answers = [_told(draft, trajectory) for draft, trajectory in zip(events, placed, strict=True)]
    for item, draft, call_id, answer in zip(items, events, taken, answers, strict=True):
        if answer["trajectory_id"] == session.trajectory_id:
            _stored(session, item, draft, call_id)
        if item.id:
            session.told[report_id(session.key, item)] = answer
    gateway.harvester.offer(session.key.tenant, [event for event in events if isinstance(event, EventDraft)])
    if session.closed:
        gateway.harvester.closed(session.key.tenant, [session.trajectory_id], "outcome")
    return answers


def _context(gateway: Gateway, session: Session, item: Reported, drafts: list[StoreDraft]) -> str:
    """The id of the context a step was taken under; what the log lacks of it is added to the drafts."""
    if item.tool is not None:
        context, content = tool_context(session.key.agent, item.tool, item.server)
        drafts.extend(gateway.contexts.unstored(session.key.tenant, context, [content]))
        return context.id
    if session.last_context is not None:
        return session.last_context
    context = bare_context(session.key.agent)
    drafts.extend(gateway.contexts.unstored(session.key.tenant, context, []))
    return context.id


def _stored(session: Session, item: Reported, draft: EventDraft | AnnotationDraft, call_id: str | None) -> None:
    """The report is durable: let the session go on from it."""
    session.opened = True
    if call_id is not None and isinstance(draft, EventDraft) and not item.unfinished:
        session.calls.pop(call_id, None)
        session.reported.add(call_id)
        session.results[call_id] = draft.id
    if item.kind == "outcome":
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
