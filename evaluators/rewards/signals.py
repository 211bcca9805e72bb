"""Signals: what annotations say about how good something was, on one scale.

A reward is never stored; it is made of these whenever it is needed (`evaluators.rewards.resolution`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from atdp.annotations import in_force

_MODELS = frozenset({"llm_judge", "reward_model"})
"""Of these another version is another source; who a person or an application is, is not asked."""
_SPEAKING = frozenset({"reward", "critique", "label"})


class SourceKey(NamedTuple):
    """Who says what: signals with one key can be compared with those of another."""

    name: str
    kind: str
    id: str = ""
    """Of a judge or reward model: its id and version."""

    def __str__(self) -> str:
        return f"{self.name} ({self.kind}{f' {self.id}' if self.id else ''})"


class Signal(msgspec.Struct, frozen=True, kw_only=True):
    """One annotation that speaks of how good something was."""

    id: str
    name: str
    value: float | None
    """0 (bad) to 1 (good); None when the signal alone doesn't say (a label, no scale)."""
    source: str
    """The kind of source (ATDP section 7)."""
    source_id: str = ""
    source_version: str = ""
    confidence: float | None = None
    """None when the source states none."""
    at: str
    """When it happened, as far as known; else when it was written."""
    written: str
    events: tuple[str, ...] = ()
    """The events it is about; none is the trajectory."""
    label: str = ""
    raw: float | None = None
    """The value as written."""
    ignored: str = ""
    """Why the rule didn't count it; empty for one that counted."""
    in_force: bool = True
    """False when it was superseded, retracted, or written after the time asked about."""

    @property
    def key(self) -> SourceKey:
        id = f"{self.source_id}@{self.source_version}".strip("@") if self.source in _MODELS else ""
        return SourceKey(self.name, self.source, id)


def read_signals(
    annotations: Iterable[dict[str, Any]], as_of: str | None = None, steps: dict[int, str] | None = None
) -> tuple[list[Signal], list[Signal]]:
    """(in force, not in force) as of a time, oldest first; those not in force say why.

    `steps` gives the event of a step, for signals that name a step by its number. Retractions are no signals.
    """
    known = [a for a in annotations if a.get("kind") in _SPEAKING]
    alive = in_force(known, as_of)
    ids = {a["id"] for a in alive}
    dead = [
        msgspec.structs.replace(_signal(a, steps or {}), ignored=_gone(a, known, as_of), in_force=False)
        for a in known
        if a["id"] not in ids and not a.get("retracted")
    ]
    return [_signal(a, steps or {}) for a in alive], sorted(dead, key=lambda s: (s.at, s.id))


def scaled(value: float, worst: float, best: float) -> float | None:
    """`value` where `worst` is 0 and `best` is 1; None outside of them."""
    share = (value - worst) / (best - worst)
    return share if 0 <= share <= 1 else None


def _signal(annotation: dict[str, Any], steps: dict[int, str]) -> Signal:
    source = annotation["source"]
    raw = annotation.get("value")
    targets = annotation.get("targets") or []
    named = [t.get("event_id") or steps.get(t.get("step", -1)) for t in targets]
    return Signal(
        id=annotation["id"],
        name=annotation["name"],
        value=_value(annotation),
        source=source["kind"],
        source_id=source.get("id") or "",
        source_version=source.get("version") or "",
        confidence=annotation.get("confidence"),
        at=annotation.get("observed_at") or annotation["time"],
        written=annotation["time"],
        events=tuple(id for id in named if id),
        label=annotation.get("label") or "",
        raw=None if raw is None else float(raw),
    )


def _value(annotation: dict[str, Any]) -> float | None:
    """The value on the scale the annotation gives; without one, what lies between 0 and 1 is taken as it is."""
    raw = annotation.get("value")
    if raw is None or annotation["kind"] == "label":  # a label's number measures something, no merit
        return None
    scale = annotation.get("scale") or {}
    low, high = scale.get("min"), scale.get("max")
    if low is None or high is None or low == high:
        return float(raw) if 0 <= raw <= 1 and not scale else None
    up = scale.get("higher_is_better", True)
    return scaled(float(raw), low, high) if up else scaled(float(raw), high, low)


def _gone(annotation: dict[str, Any], known: list[dict[str, Any]], as_of: str | None) -> str:
    if as_of is not None and annotation["time"] > as_of:
        return f"written after {as_of}"
    for other in known:
        earlier = other.get("supersedes")
        if earlier and annotation["id"] in ([earlier] if isinstance(earlier, str) else earlier):
            return f"{'retracted' if other.get('retracted') else 'superseded'} by {other['id']}"
    return "not in force"
