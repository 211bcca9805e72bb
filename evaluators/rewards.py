"""Rewards are a view: the annotations in force at a time, folded.

Annotations are append-only, may arrive in any order, supersede each other and be retracted. What an
event is worth is therefore computed whenever it is needed, never stored.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from atdp.annotations import in_force

__all__ = ["in_force", "resolved"]


def resolved(annotations: Iterable[dict[str, Any]]) -> tuple[float | None, str]:
    """The reward of a trajectory and when it was given: the latest `resolved` signal; (None, "") before any."""
    given = [
        (float(a["value"]), a["time"])
        for a in annotations
        if a["kind"] == "reward" and a.get("name") == "resolved" and a.get("value") is not None
    ]
    return given[-1] if given else (None, "")
