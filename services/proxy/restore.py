"""Sessions out of the log, after a restart: what an open trajectory says about how to go on."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Mapping
from typing import Any

import msgspec

from atdp import messages
from atdp.records import TrajectoryDraft
from registry.tenants import Key
from services.proxy.conversation import Seed
from services.proxy.engines.base import StorageFailed
from services.proxy.reader import StoreReader, TrajectoryRow
from services.proxy.rewording import Told
from services.proxy.sessions import PendingCall, Session, Step

_log = logging.getLogger(__name__)

_AT_MOST = 2000
"""Most recent open trajectories taken back a tenant: bounds the time to start."""

_CHAIN = ("seq", "prev_hash", "hash")


def restore(reader: StoreReader, keys: Mapping[str, Key], since: str) -> list[Session]:
    """The sessions whose trajectory is open and was used since then; oldest first.

    What can't be read is reported and left out: its session begins anew, and the others go on.
    """
    sessions: list[Session] = []
    for tenant in reader.tenants():
        for row in _open(reader, tenant, since):
            try:
                session = _session(reader, keys, row)
            except Exception:
                # whatever is wrong with one trajectory must not keep the gateway from starting
                _log.exception("session %s: %s can't be restored", row.session_id, row.trajectory_id)
                continue
            if session is not None:
                sessions.append(session)
    return sessions


def _open(reader: StoreReader, tenant: str, since: str) -> list[TrajectoryRow]:
    try:
        rows = reader.trajectories(tenant, since=since, limit=_AT_MOST)
    except StorageFailed:
        _log.exception("the sessions of %s can't be restored", tenant)
        return []
    return [row for row in reversed(rows) if row.closed is None]


def _session(reader: StoreReader, keys: Mapping[str, Key], row: TrajectoryRow) -> Session | None:
    records = reader.records(row.tenant, row.trajectory_id)
    header = {k: v for k, v in records[0].items() if k not in _CHAIN}
    key = keys.get(header.get("ext", {}).get("key", ""))
    if key is None or key.tenant != row.tenant or row.session_id is None or ("parent" in header and _mirrored(header)):
        return None
    session = Session(key, row.session_id, msgspec.convert(header, TrajectoryDraft), opened=True)
    for record in records[1:]:
        if record["record"] == "event":
            _replay(reader, row.tenant, session, record)
    return session


def _mirrored(header: dict[str, Any]) -> bool:
    return header["parent"].get("rel") == "branch"


def _replay(reader: StoreReader, tenant: str, session: Session, event: dict[str, Any]) -> None:
    """Let the session take one stored step again."""
    session.last_context = event["ctx"]
    if event["kind"] == "tool_call":
        session.calls.pop(event["a"].get("call_id"), None)
        if isinstance(call_id := event["a"].get("call_id"), str):
            session.results[call_id] = event["id"]
    if event["kind"] != "llm_call":
        return
    session.step = max(session.step, event.get("step", 0))
    session.last_call = event["id"]
    tags = event["m"]["tags"]
    if tags["role"] in ("champion", "canary"):
        session.version = tags["agent_version"]
    links = event.get("ext", {}).get("links")
    if event["y"]["status"] == "ok" and links is not None:
        _answered(session, event, links, main=tags.get("line", "main") == "main")
        _awaits(reader, tenant, session, event)


def _answered(session: Session, event: dict[str, Any], links: dict[str, Any], main: bool) -> None:
    """The fingerprints that the call was stored with say how the conversation goes on from it."""
    for id, piece in links["inputs"].items():
        session.seen[id] = bytes.fromhex(piece)
    for position, (exact, meaning) in enumerate(links["ends"]):
        end = Seed(bytes.fromhex(exact), bytes.fromhex(meaning), links["length"])
        step = Step(event["id"], end, None, event.get("turn", 0), position, None if position else _told(links))
        answer_id = event["ext"].get("response", {}).get("id") if position == 0 else None
        session.answered(step, answer_id, main and position == 0)
    if main:
        session.system = bytes.fromhex(links["system"])


def _told(links: dict[str, Any]) -> Told | None:
    if "told" not in links:
        return None
    asked, length, text, *calls = links["told"]
    return Told(bytes.fromhex(asked), length, bytes.fromhex(text), tuple(calls))


def _awaits(reader: StoreReader, tenant: str, session: Session, event: dict[str, Any]) -> None:
    """Tool calls whose results may come, and token ids that the next prompt may begin with."""
    asks = any(messages.tool_calls(answer) for answer in event["a"].get("messages", ()))
    if not asks and "tokens" not in event:
        return
    whole = reader.resolve(tenant, event)
    for answer in whole["a"]["messages"]:
        for call in messages.tool_calls(answer):
            if call.get("id"):
                pending = PendingCall(event["id"], call["name"], call["arguments"], event.get("step", 0))
                session.calls[call["id"]] = pending
    tokens = whole.get("tokens", {})
    prompt, completion = tokens.get("prompt_token_ids"), tokens.get("completion_token_ids")
    exact = isinstance(prompt, list) and isinstance(completion, list)
    if exact and not whole.get("ext", {}).get("tokens_incomplete"):
        session.tokens = (event["id"], array("i", prompt + completion))
