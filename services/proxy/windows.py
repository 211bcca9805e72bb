"""How much of each tenant's work is on its way at once: nobody stands behind all that another tenant has sent.

What is done in turn is done as it comes, whoever sent it. Of a tenant no more than a window is handed over; what
comes beyond waits here, in its order, until something of the same tenant's is done.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field


@dataclass
class _Window:
    bytes: int = 0
    """On the way."""
    waiting: deque[tuple[int, int]] = field(default_factory=deque)
    """Number and bytes."""


class Windows:
    """One window a tenant."""

    def __init__(self, most_bytes: int) -> None:
        """`most_bytes` may be on the way; what is larger goes alone."""
        self._most_bytes = most_bytes
        self._windows: dict[str, _Window] = {}

    def enter(self, tenant: str, number: int, size: int) -> bool:
        """May it be handed over now? Else its number is given by `leave` when it may."""
        window = self._windows.setdefault(tenant, _Window())
        if window.waiting or not self._fits(window, size):
            window.waiting.append((number, size))
            return False
        window.bytes += size
        return True

    def leave(self, tenant: str, size: int) -> list[int]:
        """Something that was handed over is done; gives what may be handed over now."""
        window = self._windows[tenant]
        window.bytes -= size
        entered: list[int] = []
        while window.waiting and self._fits(window, window.waiting[0][1]):
            number, its_size = window.waiting.popleft()
            window.bytes += its_size
            entered.append(number)
        if not window.bytes:
            del self._windows[tenant]
        return entered

    def open_wide(self) -> list[int]:
        """All that waits: it is handed over now, whatever is on the way."""
        entered: list[int] = []
        for window in self._windows.values():
            entered += (number for number, _ in window.waiting)
            window.bytes += sum(size for _, size in window.waiting)
            window.waiting.clear()
        return entered

    def last(self, tenant: str) -> int | None:
        """The newest that waits of the tenant's, if anything does."""
        window = self._windows.get(tenant)
        return window.waiting[-1][0] if window is not None and window.waiting else None

    def clear(self) -> None:
        """Nothing is on the way, and nothing waits."""
        self._windows.clear()

    def _fits(self, window: _Window, size: int) -> bool:
        return not window.bytes or window.bytes + size <= self._most_bytes
