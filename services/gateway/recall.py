"""Going on from an answer of long ago, by its provider's id.

Sessions leave the memory when they are idle; the log knows which call had which answer. It is asked only
for an id that no session in memory has, and only about the key's own tenant, agent and purpose.
"""

from __future__ import annotations

import asyncio
import logging
from typing import NamedTuple

from registry.tenants import Key
from services.gateway.core import Gateway
from services.proxy.conversation import Seed
from services.proxy.engines.base import StorageFailed
from services.proxy.reader import StoreReader
from services.proxy.sessions import Step

_log = logging.getLogger(__name__)


class _Found(NamedTuple):
    step: Step
    session_id: str
    trajectory_id: str


async def recall(gateway: Gateway, key: Key, answer_id: str) -> None:
    """Bring the session of an answer back, if it ever was this key's tenant's; else do nothing."""
    if gateway.sessions.step(key, answer_id) is not None:
        return
    try:
        found = await asyncio.to_thread(_find, gateway.reader, key, answer_id)
    except StorageFailed as error:
        _log.warning("the log of %s can't say which call answered %s: %s", key.tenant, answer_id, error)
        return
    if found is not None:
        train = gateway.train_policy(key.tenant)
        gateway.sessions.recalled(key, train, found.session_id, found.trajectory_id, found.step, answer_id)


def _find(reader: StoreReader, key: Key, answer_id: str) -> _Found | None:
    event_id = reader.answer(key.tenant, answer_id)
    event = reader.record(key.tenant, event_id) if event_id is not None else None
    links = event.get("ext", {}).get("links") if event is not None else None
    if event is None or links is None:
        return None
    tags = event["m"]["tags"]
    session_id = reader.session_of(key.tenant, event["trajectory_id"])
    if session_id is None or (tags["agent"], tags["purpose"]) != (key.agent, key.purpose):
        return None
    exact, meaning = links["ends"][0]
    end = Seed(bytes.fromhex(exact), bytes.fromhex(meaning), links["length"])
    return _Found(Step(event["id"], end, None, event.get("turn", 0)), session_id, event["trajectory_id"])
