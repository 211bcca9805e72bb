"""How far sources of reward agree, and what each of them says.

Compared is by trajectory, the unit that is independent: a source's verdict on one is the mean of what it said about the
trajectory or its steps, above or below 0.5 (exactly 0.5 is no verdict). Beside the raw agreement stands Cohen's kappa
(Cohen 1960), which takes out what two sources with these rates would agree on by chance, with the large-sample
standard error of Fleiss, Cohen & Everitt (1969); both need `MIN_TRAJECTORIES` judged by both, else the answer is
*not enough data*.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from math import isnan, nan, sqrt
from statistics import NormalDist
from typing import Any, Literal

import msgspec

from atdp import clock
from evaluators.cases import Case, Key
from evaluators.intervals import Interval, mean_interval, wilson
from evaluators.rewards.rule import Calibrated, RewardRule
from evaluators.rewards.signals import Signal, SourceKey

MIN_TRAJECTORIES = 30
"""Judged by both; below it the large-sample interval of kappa means little."""
_EVEN = 0.5
_RESOLUTION = "the rule"
State = Literal["ok", "not enough data", "no variation"]
"""`no variation`: one of the two says the same of everything, so there is nothing for kappa to compare."""


class SourceSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What one source said."""

    source: SourceKey
    signals: int
    trajectories: int
    """With a verdict of it."""
    positive: Interval
    """Share of these it found good."""
    reward: Interval
    """Mean of its values, by trajectory."""
    confidence: float
    """Mean of what its signals state; NaN when none does."""
    counted: int
    """Signals that made a reward."""
    ignored: dict[str, int]
    """Signals that made none, by reason."""


class PairAgreement(msgspec.Struct, frozen=True, kw_only=True):
    """How far two sources agree on the trajectories both judged."""

    one: SourceKey
    other: SourceKey
    state: State
    agreement: Interval
    kappa: Interval
    """-1 to 1; 0 is chance. NaN where it isn't defined."""
    only_one: int
    """Trajectories good for the one and bad for the other."""
    only_other: int


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    sources: tuple[SourceSummary, ...]
    pairs: tuple[PairAgreement, ...]
    resolved: tuple[PairAgreement, ...]
    """Each source with the reward that the rule made of all of them."""


def by_source(cases: Iterable[Case], alpha: float = 0.05, min_trajectories: int = MIN_TRAJECTORIES) -> Agreement:
    """Rewards by source and how far the sources agree, in these cases' signals."""
    signals: dict[tuple[Key, str], Signal] = {}
    rewards: dict[Key, list[float]] = defaultdict(list)
    for case in cases:
        for signal in case.signals:
            signals[case.trajectory, signal.id] = signal
        if case.reward is not None:
            rewards[case.trajectory].append(case.reward)
    said: dict[SourceKey, dict[Key, list[Signal]]] = defaultdict(lambda: defaultdict(list))
    for (trajectory, _), signal in signals.items():
        said[signal.key][trajectory].append(signal)
    verdicts = {key: _verdicts(by_trajectory) for key, by_trajectory in said.items()}
    rule = {id: mean > _EVEN for id, all in rewards.items() if (mean := sum(all) / len(all)) != _EVEN}
    speaking = sorted(key for key in said if verdicts[key])
    return Agreement(
        sources=tuple(_summary(key, said[key], verdicts[key], alpha) for key in sorted(said)),
        pairs=tuple(
            agreement(a, b, verdicts[a], verdicts[b], alpha, min_trajectories) for a, b in combinations(speaking, 2)
        ),
        resolved=tuple(
            agreement(key, SourceKey(_RESOLUTION, "rule"), verdicts[key], rule, alpha, min_trajectories)
            for key in speaking
        ),
    )


def agreement(
    one: SourceKey,
    other: SourceKey,
    verdicts: Mapping[Key, bool],
    others: Mapping[Key, bool],
    alpha: float = 0.05,
    min_trajectories: int = MIN_TRAJECTORIES,
) -> PairAgreement:
    """Agreement of two sources' verdicts, by trajectory."""
    table = Counter((verdicts[id], others[id]) for id in verdicts.keys() & others.keys())
    both, neither = table[True, True], table[False, False]
    only_one, only_other = table[True, False], table[False, True]
    n = table.total()
    kappa = cohens_kappa(both, only_one, only_other, neither, alpha)
    state: State = "not enough data" if n < min_trajectories else "no variation" if isnan(kappa.low) else "ok"
    return PairAgreement(
        one=one,
        other=other,
        state=state,
        agreement=wilson(both + neither, n, alpha),
        kappa=kappa,
        only_one=only_one,
        only_other=only_other,
    )


