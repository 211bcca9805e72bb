"""Exchanges that were answered and are not in the log yet, when capture is async.

Only what is durable may be pointed at, so a session goes on from an answer when it is stored. A client may be
faster: an agent whose tool takes a millisecond sends its result before the call that asked for it is recorded. Such a
request waits here, for milliseconds, or its turns would not belong together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from registry.tenants import Key
from services.proxy.capture import Exchange

_Owner = tuple[str, str, str]


class Unconfirmed:
    """For one event loop. A session is its agent's, whichever of its keys speaks."""

    def __init__(self) -> None:
        self._by_owner: dict[_Owner, dict[Exchange, asyncio.Future[None]]] = {}

    def note(self, exchange: Exchange) -> None:
        """It is answered, and will be stored."""
        waiting = self._by_owner.setdefault(_owner(exchange.session.key), {})
        if exchange not in waiting:
            waiting[exchange] = asyncio.get_running_loop().create_future()

    def end(self, exchange: Exchange) -> None:
        """It is stored, or lost."""
        owner = _owner(exchange.session.key)
        waiting = self._by_owner.get(owner, {})
        ended = waiting.pop(exchange, None)
        if not waiting:
            self._by_owner.pop(owner, None)
        if ended is not None and not ended.done():
            ended.set_result(None)

    def any(self, key: Key) -> bool:
        """Of the key's agent and purpose."""
        return _owner(key) in self._by_owner

    async def wait(self, key: Key, matters: Callable[[Exchange], bool], patience_s: float) -> bool:
        """Until what was answered so far to the key's agent, as far as it matters, is stored or lost; is it?"""
        ends = [end for exchange, end in self._by_owner.get(_owner(key), {}).items() if matters(exchange)]
        if ends:
            _, pending = await asyncio.wait(ends, timeout=patience_s)
            return not pending
        return True


def _owner(key: Key) -> _Owner:
    return key.tenant, key.agent, key.purpose
