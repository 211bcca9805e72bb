"""Telling callers what became of what they wait for, without keeping their loop from its requests."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from services.proxy.drafts import Stored, StoreUnavailable
from services.proxy.tenant_writer import Result

_TOLD_AT_ONCE = 16
"""Callers told in one turn of their loop: each goes on at once, and a commit may have had hundreds."""


@dataclass(eq=False)
class Waiting:
    """Somebody who waits for a job."""

    future: asyncio.Future[list[Stored]]
    outcome: Result | None = None


class Teller:
    """Tells the callers of one event loop what became of their drafts, in the order in which these were stored: what
    goes on from a later answer of a session must not be followed by what goes on from an earlier one."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._untold: deque[Waiting] = deque()

    def tell(self, group: Iterable[Waiting]) -> None:
        """From any thread."""
        self._loop.call_soon_threadsafe(self.take, group)

    def take(self, group: Iterable[Waiting]) -> None:
        """From the loop's own thread."""
        telling = bool(self._untold)
        self._untold.extend(group)
        if not telling:
            self._some()

    def _some(self) -> None:
        """The first of them, and the rest in the loop's next turns: it has requests to serve between."""
        for _ in range(min(_TOLD_AT_ONCE, len(self._untold))):
            _resolve(self._untold.popleft())
        if self._untold:
            self._loop.call_soon(self._some)


def _resolve(waiting: Waiting) -> None:
    if waiting.future.done():
        return
    if isinstance(waiting.outcome, list):
        waiting.future.set_result(waiting.outcome)
    else:
        waiting.future.set_exception(waiting.outcome or StoreUnavailable("the event store's writer failed"))
