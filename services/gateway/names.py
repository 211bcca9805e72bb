"""What a request names at its provider must be its tenant's own, for several may share one account there.

A tenant's own is what an answer to it has told of: such ids are kept beside the log, as those of the answers are.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable
from typing import Any

from registry.tenants import Key
from services.gateway import errors
from services.gateway.core import Gateway
from services.proxy.clients import CONTROL, MAX_ID_LENGTH
from services.proxy.dialects import Dialect
from services.proxy.drafts import Answer
from services.proxy.engines.base import StorageFailed
from services.proxy.store import StoreUnavailable


async def foreign(gateway: Gateway, key: Key, dialect: Dialect, parsed: Any) -> str | None:
    """The first id in a request that its tenant was never told; None when there is none."""
    return await unknown(gateway, key.tenant, dialect.names(parsed) if isinstance(parsed, dict) else ())


def peers_id(*place: str, id: str) -> str:
    """What an id that a tool server or an agent gave is remembered under, beside the ids of models' answers.

    Servers give ids of any length and with any characters; not all of them can name a row.
    """
    if len(id) > MAX_ID_LENGTH or CONTROL.search(id):
        id = hashlib.blake2b(id.encode("utf-8", "surrogatepass"), digest_size=32).hexdigest()
    return ":".join((*place, id))


async def tell(gateway: Gateway, tenant: str, ids: Iterable[str], event_id: str) -> None:
    """Note that the tenant is about to be told these, by the event's answer; raises 503 when that can't be kept."""
    new = [id for id in ids if not gateway.known.knows(tenant, id)]
    if not new:
        return
    try:
        await gateway.store.append(tenant, [Answer(id, event_id) for id in new])
    except StoreUnavailable as error:
        raise errors.unrecorded(error) from error
    gateway.known.note(tenant, new)


async def unknown(gateway: Gateway, tenant: str, ids: Iterable[str]) -> str | None:
    """The first of these that no answer to the tenant had; 503 while the log can't say."""
    asked = [id for id in dict.fromkeys(ids) if not gateway.known.knows(tenant, id)]
    if not asked:
        return None
    try:
        return await asyncio.to_thread(_first_unknown, gateway, tenant, asked)
    except StorageFailed as error:
        raise errors.not_recording() from error


def _first_unknown(gateway: Gateway, tenant: str, ids: list[str]) -> str | None:
    # no database's text holds a NUL, and so none of ours does
    return next((id for id in ids if "\0" in id or gateway.reader.answer(tenant, id) is None), None)
