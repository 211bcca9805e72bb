"""Two times compared on the same mix of work: what changed within kinds of work, and what only the mix changed.

The difference of two success rates is split as Kitagawa (1955, "Components of a difference between two rates"):
kinds of work (tenant and subject) are the strata; *within* is what each kind of the newer work gained or lost,
weighted by the newer mix, *mix* is the rest.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from math import sqrt
from statistics import NormalDist

import msgspec

from evaluators.diagnosis.outcomes import Outcome
from evaluators.intervals import Interval


class Change(msgspec.Struct, frozen=True):
    within: Interval
    """Newer minus older success within kinds of work both times have; `n` newer outcomes could be compared."""
    mix: float
    """Newer minus older success that is due to another mix of work alone."""
    compared: float
    """Share of the newer work that has counterparts."""


def change(newer: Sequence[Outcome], older: Sequence[Outcome], alpha: float) -> Change:
    """Newer work against older. Rates of strata are taken with a success and a failure added (Agresti & Caffo 2000)."""
    new, old = _strata(newer), _strata(older)
    shared = [key for key in new if key in old]
    n = sum(len(new[key]) for key in shared)
    if not n:
        return Change(Interval(value=0.0, low=-1.0, high=1.0, n=0), 0.0, 0.0)
    within = variance = 0.0
    for key in shared:
        weight = len(new[key]) / n
        within += weight * (sum(new[key]) / len(new[key]) - sum(old[key]) / len(old[key]))
        variance += weight**2 * (_variance(new[key]) + _variance(old[key]))
    half = NormalDist().inv_cdf(1 - alpha / 2) * sqrt(variance)
    crude = sum(not o.failed for o in newer) / len(newer) - sum(not o.failed for o in older) / len(older)
    bounds = Interval(value=within, low=max(-1.0, within - half), high=min(1.0, within + half), n=n)
    return Change(bounds, crude - within, n / len(newer))


def _strata(outcomes: Sequence[Outcome]) -> dict[tuple[str, str], list[bool]]:
    strata: dict[tuple[str, str], list[bool]] = defaultdict(list)
    for o in outcomes:
        strata[o.case.tenant, o.subject].append(not o.failed)
    return strata


def _variance(successes: Sequence[bool]) -> float:
    p = (sum(successes) + 1) / (len(successes) + 2)
    return p * (1 - p) / (len(successes) + 2)
