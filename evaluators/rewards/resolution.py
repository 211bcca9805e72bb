"""Resolution: what a trajectory and each of its steps are worth, by a declared rule, as of a time.

Annotations are append-only, may arrive in any order, supersede each other and be retracted. So a reward is a view:
computed whenever it is needed, never stored, and always with the digest of the rule that made it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from evaluators.rewards.links import reaches
from evaluators.rewards.rule import DEFAULT_RULE, RewardRule
from evaluators.rewards.signals import Signal, read_signals, scaled
from evaluators.rewards.weighing import Candidate, Judged, aggregate, credited, weigh
from evoplane.settings import RewardClause


class Resolution(msgspec.Struct, frozen=True, kw_only=True):
    """What the rule made of a trajectory's signals."""

    rule: str
    """Digest of the rule."""
    trajectory: Judged | None
    steps: dict[str, Judged]
    """By event: of signals about it, or credited to it by the rule."""
    signals: tuple[Signal, ...]
    """All signals, oldest first; `ignored` says why one didn't count."""
    steps_from: str = "trajectory"

    def of(self, event_id: str) -> Judged | None:
        """The reward of a step: its own, else its trajectory's if the rule says so."""
        own = self.steps.get(event_id)
        return self.trajectory if own is None and self.steps_from == "trajectory" else own

    def about(self, event_ids: Iterable[str]) -> tuple[Signal, ...]:
        """The signals about any of these events or about the trajectory."""
        asked = set(event_ids)
        return tuple(s for s in self.signals if not s.events or not asked.isdisjoint(s.events))


def resolve(
    annotations: Iterable[dict[str, Any]],
    rule: RewardRule = DEFAULT_RULE,
    as_of: str | None = None,
    events: Sequence[Mapping[str, Any]] = (),
) -> Resolution:
    """The rewards of one trajectory.

    `annotations` are those of its chain, `as_of` an RFC 3339 time (what was written later is not known yet),
    `events` its events in order: credit along causal links and signals that name a step by number need them.
    """
    declared = rule.declared
    steps = {e["step"]: e["id"] for e in reversed(events) if e.get("step") is not None and e["kind"] == "llm_call"}
    alive, gone = read_signals(annotations, as_of, steps)
    why: dict[str, str] = {}
    values: dict[str, float] = {}
    whole: list[Candidate] = []
    by_event: dict[str, list[Candidate]] = {}
    for signal in alive:
        found = _candidate(signal, rule)
        if isinstance(found, str):
            why[signal.id] = found
            continue
        values[signal.id] = found.value
        if found.clause.about == "trajectory" or not signal.events:
            whole.append(found)
        else:
            for event_id in signal.events:
                by_event.setdefault(event_id, []).append(found)
    trajectory, ignored = weigh(whole, declared)
    why |= ignored
    own: dict[str, Judged] = {}
    for event_id in _ordered(by_event, events):
        judged, ignored = weigh(by_event[event_id], declared)
        why |= ignored
        if judged is not None:
            own[event_id] = judged
    if trajectory is None:
        trajectory = aggregate(list(own.values()), declared.trajectory_from)
    return Resolution(
        rule=rule.digest,
        trajectory=trajectory,
        steps=own | _credit(events, own, declared.credit_decay),
        signals=tuple(
            sorted([*gone, *(_weighed(s, values, why) for s in alive)], key=lambda s: (s.at, s.id)),
        ),
        steps_from=declared.steps_from,
    )


def _candidate(signal: Signal, rule: RewardRule) -> Candidate | str:
    """The signal as its clause reads it, or why it doesn't count."""
    clause = rule.clause(signal)
    if clause is None:
        return "no clause of the rule names it"
    value = _value(signal, clause)
    if value is None:
        return "no value between 0 and 1, and no scale or label of the rule makes it one"
    confidence = clause.assumed_confidence if signal.confidence is None else signal.confidence
    if confidence < clause.min_confidence:
        return f"confidence {confidence:.2f} is below {clause.min_confidence:.2f}"
    if clause.min_agreement:
        measured = rule.calibrated(signal)
        if measured is None:
            return "not calibrated: nobody has measured how far it agrees with the reference"
        if measured.low < clause.min_agreement:
            return f"agrees with the reference {measured.agreement:.2f} (at least {measured.low:.2f}, n={measured.n})"
    return Candidate(signal, clause, value, confidence)


def _weighed(signal: Signal, values: Mapping[str, float], why: Mapping[str, str]) -> Signal:
    """The signal with its value as the rule reads it, and why it didn't count."""
    return msgspec.structs.replace(signal, value=values.get(signal.id, signal.value), ignored=why.get(signal.id, ""))


def _value(signal: Signal, clause: RewardClause) -> float | None:
    if clause.labels and signal.raw is None:
        return clause.labels.get(signal.label)
    if signal.value is None and clause.scale is not None and signal.raw is not None:
        return scaled(signal.raw, *clause.scale)
    return signal.value


def _ordered(by_event: Mapping[str, Any], events: Sequence[Mapping[str, Any]]) -> list[str]:
    """Judged events in the trajectory's order; without its events, as they were first judged."""
    order = {event["id"]: position for position, event in enumerate(events)}
    return sorted(by_event, key=lambda id: order.get(id, len(order)))


def _credit(events: Sequence[Mapping[str, Any]], own: Mapping[str, Judged], decay: float) -> dict[str, Judged]:
    if not decay or not own:
        return {}
    reach = reaches(events, own, decay)
    given = {id: credited(shares, own) for id, shares in reach.items() if id not in own}
    return {id: judged for id, judged in given.items() if judged is not None}
