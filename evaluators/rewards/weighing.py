"""Several signals about one thing: which of them decide, and what they say together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from atdp import clock
from evaluators.rewards.signals import Signal
from evoplane.settings import RewardClause, RewardSettings

_EVEN = 0.5


class Candidate(NamedTuple):
    """A signal that may count, its clause and what it says by that clause."""

    signal: Signal
    clause: RewardClause
    value: float
    confidence: float


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """The reward of one thing."""

    reward: float
    """0 to 1."""
    confidence: float
    source: str
    """Who decided: the sources that counted, or the steps it was credited from."""
    at: str
    """When the last signal that counted was written."""
    signals: tuple[str, ...]
    """The signals that counted."""


def weigh(candidates: Sequence[Candidate], rule: RewardSettings) -> tuple[Judged | None, dict[str, str]]:
    """What candidates about one thing say together, and why any of them doesn't count (by signal id)."""
    ignored: dict[str, str] = {}
    first = min((c.clause.precedence for c in candidates), default=0)
    deciding = [c for c in candidates if c.clause.precedence == first]
    for other in candidates:
        if other.clause.precedence != first:
            ignored[other.signal.id] = f"outranked by {deciding[0].signal.name}"
    if not deciding:
        return None, ignored
    deciding.sort(key=lambda c: (c.signal.at, c.signal.id))
    if rule.conflict == "latest":
        ignored |= {c.signal.id: f"older than {deciding[-1].signal.id}" for c in deciding[:-1]}
        deciding = deciding[-1:]
    elif rule.conflict == "lowest":
        worst = min(deciding, key=lambda c: c.value)
        ignored |= {c.signal.id: f"higher than {worst.signal.id}" for c in deciding if c is not worst}
        deciding = [worst]
    elif rule.conflict == "abstain" and _contradict(deciding):
        return None, ignored | {c.signal.id: "contradicted, and the rule abstains then" for c in deciding}
    judged = _together(deciding)
    if judged.confidence < rule.min_confidence:
        why = f"together {judged.confidence:.2f} confident, the rule asks for {rule.min_confidence:.2f}"
        return None, ignored | {c.signal.id: why for c in deciding}
    return judged, ignored


def _together(candidates: Sequence[Candidate]) -> Judged:
    """The mean by weight, confidence and age. It is as confident as those on its side of 0.5 are, over all."""
    shares = [c.clause.weight * _freshness(c, candidates[-1].signal.at) for c in candidates]
    counted = [share * c.confidence for share, c in zip(shares, candidates, strict=True)]
    if sum(counted) == 0:  # nobody is confident at all: as if all were, with no confidence
        reward, confidence = sum(c.value for c in candidates) / len(candidates), 0.0
    else:
        reward = sum(k * c.value for k, c in zip(counted, candidates, strict=True)) / sum(counted)
        agreeing = (k for k, c in zip(counted, candidates, strict=True) if _side(c.value) in (_side(reward), 0))
        confidence = sum(agreeing) / sum(shares)
    return Judged(
        reward=min(1.0, max(0.0, reward)),
        confidence=min(1.0, confidence),
        source=", ".join(sorted({str(c.signal.key) for c in candidates})),
        at=max(c.signal.written for c in candidates),
        signals=tuple(c.signal.id for c in candidates),
    )


def aggregate(judged: Sequence[Judged], how: str) -> Judged | None:
    """A trajectory's reward of its steps', which are in order; `how` is `RewardSettings.trajectory_from`."""
    if not judged or how == "none":
        return None
    match how:
        case "last":
            return judged[-1]
        case "min":
            return min(judged, key=lambda j: j.reward)
        case "max":
            return max(judged, key=lambda j: j.reward)
    return Judged(
        reward=sum(j.reward for j in judged) / len(judged),
        confidence=min(j.confidence for j in judged),
        source=", ".join(sorted({j.source for j in judged})),
        at=max(j.at for j in judged),
        signals=tuple(dict.fromkeys(id for j in judged for id in j.signals)),
    )


def credited(reach: Mapping[str, float], judged: Mapping[str, Judged]) -> Judged | None:
    """The reward of a step from those of the judged steps that came of it; `reach` is how much each counts."""
    found = [(share, judged[id]) for id, share in reach.items() if id in judged]
    total = sum(share for share, _ in found)
    if not total:
        return None
    best, nearest = max(found, key=lambda pair: pair[0])
    return Judged(
        reward=sum(share * j.reward for share, j in found) / total,
        confidence=best * nearest.confidence,
        source=f"credit from {', '.join(id for id in reach if id in judged)}",
        at=max(j.at for _, j in found),
        signals=tuple(dict.fromkeys(id for _, j in found for id in j.signals)),
    )


def _freshness(candidate: Candidate, newest: str) -> float:
    """1 for a signal as new as the newest, half of it for every half-life that it is older."""
    half_life = candidate.clause.half_life_s
    if half_life is None:
        return 1.0
    age = clock.parse(newest) - clock.parse(candidate.signal.at)
    return float(0.5 ** (age.total_seconds() / half_life))


def _contradict(candidates: Sequence[Candidate]) -> bool:
    return {-1, 1} <= {_side(c.value) for c in candidates}


def _side(value: float) -> int:
    return (value > _EVEN) - (value < _EVEN)
