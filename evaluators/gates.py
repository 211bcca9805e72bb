"""Gates of a deployment's own: what a candidate must not be, besides what the decision already asks.

A package adds one with an entry point of the group `evoplane.gates`: a callable that gets an `Evaluated` candidate and
gives the reason to refuse it, or None. A gate that fails refuses: nothing passes because somebody's check is broken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evaluators.decision import Evaluated

GROUP = "evoplane.gates"

Gate = Callable[["Evaluated"], "str | None"]


def installed() -> dict[str, Gate]:
    """The gates of installed packages, by name; one that can't be loaded refuses everything and says why."""
    found: dict[str, Gate] = {}
    for point in sorted(entry_points(group=GROUP), key=lambda p: p.name):
        try:
            found[point.name] = point.load()
        except Exception as error:
            found[point.name] = _broken(error)
    return found


def refusals(candidate: Evaluated, gates: Mapping[str, Gate]) -> list[str]:
    """Why these gates refuse a candidate; empty when none does."""
    said = []
    for name, gate in gates.items():
        try:
            why = gate(candidate)
        except Exception as error:
            why = f"it failed: {error!r}"
        if why:
            said.append(f"gate {name}: {why}")
    return said


def _broken(error: Exception) -> Gate:
    return lambda _: f"it can't be loaded: {error!r}"
