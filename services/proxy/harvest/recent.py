"""Each trajectory's last events, so that what comes next can be read together with them: bounded in number and size."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import UNSET

from atdp.records import EventDraft, Outcome

_WINDOW = 40
"""Events of a trajectory."""
_TRAJECTORIES = 2000
_LONGEST = 20_000
"""Characters of one text that anything here looks at."""
_BYTES = 64 * 2**20
"""Of all together, as JSON; the trajectories that were used last stay."""


class RecentEvents:
    """For one task. A trajectory that was forgotten is as one that has just begun."""

    def __init__(self, most: int = _BYTES) -> None:
        self._most = most
        self._of: OrderedDict[str, deque[tuple[EventDraft, int]]] = OrderedDict()
        """The events and their sizes."""
        self.size = 0

    def of(self, trajectory_id: str) -> list[EventDraft]:
        return [event for event, _ in self._of.get(trajectory_id, ())]

    def add(self, trajectory_id: str, events: Iterable[EventDraft]) -> None:
        """These have come to a trajectory."""
        window = self._of.setdefault(trajectory_id, deque())
        self._of.move_to_end(trajectory_id)
        for event, size in map(remembered, events):
            window.append((event, size))
            self.size += size
            if len(window) > _WINDOW:
                self.size -= window.popleft()[1]
        while len(self._of) > _TRAJECTORIES or (self.size > self._most and len(self._of) > 1):
            self.forget(next(iter(self._of)))
        while self.size > self._most and window:
            self.size -= window.popleft()[1]

    def forget(self, trajectory_id: str) -> None:
        self.size -= sum(size for _, size in self._of.pop(trajectory_id, ()))


def remembered(event: EventDraft) -> tuple[EventDraft, int]:
    """What is read of an event once others have come after it, and its size: a call's answer without its request, and
    of texts that are longer than anybody looks at, the beginning."""
    asked = {"o": UNSET} if event.kind == "llm_call" else {}
    event = msgspec.structs.replace(event, h=UNSET, m=UNSET, tokens=UNSET, ext=UNSET, **asked)
    try:
        size = len(msgspec.json.encode(event))
        if size > _LONGEST:
            event = msgspec.convert(_short(msgspec.to_builtins(event)), EventDraft)
            size = len(msgspec.json.encode(event))
    except (ValueError, TypeError, RecursionError):
        # half a character, or a depth, that JSON is not written with: known to have been there, and no more
        event = msgspec.structs.replace(event, o=UNSET, a=UNSET, y=Outcome(status=event.y.status))
        size = 0
    return event, size


def _short(value: Any) -> Any:
    if isinstance(value, str):
        return value[:_LONGEST]
    if isinstance(value, dict):
        return {_short(key): _short(item) for key, item in value.items()}
    return [_short(item) for item in value] if isinstance(value, list | tuple) else value
