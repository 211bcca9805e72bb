"""A weight update and the states it goes through.

    adapter:  asked → loading → probing → served → draining → gone
    weights:  asked → holding → reloading → probing → served

An update that ends in `refused` has changed nothing: what was served before is served still. `TRANSITIONS` is the
whole truth about what may follow what.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Literal

import msgspec

State = Literal[
    "asked", "loading", "holding", "reloading", "probing", "restoring", "served", "draining", "gone", "refused"
]

TRANSITIONS: dict[State, frozenset[State]] = {
    "asked": frozenset({"loading", "holding", "refused"}),
    "loading": frozenset({"probing", "refused"}),
    "holding": frozenset({"reloading", "refused"}),
    "reloading": frozenset({"probing", "restoring"}),
    "probing": frozenset({"served", "restoring", "refused"}),
    "restoring": frozenset({"refused"}),
    "served": frozenset({"draining"}),
    "draining": frozenset({"gone"}),
    "gone": frozenset(),
    "refused": frozenset(),
}
"""Every legal change. `restoring` puts the former base weights back; an adapter that is refused is unloaded at once."""

_KEPT = 64
"""Updates remembered for whoever asks; served policies are remembered by the policies' own file."""


class IllegalTransition(Exception):
    """Somebody skipped a step; a fault of ours."""


class Update(msgspec.Struct):
    """One change of what is served. Seconds are of a monotonic clock."""

    kind: Literal["adapter", "weights"]
    name: str
    digest: str
    state: State = "asked"
    seconds: dict[str, float] = {}
    """How long each state lasted that is over."""
    problem: str | None = None
    probe_difference: float | None = None
    since: float = msgspec.field(default_factory=time.monotonic)

    def to(self, state: State, problem: str | None = None) -> None:
        """Go on; raises `IllegalTransition`."""
        if state not in TRANSITIONS[self.state]:
            raise IllegalTransition(f"{self.name}: {self.state} → {state}")
        now = time.monotonic()
        self.seconds = {**self.seconds, self.state: round(now - self.since, 4)}
        self.since, self.state, self.problem = now, state, problem


class Updates:
    """The last updates, newest last."""

    def __init__(self) -> None:
        self._updates: deque[Update] = deque(maxlen=_KEPT)

    def begin(self, kind: Literal["adapter", "weights"], name: str, digest: str) -> Update:
        update = Update(kind=kind, name=name, digest=digest)
        self._updates.append(update)
        return update

    def listed(self) -> list[Update]:
        return list(self._updates)
