"""How far a replayed step can be believed.

deterministic: the tape, or an environment that has reproduced the recording so far, gave the result. approximate: the
result is the nearest recorded one, or comes from an environment that contradicted the recording. non_replayable:
nothing could give a result, the branch ended there, and what it would have come to is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

Klass = Literal["deterministic", "approximate", "non_replayable"]
_WORST_FIRST: tuple[Klass, ...] = ("non_replayable", "approximate", "deterministic")


class Shares(msgspec.Struct, frozen=True):
    """Shares of the replayed cases by class; they add up to 1 unless there were none."""

    deterministic: float = 0.0
    approximate: float = 0.0
    non_replayable: float = 0.0


def worst(classes: Iterable[Klass]) -> Klass:
    """A chain is as good as its weakest step; a chain without steps needed nothing but its recording."""
    seen = set(classes)
    return next((klass for klass in _WORST_FIRST if klass in seen), "deterministic")


def shares(classes: Iterable[Klass]) -> Shares:
    found = list(classes)
    if not found:
        return Shares()
    return Shares(*(found.count(klass) / len(found) for klass in ("deterministic", "approximate", "non_replayable")))
