"""`/rl/*` and `/export_trajectories`: AReaL's proxy, so that its users change the base URL and nothing else.

What it loses is kept: a second reward supersedes the first and both stay, an export can be repeated until
its cursor is acknowledged, and a session's key is good after its end and its export.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct

from atdp import clock
from atdp.ids import new_id
from atdp.records import AnnotationDraft, Source, Target
from registry import control, rl_sessions
from registry.rl_sessions import RlSession
from registry.tenants import Key, RegistryError
from services.gateway import errors
from services.gateway.asgi import MAX_DEPTH, Request, Send, respond_json
from services.gateway.boundary import store_reports
from services.gateway.core import Gateway
from services.gateway.errors import ApiError
from services.proxy import rl_export
from services.proxy.drafts import Signal
from services.proxy.reports import Reported
from services.proxy.store import StoreReader, StoreUnavailable, open_reader

_MOST = 64
"""Sessions in one group or one export."""


class StartSession(Struct):
    task_id: Annotated[str, Meta(pattern="^[!-~]{1,150}$")] = "task"
    api_key: str | None = None
    """One that was given out before, to go on under it."""
    group_size: Annotated[int, Meta(ge=1, le=_MOST)] = 1


class SetReward(Struct):
    reward: float
    interaction_id: str | None = None


class Export(Struct):
    session_id: str | None = None
    session_ids: list[str] = []
    consumer: str | None = None
    """Give the ended sessions that this consumer has not acknowledged."""
    ack: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    """The cursor of an earlier answer: never give those again."""
    limit: Annotated[int, Meta(ge=1, le=_MOST)] = 16
    discount: float = 1.0
    style: Literal["individual"] = "individual"


async def rl(gateway: Gateway, request: Request, send: Send, action: str) -> None:
    """One of the `/rl/` actions."""
    handler = _ACTIONS.get(action)
    if handler is None:
        raise ApiError(404, f"Unknown request URL: {request.method} {request.path}.", code="unknown_url")
    if request.method != "POST":
        raise ApiError(405, f"Use POST for {request.path}.", code="method_not_allowed")
    await handler(gateway, request, send)


async def export_trajectories(gateway: Gateway, request: Request, send: Send) -> None:
    """Interactions of sessions by id, or of the next ended ones of a consumer; the same until it is acknowledged."""
    key = gateway.authenticate(request, "infer")
    if _under_a_session(gateway, request):
        raise errors.forbidden("export")
    asked = await _read(gateway, request, Export)
    if asked.consumer is not None:
        asked.consumer = gateway.names.name(key.tenant, asked.consumer)
    answer = await asyncio.to_thread(_export, gateway, key, asked)
    await respond_json(send, 200, answer)


async def _start_session(gateway: Gateway, request: Request, send: Send) -> None:
    key = gateway.authenticate(request, "infer")
    if _under_a_session(gateway, request):
        raise errors.forbidden("start sessions")
    gateway.require_recording(key.tenant)
    asked = await _read(gateway, request, StartSession)
    asked.task_id = gateway.names.name(key.tenant, asked.task_id)
    try:
        made = await asyncio.to_thread(_begin, gateway, key, asked)
    except rl_sessions.KeyInUse as error:
        raise ApiError(409, str(error), code="key_in_use") from error
    except RegistryError as error:
        raise errors.malformed(f"{error}.", "api_key") from error
    for session, _ in made:
        gateway.rl.know(session)
    members = [
        {"session_id": session.session_id, "api_key": secret, "session_api_key": secret} for session, secret in made
    ]
    answer = {**members[0], "group_id": made[0][0].group_id, "sessions": members}
    await respond_json(send, 201, answer)


def _begin(gateway: Gateway, key: Key, asked: StartSession) -> list[tuple[RlSession, str]]:
    group = new_id("gr") if asked.group_size > 1 else None
    with gateway.rl.connection() as connection, control.transaction(connection):
        return [
            rl_sessions.start(connection, key, asked.task_id, group, asked.api_key if index == 0 else None)
            for index in range(asked.group_size)
        ]


async def _set_reward(gateway: Gateway, request: Request, send: Send) -> None:
    key, session_id = _speaker(gateway, request)
    gateway.require_recording(key.tenant)
    asked = await _read(gateway, request, SetReward)
    await gateway.confirmed(key, [session_id])
    calls, rewards = await asyncio.to_thread(_recorded, gateway, key, session_id)
    if not calls:
        raise errors.malformed("No interactions in session")
    wanted = asked.interaction_id
    call = calls[-1] if wanted is None else next(
        (each for each in reversed(calls) if wanted in (each["id"], rl_export.interaction_id(each))), None
    )  # fmt: skip
    if call is None:
        raise errors.malformed(f"Interaction {wanted} not found", "interaction_id")
    before = rewards.get(call["id"])
    if before is None or before[0] != asked.reward:
        signal = _reward(key, call["id"], asked.reward, None if before is None else before[1])
        try:
            await gateway.store.append(key.tenant, [signal])
        except StoreUnavailable as error:
            raise errors.unrecorded(error) from error
    await respond_json(send, 200, {"message": "success"})


async def _end_session(gateway: Gateway, request: Request, send: Send) -> None:
    key, session_id = _speaker(gateway, request)
    gateway.require_recording(key.tenant)
    await gateway.confirmed(key, [session_id])
    calls, _ = await asyncio.to_thread(_recorded, gateway, key, session_id)
    session = gateway.sessions.by_id(key, session_id)
    if session is not None and session.opened and not session.closed:
        await store_reports(gateway, session, [Reported(kind="outcome", session_id=session_id, reason="ended")])
    await asyncio.to_thread(_ended, gateway, key, session_id)
    await respond_json(send, 200, {"message": "success", "interaction_count": len(calls)})


def _ended(gateway: Gateway, key: Key, session_id: str) -> None:
    with gateway.rl.connection() as connection:
        rl_sessions.end(connection, key, session_id)


def _under_a_session(gateway: Gateway, request: Request) -> bool:
    """Was the request made under a session's own key?"""
    return gateway.rl.speaker(request.secret(), gateway.control.picture.keys) is not None


