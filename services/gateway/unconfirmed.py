"""Exchanges that were answered and are not in the log yet, when capture is async.

Only what is durable may be pointed at, so a session goes on from an answer when it is stored. A client may be
faster: an agent whose tool takes a millisecond sends its result before the call that asked for it is recorded. Such a
request waits here, for milliseconds, or its turns would not belong together.
"""

from __future__ import annotations

import asyncio

from registry.tenants import Key
from services.proxy.capture import Exchange
from services.proxy.sessions import Session


class Unconfirmed:
    """For one event loop."""

    PATIENCE_S = 1.0
    """A store that takes longer has other trouble; the request goes on as if nothing had been said before."""

    def __init__(self) -> None:
        self._by_key: dict[str, dict[Exchange, asyncio.Future[None]]] = {}

    def note(self, exchange: Exchange) -> None:
        """It is answered, and will be stored."""
        waiting = self._by_key.setdefault(exchange.session.key.id, {})
        if exchange not in waiting:
            waiting[exchange] = asyncio.get_running_loop().create_future()

    def end(self, exchange: Exchange) -> None:
        """It is stored, or lost."""
        id = exchange.session.key.id
        waiting = self._by_key.get(id, {})
        ended = waiting.pop(exchange, None)
        if not waiting:
            self._by_key.pop(id, None)
        if ended is not None and not ended.done():
            ended.set_result(None)

    def any(self, key: Key) -> bool:
        return key.id in self._by_key

    async def wait(self, key: Key, session: Session | None = None) -> None:
        """Until everything answered so far to the key (or in one of its sessions) is stored or lost."""
        waiting = self._by_key.get(key.id, {})
        ends = [end for exchange, end in waiting.items() if session is None or exchange.session is session]
        if ends:
            await asyncio.wait(ends, timeout=self.PATIENCE_S)