def cohens_kappa(both: int, only_one: int, only_other: int, neither: int, alpha: float = 0.05) -> Interval:
    """Cohen's kappa of a 2x2 table with its large-sample interval (Fleiss, Cohen & Everitt 1969, eq. 13).

    NaN where one of the two says the same of everything.
    """
    n = both + only_one + only_other + neither
    if n == 0:
        return Interval(value=nan, low=nan, high=nan, n=0)
    p = [[both / n, only_one / n], [only_other / n, neither / n]]
    rows = [sum(row) for row in p]
    columns = [p[0][j] + p[1][j] for j in (0, 1)]
    if 1 in rows or 1 in columns:
        return Interval(value=nan, low=nan, high=nan, n=n)
    observed = p[0][0] + p[1][1]
    chance = sum(r * c for r, c in zip(rows, columns, strict=True))
    kappa = (observed - chance) / (1 - chance)
    on = sum(p[i][i] * (1 - (rows[i] + columns[i]) * (1 - kappa)) ** 2 for i in (0, 1))
    off = (1 - kappa) ** 2 * sum(p[i][1 - i] * (columns[i] + rows[1 - i]) ** 2 for i in (0, 1))
    variance = (on + off - (kappa - chance * (1 - kappa)) ** 2) / (n * (1 - chance) ** 2)
    half = NormalDist().inv_cdf(1 - alpha / 2) * sqrt(max(0.0, variance))
    return Interval(value=kappa, low=max(-1.0, kappa - half), high=min(1.0, kappa + half), n=n)


def calibrate(cases: Sequence[Case], rule: RewardRule, alpha: float = 0.05) -> list[Calibrated]:
    """How often each source that the rule wants calibrated agrees with the reference (`RewardSettings.reference`).

    Only of sources with enough trajectories that the reference judged too; of the others nothing is known.
    """
    reference: dict[Key, list[Signal]] = defaultdict(list)
    judged: dict[SourceKey, dict[Key, list[Signal]]] = defaultdict(lambda: defaultdict(list))
    for case in cases:
        for signal in case.signals:
            clause = rule.clause(signal)
            if clause is not None and clause.min_agreement:
                judged[signal.key][case.trajectory].append(signal)
            elif clause is not None and signal.source in rule.declared.reference:
                reference[case.trajectory].append(signal)
    truth = _verdicts(reference)
    found = []
    for key, by_trajectory in sorted(judged.items()):
        measured = agreement(key, SourceKey("reference", ""), _verdicts(by_trajectory), truth, alpha)
        if measured.state != "not enough data":
            share = measured.agreement
            found.append(
                Calibrated(name=key.name, kind=key.kind, id=key.id, n=share.n, agreement=share.value, low=share.low,
                           at=clock.now())
            )  # fmt: skip
    return found


def source_rows(found: Agreement) -> list[dict[str, Any]]:
    """The sources as rows a person reads."""
    return [
        {
            "source": str(s.source),
            "signals": s.signals,
            "trajectories": s.trajectories,
            "good": _text(s.positive),
            "counted": s.counted,
            "ignored": "; ".join(f"{n}× {why}" for why, n in sorted(s.ignored.items(), key=lambda i: (-i[1], i[0]))),
        }
        for s in found.sources
    ]


def pair_rows(found: Agreement) -> list[dict[str, Any]]:
    """The pairs as rows a person reads; what the rule made of the signals comes last."""
    return [
        {
            "one": str(p.one),
            "other": p.other.name if p.other.kind == "rule" else str(p.other),
            "n": p.agreement.n,
            "agree": _text(p.agreement),
            "kappa": _text(p.kappa),
            "state": p.state,
        }
        for p in (*found.pairs, *found.resolved)
    ]


def _verdicts(by_trajectory: Mapping[Key, Sequence[Signal]]) -> dict[Key, bool]:
    means = {id: _mean(signals) for id, signals in by_trajectory.items()}
    return {id: mean > _EVEN for id, mean in means.items() if mean is not None and mean != _EVEN}


def _mean(signals: Sequence[Signal]) -> float | None:
    """Of those in force; what is superseded or retracted nobody says any more."""
    values = [s.value for s in signals if s.value is not None and s.in_force]
    return sum(values) / len(values) if values else None


def _summary(
    key: SourceKey, by_trajectory: Mapping[Key, Sequence[Signal]], verdicts: Mapping[Key, bool], alpha: float
) -> SourceSummary:
    signals = [s for all in by_trajectory.values() for s in all]
    stated = [s.confidence for s in signals if s.confidence is not None]
    means = [mean for all in by_trajectory.values() if (mean := _mean(all)) is not None]
    return SourceSummary(
        source=key,
        signals=len(signals),
        trajectories=len(verdicts),
        positive=wilson(sum(verdicts.values()), len(verdicts), alpha),
        reward=mean_interval(means, alpha, least=0.0, most=1.0),
        confidence=sum(stated) / len(stated) if stated else nan,
        counted=sum(not s.ignored for s in signals),
        ignored=dict(Counter(_reason(s.ignored) for s in signals if s.ignored)),
    )


def _reason(ignored: str) -> str:
    """The reason without the ids and numbers of the one case."""
    head = ignored.split(":")[0]
    words = head.split()
    return " ".join("…" if any(map(str.isdigit, word)) or "_" in word else word for word in words)


def _text(interval: Interval) -> str:
    return "-" if isnan(interval.value) else f"{interval.value:.2f} [{interval.low:.2f}, {interval.high:.2f}]"
