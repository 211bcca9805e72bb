"""Replay-first evaluation: would a candidate have done better on decisions that really happened?

Each case is re-made under the candidate and judged by the tape, never by opinion: the recorded outcome
of the same action, a demonstrated action, a stated correction. What none of them can judge is
*unknown*, counted apart and never as success or failure. The champion's recorded outcome is its own
replay, so both are compared on the same cases.

Improvement is stratified by that outcome: with `pi` the share of failures among all usable cases,

    improvement = pi · fixed - (1 - pi) · lost

The replayed cases are mostly failures, by choice. Counted as they come they would promise an improvement to
any agent that is not deterministic, the champion itself included: what failed once is picked for having
failed, and succeeds more often the next time (regression to the mean). Weighted by their share in the
population, what is won so on the failures is lost again on the successes, and an identical agent's
improvement is 0 in expectation.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from math import sqrt
from typing import Literal

import msgspec

from evaluators.cases import Action, Case, same_action
from evaluators.corrections import EstablishedFact, outdated
from evaluators.facts import quantities, same_quantities, stated_fact
from evaluators.intervals import Interval, wilson

Judgement = Literal["success", "failure", "unknown"]
_FAILURE_SHARE = 2 / 3
"""Of the replayed cases, how many are failures at most; the rest guards what already works."""


class CaseResult(msgspec.Struct, frozen=True):
    event_id: str
    tenant: str
    champion: bool
    candidate: Judgement
    answer: str


class Replay(msgspec.Struct, frozen=True):
    """A candidate's replay, compared with the champion on the cases that could be judged."""

    results: tuple[CaseResult, ...]
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

    @property
    def unknown_share(self) -> float:
        return self.unknown / len(self.results) if self.results else 0.0


def usable(
    cases: Iterable[Case],
    *,
    exclude_sessions: Collection[str] = (),
    tasks: Collection[str] | None = None,
    clusters: Mapping[str, str] | None = None,
    facts: Sequence[EstablishedFact] = (),
) -> list[Case]:
    """The cases candidates and the champion could be compared on: the population of a replay.

    Cases a candidate was made from (`exclude_sessions`), cases outside the held-out `tasks` (when given,
    with the key -> cluster map), outdated ones, and failures nothing can judge are left out.
    """
    kept = []
    for case in cases:
        if case.success is None or case.session_id in exclude_sessions or outdated(case, facts):
            continue
        if tasks is not None and (clusters or {}).get(case.task_key, case.task_key) not in tasks:
            continue
        if not case.success and case.wanted is None and not _correct_quantities(case):
            continue
        kept.append(case)
    return kept


def select(population: Iterable[Case], limit: int) -> list[Case]:
    """At most `limit` of the usable cases, failures before successes; chance, fixed by their ids, decides which."""
    drawn = sorted(population, key=lambda c: hashlib.sha256(c.event_id.encode()).digest())
    failures = [c for c in drawn if not c.success]
    successes = [c for c in drawn if c.success]
    kept = failures[: max(round(limit * _FAILURE_SHARE), limit - len(successes))]
    return kept + successes[: limit - len(kept)]


def judge(case: Case, answer: Action | None) -> Judgement:
    """What the tape says about this answer to this case."""
    if answer is None:
        return "failure"
    if case.success and same_action(answer, case.action):
        return "success"
    if answer.malformed:
        return "failure"
    if case.wanted is not None:
        return "success" if same_action(answer, case.wanted) else "failure"
    right = _correct_quantities(case)
    if right:
        return "success" if not answer.calls and quantities(answer.text) == right else "failure"
    if not case.success and same_action(answer, case.action):
        return "failure"
    if case.success and not case.action.calls and quantities(case.action.text):
        return "success" if same_quantities(answer.text, case.action.text) else "failure"
    return "unknown"


def compare(
    cases: Sequence[Case],
    answers: Mapping[str, Action | None],
    alpha: float = 0.05,
    population: Sequence[Case] | None = None,
) -> Replay:
    """Judge a candidate's answers (by event id; None where it gave none) against the champion's record.

    `population` is what `cases` were selected from (the cases themselves when all were taken); it tells how
    frequent failures are, overall and for each tenant.
    """
    population = cases if population is None else population
    results = []
    for case in cases:
        answer = answers.get(case.event_id)
        said = "" if answer is None else (answer.text or "; ".join(f"{c.name}({c.arguments})" for c in answer.calls))
        results.append(CaseResult(case.event_id, case.tenant, bool(case.success), judge(case, answer), said[:200]))
    fixed, lost = _changes(results, alpha)
    return Replay(
        results=tuple(results),
        improvement=stratified(fixed, lost, _failure_share(population)),
        fixed=fixed,
        lost=lost,
        by_tenant={
            tenant: stratified(
                *_changes([r for r in results if r.tenant == tenant], alpha),
                _failure_share([c for c in population if c.tenant == tenant]),
            )
            for tenant in sorted({r.tenant for r in results})
        },
        unknown=sum(r.candidate == "unknown" for r in results),
        unanswered=sum(answers.get(c.event_id) is None for c in cases),
    )


def stratified(fixed: Interval, lost: Interval, failure_share: float) -> Interval:
    """`pi · fixed - (1 - pi) · lost` with the bounds of both strata combined as independent.

    The square-and-add rule of Newcombe (1998). A stratum nobody judged counts as no change, with bounds
    that leave everything open.
    """
    n = fixed.n + lost.n
    if n == 0:
        return Interval(value=0.0, low=-1.0, high=1.0, n=0)
    up, down = failure_share, 1 - failure_share
    won, gone = (i.value if i.n else 0.0 for i in (fixed, lost))
    value = up * won - down * gone
    low = value - sqrt((up * (won - fixed.low)) ** 2 + (down * (lost.high - gone)) ** 2)
    high = value + sqrt((up * (fixed.high - won)) ** 2 + (down * (gone - lost.low)) ** 2)
    return Interval(value=value, low=max(-1.0, low), high=min(1.0, high), n=n)


def _changes(results: Sequence[CaseResult], alpha: float) -> tuple[Interval, Interval]:
    """(share of failures turned into successes, share of successes lost) among judged cases."""
    failures = [r.candidate == "success" for r in results if not r.champion and r.candidate != "unknown"]
    successes = [r.candidate == "failure" for r in results if r.champion and r.candidate != "unknown"]
    return wilson(sum(failures), len(failures), alpha), wilson(sum(successes), len(successes), alpha)


def _failure_share(population: Sequence[Case]) -> float:
    return sum(not c.success for c in population) / len(population) if population else 0.0


def _correct_quantities(case: Case) -> list[tuple[str, str]]:
    """The quantities the latest correction says are right; empty when it names none."""
    for remark in reversed(case.corrections):
        fact = stated_fact(remark.text)
        found = quantities(fact.value if fact else remark.text)
        if found:
            return found
    return []
