"""`POST /v1/events` and `POST /v1/sessions/{id}/end`: steps the agent took that no model call shows.

One event or a list. A list is checked whole before any of it is stored; a 202 means that all of it
survives a crash right after.
"""

from __future__ import annotations

from typing import Any

from registry.tenants import Key
from services.gateway import errors
from services.gateway.asgi import Request, Send, respond_json
from services.gateway.boundary import Told, known, session_of, store_reports
from services.gateway.core import Gateway
from services.gateway.errors import ApiError
from services.proxy.reports import Reported, read, report_id
from services.proxy.sessions import Session

_AT_MOST = 1000
"""Events in one request."""


async def events(gateway: Gateway, request: Request, send: Send) -> None:
    """Store what is reported; 202 with the ids once it is durable: an object for one, `{"events": […]}` for a list."""
    key = gateway.authenticate(request, "feedback")
    gateway.require_recording(key.tenant)
    parsed, _ = await request.json(gateway.settings.gateway.max_body_bytes)
    items = parsed if isinstance(parsed, list) else [parsed]
    if not 0 < len(items) <= _AT_MOST:
        raise errors.malformed(f"Send between 1 and {_AT_MOST} events at once.")
    reported = [_read(item, index if isinstance(parsed, list) else None) for index, item in enumerate(items)]
    for item in reported:
        if gateway.names.name(key.tenant, item.kind) != item.kind:
            raise errors.malformed("A kind names a sort of step and holds nothing that must be hidden.", "kind")
    answers = await store_all(gateway, key, reported)
    await respond_json(send, 202, {"events": answers} if isinstance(parsed, list) else answers[0])


async def end_session(gateway: Gateway, request: Request, send: Send, session_id: str) -> None:
    """Close a session's trajectory: an `outcome` event without a verdict."""
    key = gateway.authenticate(request, "feedback")
    gateway.require_recording(key.tenant)
    session = gateway.sessions.by_id(key, session_id)
    await gateway.confirmed(key, [session_id])
    if session is None:
        raise ApiError(404, f"No open session {session_id!r}.", param="session_id", code="session_not_found")
    if session.closed:
        await respond_json(send, 200, {"trajectory_id": session.trajectory_id, "closed": True})
        return
    ended = Reported(kind="outcome", session_id=session_id, status="unknown", reason="ended")
    (told,) = await store_reports(gateway, session, [ended])
    await respond_json(send, 200, {**told, "closed": True})


async def store_all(gateway: Gateway, key: Key, reported: list[Reported]) -> list[Told]:
    """Store reports about any number of sessions, each session's in order; what was stored before is not again.

    Raises before anything is stored when one of them names a trajectory that is not open, or no session.
    """
    named = [item.session_id for item in reported if item.session_id is not None]
    await gateway.confirmed(key, named if len(named) == len(reported) else None)
    answers = await known(gateway, key, reported)
    new = [item for item in reported if not item.id or report_id(key, item) not in answers]
    for item in new:
        if item.trajectory_id is not None or (item.session_id is None and item.session_hint is None):
            session_of(gateway, key, item)
    told: dict[int, Told] = {}
    group: list[Reported] = []
    session: Session | None = None
    for item in new:
        of = session_of(gateway, key, item)
        if group and (of is not session or group[-1].kind == "outcome"):
            assert session is not None
            _tell(told, group, await store_reports(gateway, session, group))
            group = []
            of = session_of(gateway, key, item)
        session = of
        group.append(item)
    if session is not None:
        _tell(told, group, await store_reports(gateway, session, group))
    return [told.get(id(item)) or answers[report_id(key, item)] for item in reported]


def _tell(told: dict[int, Told], group: list[Reported], answers: list[Told]) -> None:
    told.update((id(item), answer) for item, answer in zip(group, answers, strict=True))


def _read(item: Any, index: int | None) -> Reported:
    where = "" if index is None else f"Event {index}: "
    try:
        return read(item)
    except ValueError as error:
        raise errors.malformed(f"{where}{str(error).rstrip('.')}.") from error
