"""A candidate against the champion on the same recorded decisions, with intervals.

The champion's recorded outcome is its own replay, so both are compared on the same cases. What the tape can't
judge is *unknown*, counted apart and never as success or failure.

Improvement is stratified by that outcome: with `pi` the share of failures among all usable cases,

    improvement = pi · fixed - (1 - pi) · lost

The replayed cases are mostly failures, by choice. Counted as they come they would promise an improvement to
any agent that is not deterministic, the champion itself included: what failed once is picked for having
failed, and succeeds more often the next time (regression to the mean). Weighted by their share in the
population, what is won so on the failures is lost again on the successes, and an identical agent's
improvement is 0 in expectation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt

import msgspec

from evaluators.cases import Action, Case, Key
from evaluators.intervals import Interval, clustered_rate, wilson
from evaluators.replay.classes import Klass, Shares, shares
from evaluators.replay.judging import Judgement, judge
from evaluators.replay.safety import NOT_TESTED, Safety

Answers = Mapping[Key, Action | None] | Mapping[Key, Sequence[Action | None]]
"""By the case's key: the candidate's action, or one for each repeat; None where it gave none."""


class CaseResult(msgspec.Struct, frozen=True):
    event_id: str
    tenant: str
    champion: bool
    candidate: Judgement
    answer: str
    repeat: int = 0

    @property
    def key(self) -> Key:
        return self.tenant, self.event_id


class Replay(msgspec.Struct, frozen=True):
    """A candidate's replay, compared with the champion on the cases that could be judged."""

    results: tuple[CaseResult, ...]
    """One for each case and repeat."""
    improvement: Interval
    """p(candidate) - p(champion) in the population the cases were taken from; `n` cases were judged."""
    fixed: Interval
    """Share of the champion's failures the candidate turns into successes."""
    lost: Interval
    """Share of the champion's successes the candidate loses."""
    by_tenant: dict[str, Interval]
    """Improvement within each tenant's own cases."""
    unknown: int
    unanswered: int
    """Calls that gave no answer at all; they count as failures."""
    safety: Safety = NOT_TESTED
    """Violations of both sides; `safety_violated` is the gate."""
    klass: Shares = Shares()
    """How far the results can be believed, as shares of the replayed cases."""

    @property
    def unknown_share(self) -> float:
        return self.unknown / len(self.results) if self.results else 0.0


def compare(
    cases: Sequence[Case],
    answers: Answers,
    alpha: float = 0.05,
    population: Sequence[Case] | None = None,
    *,
    safety: Safety = NOT_TESTED,
    classes: Mapping[Key, Klass] | None = None,
) -> Replay:
    """Judge a candidate's answers against the champion's record.

    `population` is what `cases` were selected from (the cases themselves when all were taken); it tells how
    frequent failures are, overall and for each tenant. `classes` says by the case's key how a case was replayed;
    without it, what the tape judged is deterministic and the rest non_replayable. A case answered several times is
    one observation: its share of successes over the repeats that could be judged.
    """
    results = [r for case in cases for r in _judged(case, answers.get(case.key))]
    known: Mapping[Key, Klass] = classes if classes is not None else _judgeable(results)
    return from_results(
        results,
        [(c.tenant, bool(c.success)) for c in (cases if population is None else population)],
        alpha,
        unanswered=sum(a is None for case in cases for a in _repeats(answers.get(case.key))),
        safety=safety,
        classes=[known.get(case.key, "non_replayable") for case in cases],
    )


def from_results(
    results: Sequence[CaseResult],
    population: Sequence[tuple[str, bool]],
    alpha: float = 0.05,
    *,
    unanswered: int = 0,
    safety: Safety = NOT_TESTED,
    classes: Sequence[Klass] = (),
) -> Replay:
    """The comparison from judged results; `population` has the tenant and recorded success of all usable cases."""
    fixed, lost = _changes(results, alpha)
    return Replay(
        results=tuple(results),
        improvement=stratified(fixed, lost, _failures([ok for _, ok in population], alpha)),
        fixed=fixed,
        lost=lost,
        by_tenant={
            tenant: stratified(
                *_changes([r for r in results if r.tenant == tenant], alpha),
                _failures([ok for whose, ok in population if whose == tenant], alpha),
            )
            for tenant in sorted({r.tenant for r in results})
        },
        unknown=sum(r.candidate == "unknown" for r in results),
        unanswered=unanswered,
        safety=safety,
        klass=shares(classes),
    )


def stratified(fixed: Interval, lost: Interval, failures: Interval) -> Interval:
    """`pi · fixed - (1 - pi) · lost`, where `failures` estimates pi from the population's recorded outcomes.

    The bounds of the three independent estimates are combined by the square-and-add rule (Newcombe 1998; Zou & Donner
    2008, "Construction of confidence limits about effect measures: a general approach"), each weighted by how
    fast the improvement changes with it. Without the third term the interval would speak about this population's
    recorded luck, not about what users will meet. A stratum nobody judged counts as no change, with bounds
    that leave everything open.
    """
    n = fixed.n + lost.n
    if n == 0:
        return Interval(value=0.0, low=-1.0, high=1.0, n=0)
    up = failures.value if failures.n else 0.0
    down = 1 - up
    won, gone = (i.value if i.n else 0.0 for i in (fixed, lost))
    value = up * won - down * gone
    slope = won + gone
    low = value - sqrt(
        (up * (won - fixed.low)) ** 2 + (down * (lost.high - gone)) ** 2 + (slope * (up - failures.low)) ** 2
    )
    high = value + sqrt(
        (up * (fixed.high - won)) ** 2 + (down * (gone - lost.low)) ** 2 + (slope * (failures.high - up)) ** 2
    )
    return Interval(value=value, low=max(-1.0, low), high=min(1.0, high), n=n)


def _judged(case: Case, answers: Action | Sequence[Action | None] | None) -> list[CaseResult]:
    return [
        CaseResult(case.event_id, case.tenant, bool(case.success), judge(case, answer), _said(answer), repeat)
        for repeat, answer in enumerate(_repeats(answers))
    ]


def _repeats(answers: Action | Sequence[Action | None] | None) -> Sequence[Action | None]:
    return [answers] if answers is None or isinstance(answers, Action) else answers


def _said(answer: Action | None) -> str:
    if answer is None:
        return ""
    return (answer.text or "; ".join(f"{c.name}({c.arguments})" for c in answer.calls))[:200]


def _changes(results: Sequence[CaseResult], alpha: float) -> tuple[Interval, Interval]:
    """(share of failures turned into successes, share of successes lost) among judged cases."""
    by_case: dict[Key, list[CaseResult]] = {}
    for result in results:
        if result.candidate != "unknown":
            by_case.setdefault(result.key, []).append(result)
    fixed = [_share(group, "success") for group in by_case.values() if not group[0].champion]
    lost = [_share(group, "failure") for group in by_case.values() if group[0].champion]
    return clustered_rate(fixed, alpha), clustered_rate(lost, alpha)


def _share(group: Sequence[CaseResult], judgement: Judgement) -> float:
    return sum(r.candidate == judgement for r in group) / len(group)


def _judgeable(results: Sequence[CaseResult]) -> Mapping[Key, Klass]:
    return {r.key: "non_replayable" if r.candidate == "unknown" else "deterministic" for r in results}


def _failures(successes: Sequence[bool], alpha: float) -> Interval:
    return wilson(successes.count(False), len(successes), alpha)
