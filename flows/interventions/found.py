"""The surfaces there are: ours, and those that installed packages bring.

A package adds one under the entry-point group `evoplane.interventions`: the entry's name is the surface's, its value
an `Intervention` (an instance, or a class made without arguments).
"""

from __future__ import annotations

from importlib.metadata import entry_points

from flows.interventions.base import Intervention
from flows.interventions.harness import HarnessEdit
from flows.interventions.memory import Memory
from flows.interventions.noop import NoOp
from flows.interventions.policy import PolicyUpdate
from flows.interventions.rollback import Rollback
from flows.interventions.skill import Skills
from flows.interventions.tools import Tools

GROUP = "evoplane.interventions"
_METHODS = ("propose", "cost", "risk", "apply", "describe")

_OURS: tuple[Intervention, ...] = (Memory(), Skills(), HarnessEdit(), Tools(), PolicyUpdate(), Rollback(), NoOp())
INTERVENTIONS: dict[str, Intervention] = {each.surface: each for each in _OURS}
"""Ours, by name."""


class BrokenSurface(Exception):
    """An installed surface can't be used; the message says which and why."""


def interventions() -> dict[str, Intervention]:
    """Every surface by name. Raises `BrokenSurface` for one that is not an intervention or takes a name of ours."""
    found = dict(INTERVENTIONS)
    for entry in entry_points(group=GROUP):
        try:
            loaded = entry.load()
            surface: Intervention = loaded() if isinstance(loaded, type) else loaded
        except Exception as error:
            raise BrokenSurface(f"surface {entry.name!r} of {entry.value}: {error}") from error
        missing = [
            m for m in ("propose", "cost", "risk", "apply", "describe") if not callable(getattr(surface, m, None))
        ]
        if missing or getattr(surface, "surface", None) != entry.name:
            why = f"it has no {', '.join(missing)}" if missing else f"it calls itself {surface.surface!r}"
            raise BrokenSurface(f"surface {entry.name!r} of {entry.value}: {why}")
        if entry.name in found:
            raise BrokenSurface(f"surface {entry.name!r} of {entry.value}: there is one of that name")
        found[entry.name] = surface
    return found