def _speaker(gateway: Gateway, request: Request) -> tuple[Key, str]:
    found = gateway.rl.speaker(request.secret(), gateway.control.picture.keys)
    if found is None:
        raise ApiError(401, "Invalid or expired session API key.", code="invalid_api_key")
    return found


async def _read(gateway: Gateway, request: Request, type: Any) -> Any:
    body = await request.body(gateway.settings.gateway.max_body_bytes)
    try:
        return msgspec.json.decode(body or b"{}", type=type)
    except msgspec.DecodeError as error:
        raise errors.malformed(f"{error}.") from error
    except RecursionError as error:
        raise errors.too_deep(MAX_DEPTH) from error


def _reward(key: Key, event_id: str, value: float, superseded: str | None) -> Signal:
    annotation = AnnotationDraft(
        atdp="1.0",
        id=new_id("an"),
        trajectory_id="pending",
        kind="reward",
        name=rl_export.REWARD,
        targets=[Target(trajectory_id="pending")],
        source=Source(kind="environment", id="rl"),
        time=clock.now(),
        value=value,
        optimizable=True,
        supersedes=UNSET if superseded is None else superseded,
    )
    return Signal(target_kind="event", target=event_id, agent=key.agent, annotation=annotation, purpose=key.purpose)


# -- what was recorded


def _recorded(gateway: Gateway, key: Key, session_id: str) -> tuple[list[dict[str, Any]], dict[str, tuple[float, str]]]:
    """A session's model calls that were answered, over all its trajectories, and their rewards."""
    reader = open_reader(gateway.settings)
    try:
        records = [record for chain in _chains(reader, key, session_id) for record in chain]
    finally:
        reader.close()
    return [record for record in records if _answered(record)], rl_export.rewards_of(records)


def _chains(reader: StoreReader, key: Key, session_id: str) -> list[list[dict[str, Any]]]:
    """The chains of a session's trajectories, oldest first."""
    rows = [row for row in reader.trajectories(key.tenant, key.agent) if row.session_id == session_id]
    chains = [reader.records(key.tenant, row.trajectory_id) for row in reversed(rows)]
    return [chain for chain in chains if chain[0].get("ext", {}).get("purpose", "serve") == key.purpose]


def _answered(record: dict[str, Any]) -> bool:
    return record["record"] == "event" and record["kind"] == "llm_call" and record["y"]["status"] == "ok"


def _export(gateway: Gateway, key: Key, asked: Export) -> dict[str, Any]:
    with gateway.rl.connection() as connection:
        if asked.ack is not None:
            if asked.consumer is None:
                raise errors.malformed("An acknowledgement names its consumer.", "consumer")
            rl_sessions.acknowledge(connection, key, asked.consumer, asked.ack)
        named = [*([asked.session_id] if asked.session_id else []), *asked.session_ids]
        if named:
            found = [rl_sessions.find(connection, key, id) for id in named[:_MOST]]
            missing = [id for id, session in zip(named, found, strict=False) if session is None]
            if missing:
                raise ApiError(404, f"Session {missing[0]} not found", code="session_not_found")
            sessions = [session for session in found if session is not None]
        elif asked.consumer is not None:
            sessions = rl_sessions.ended_after(connection, key, asked.consumer, asked.limit)
        else:
            raise errors.malformed("Name session_id, session_ids or a consumer.", "session_id")
    exported = {session.session_id: _interactions(gateway, key, session, asked.discount) for session in sessions}
    together = {id: interaction for found, _ in exported.values() for id, interaction in found.items()}
    listed = [
        {"session_id": s.session_id, "task_id": s.task_id, "group_id": s.group_id,
         "interactions": list(exported[s.session_id][0]), "withheld": exported[s.session_id][1]}
        for s in sessions
    ]  # fmt: skip
    cursor = max((session.ended or 0 for session in sessions), default=0)
    return {"interactions": together, "sessions": listed, "cursor": cursor}


def _interactions(gateway: Gateway, key: Key, session: RlSession, discount: float) -> tuple[dict[str, Any], int]:
    """A session's interactions, and how many may not be trained on."""
    reader = open_reader(gateway.settings)
    found: dict[str, Any] = {}
    withheld = 0
    try:
        for chain in _chains(reader, key, session.session_id):
            calls = [record for record in chain if _answered(record)]
            if not rl_export.trainable(chain):
                withheld += len(calls)
                continue
            whole = [{**reader.resolve(key.tenant, call), "parent": _prefix(call)} for call in calls]
            found |= rl_export.interactions(whole, rl_export.rewards_of(chain), discount)
    finally:
        reader.close()
    return found, withheld


def _prefix(call: dict[str, Any]) -> str | None:
    observed = call.get("o", {}).get("messages")
    return observed.get("prefix") if isinstance(observed, dict) else None


_ACTIONS: dict[str, Callable[[Gateway, Request, Send], Awaitable[None]]] = {
    "start_session": _start_session,
    "set_reward": _set_reward,
    "end_session": _end_session,
}
