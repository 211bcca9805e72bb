"""What a request names at its provider must be its tenant's own, for several may share one account there.

A tenant's own is what an answer to it has told of: such ids are kept beside the log, as those of the answers are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from registry.tenants import Key
from services.gateway import errors
from services.gateway.core import Gateway
from services.proxy.dialects import Dialect
from services.proxy.engines.base import StorageFailed


async def foreign(gateway: Gateway, key: Key, dialect: Dialect, parsed: Any) -> str | None:
    """The first id in a request that its tenant was never told; None when there is none."""
    return await unknown(gateway, key.tenant, dialect.names(parsed) if isinstance(parsed, dict) else ())


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
