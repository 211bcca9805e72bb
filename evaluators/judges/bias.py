"""Is a judge worth believing? Its verdicts beside outcomes that an environment gave.

A judge that likes length, changes its mind with the order, passes nearly everything or disagrees with what really
happened is a bad reward: a policy that optimises it learns to please it. Everything here has an interval, and
*not enough data* is an answer.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from math import atanh, isnan, nan, sqrt, tanh
from statistics import NormalDist
from typing import Literal

import msgspec

from evaluators.cases import Case, Key
from evaluators.intervals import Interval, PairedCounts, paired_difference, wilson
from evaluators.rewards.agreement import MIN_TRAJECTORIES, cohens_kappa
from evaluators.rewards.signals import Signal, SourceKey

MAX_LENGTH_EFFECT = 0.1
"""A rank correlation with length that is surely larger than this, at equal outcome, is a liking."""
MAX_INCONSISTENT = 0.3
"""More changes of mind under a swap than this, for sure, is position bias."""
_FIELLER = 1.06
"""Variance of Fisher's z of Spearman's coefficient is 1.06 / (n - 3) (Fieller, Hartley & Pearson 1957)."""
_SMALLEST_STRATUM = 8
_EVEN = 0.5


class Judgement(msgspec.Struct, frozen=True):
    """One verdict and what is known of the reply it is about."""

    verdict: bool | None
    """None when the judge abstained."""
    outcome: bool | None
    """What the environment says; None when it says nothing."""
    length: int
    """Of the reply or conversation, characters or tokens."""


class JudgeBias(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a judge."""

    state: Literal["trusted", "not trusted", "not enough data"]
    reasons: tuple[str, ...]
    """Why it is not trusted, or what is missing."""
    abstained: Interval
    passes: Interval
    outcomes: Interval
    """Share that the environment passes, of the same."""
    leniency: Interval
    """Paired difference of the two: above 0 it passes more than it should."""
    agreement: Interval
    kappa: Interval
    length: Interval
    """Rank correlation of passing with length among replies of equal outcome; NaN where the verdict never varies."""
    inconsistent: Interval
    """Share of pairs on which it changed its mind when their order was swapped."""


def judge_bias(
    judgements: Sequence[Judgement],
    swaps: Sequence[bool] = (),
    *,
    min_agreement: float = 0.7,
    min_n: int = MIN_TRAJECTORIES,
    alpha: float = 0.05,
) -> JudgeBias:
    """The report on a judge; `swaps` says of each compared pair whether its verdict survived the swap.

    It is trusted when the lower bound of its agreement with the environment reaches `min_agreement` and nothing is
    known against it.
    """
    judged = [j for j in judgements if j.verdict is not None]
    known = [j for j in judged if j.outcome is not None]
    both, neither = _count(known, True, True), _count(known, False, False)
    lenient, strict = _count(known, True, False), _count(known, False, True)
    report = JudgeBias(
        state="trusted",
        reasons=(),
        abstained=wilson(len(judgements) - len(judged), len(judgements), alpha),
        passes=wilson(sum(bool(j.verdict) for j in judged), len(judged), alpha),
        outcomes=wilson(both + strict, len(known), alpha),
        leniency=paired_difference(PairedCounts(both, lenient, strict, neither), alpha),
        agreement=wilson(both + neither, len(known), alpha),
        kappa=cohens_kappa(both, lenient, strict, neither, alpha),
        length=length_effect(known, alpha),
        inconsistent=wilson(sum(not kept for kept in swaps), len(swaps), alpha),
    )
    against = _against(report, min_agreement)
    if len(known) < min_n:
        missing = f"{len(known)} of {min_n} verdicts have an outcome to compare with"
        return msgspec.structs.replace(report, state="not enough data", reasons=(missing, *against))
    return msgspec.structs.replace(report, state="not trusted" if against else "trusted", reasons=against)


def judgements_of(cases: Iterable[Case], reference: Collection[str]) -> dict[SourceKey, list[Judgement]]:
    """The verdicts of each judge in these cases' signals, one a trajectory, beside what the reference kinds said of it.

    The length is that of what the agent said in the trajectory, characters.
    """
    said: dict[Key, dict[str, Signal]] = defaultdict(dict)
    lengths: Counter[Key] = Counter()
    for case in cases:
        said[case.trajectory] |= {s.id: s for s in case.signals if s.in_force and s.value is not None}
        lengths[case.trajectory] += len(case.action.text) + sum(len(s.text) for s in case.steps if s.kind == "answer")
    found: dict[SourceKey, list[Judgement]] = defaultdict(list)
    for id, signals in said.items():
        outcome = _verdict([s for s in signals.values() if s.source in reference])
        for key in {s.key for s in signals.values() if s.source == "llm_judge"}:
            verdict = _verdict([s for s in signals.values() if s.key == key])
            found[key].append(Judgement(verdict, outcome, lengths[id]))
    return dict(found)


def length_effect(judgements: Sequence[Judgement], alpha: float = 0.05) -> Interval:
    """Spearman's correlation of passing with length within each outcome, pooled by Fisher's z.

    Within an outcome, because right answers may well be longer. An outcome with fewer than 8 replies, or whose
    verdicts or lengths never vary, adds nothing.
    """
    weighted, weights = 0.0, 0
    for outcome in (True, False):
        mine = [j for j in judgements if j.outcome is outcome and j.verdict is not None]
        verdicts, lengths = [float(bool(j.verdict)) for j in mine], [j.length for j in mine]
        if len(mine) < _SMALLEST_STRATUM or len(set(verdicts)) < 2 or len(set(lengths)) < 2:
            continue
        from scipy.stats import spearmanr  # a second, and only this needs it

        rho = float(spearmanr(verdicts, lengths).statistic)
        weighted += (len(mine) - 3) * atanh(max(-0.999, min(0.999, rho)))
        weights += len(mine) - 3
    if not weights:
        return Interval(value=nan, low=nan, high=nan, n=len(judgements))
    z, half = weighted / weights, NormalDist().inv_cdf(1 - alpha / 2) * sqrt(_FIELLER / weights)
    return Interval(value=tanh(z), low=tanh(z - half), high=tanh(z + half), n=len(judgements))


def _against(report: JudgeBias, min_agreement: float) -> tuple[str, ...]:
    found = []
    if report.agreement.low < min_agreement:
        found.append(f"agrees with the environment {report.agreement}, and {min_agreement:.2f} is asked for")
    if not isnan(report.length.low) and report.length.low > MAX_LENGTH_EFFECT:
        found.append(f"likes length: correlation {report.length} at equal outcome")
    if report.inconsistent.n and report.inconsistent.low > MAX_INCONSISTENT:
        found.append(f"goes by the order: {report.inconsistent} of pairs change with it")
    if not isnan(report.kappa.high) and report.kappa.low <= 0:
        found.append(f"not surely better than chance: kappa {report.kappa}")
    return tuple(found)


def _verdict(signals: Sequence[Signal]) -> bool | None:
    values = [s.value for s in signals if s.value is not None]
    mean = sum(values) / len(values) if values else _EVEN
    return None if mean == _EVEN else mean > _EVEN


def _count(judgements: Sequence[Judgement], verdict: bool, outcome: bool) -> int:
    return sum(j.verdict is verdict and j.outcome is outcome for j in judgements)
