"""Replay-first evaluation: would a candidate have done better on decisions that really happened?

Each case is re-made under the candidate and judged by the tape, never by opinion: the recorded outcome
of the same action, a demonstrated action, a stated correction. What none of them can judge is
*unknown*, counted apart and never as success or failure. The champion's recorded outcome is its own
replay, so both are compared on the same cases, in pairs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from evaluators.cases import Action, Case, same_action
from evaluators.corrections import EstablishedFact, outdated
from evaluators.facts import quantities, same_quantities, stated_fact
from evaluators.intervals import Interval, PairedCounts, paired_difference, wilson

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
    """p(candidate) - p(champion), paired, over judged cases."""
    fixed: Interval
    """Share of the champion's failures the candidate turns into successes."""
    lost: Interval
    """Share of the champion's successes the candidate loses."""
    by_tenant: dict[str, Interval]
    """Paired improvement within each tenant's own cases."""
    unknown: int
    unanswered: int
    """Calls that gave no answer at all; they count as failures."""

    @property
    def unknown_share(self) -> float:
        return self.unknown / len(self.results) if self.results else 0.0


def select(
    cases: Iterable[Case],
    limit: int,
    *,
    exclude_sessions: Collection[str] = (),
    tasks: Collection[str] | None = None,
    clusters: Mapping[str, str] | None = None,
    facts: Sequence[EstablishedFact] = (),
) -> list[Case]:
    """The cases every candidate and the champion are compared on, at most `limit`, failures before successes.

    Cases a candidate was made from (`exclude_sessions`), cases outside the held-out `tasks` (when given,
    with the key -> cluster map), outdated ones, and failures nothing can judge are left out.
    """
    usable = []
    for case in cases:
        if case.success is None or case.session_id in exclude_sessions or outdated(case, facts):
            continue
        if tasks is not None and (clusters or {}).get(case.task_key, case.task_key) not in tasks:
            continue
        if not case.success and case.wanted is None and not _correct_quantities(case):
            continue
        usable.append(case)
    usable.sort(key=lambda c: hashlib.sha256(c.event_id.encode()).digest())
    failures = [c for c in usable if not c.success]
    successes = [c for c in usable if c.success]
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


def compare(cases: Sequence[Case], answers: Mapping[str, Action | None], alpha: float = 0.05) -> Replay:
    """Judge a candidate's answers (by event id; None where it gave none) against the champion's record."""
    results = []
    for case in cases:
        answer = answers.get(case.event_id)
        said = "" if answer is None else (answer.text or "; ".join(f"{c.name}({c.arguments})" for c in answer.calls))
        results.append(CaseResult(case.event_id, case.tenant, bool(case.success), judge(case, answer), said[:200]))
    failures = [r for r in results if not r.champion and r.candidate != "unknown"]
    successes = [r for r in results if r.champion and r.candidate != "unknown"]
    return Replay(
        results=tuple(results),
        improvement=_improvement(results, alpha),
        fixed=wilson(sum(r.candidate == "success" for r in failures), len(failures), alpha),
        lost=wilson(sum(r.candidate == "failure" for r in successes), len(successes), alpha),
        by_tenant={
            tenant: _improvement([r for r in results if r.tenant == tenant], alpha)
            for tenant in sorted({r.tenant for r in results})
        },
        unknown=sum(r.candidate == "unknown" for r in results),
        unanswered=sum(answers.get(c.event_id) is None for c in cases),
    )


def _improvement(results: Sequence[CaseResult], alpha: float) -> Interval:
    known = [(r.candidate == "success", r.champion) for r in results if r.candidate != "unknown"]
    counts = PairedCounts(
        both=known.count((True, True)),
        only_new=known.count((True, False)),
        only_old=known.count((False, True)),
        neither=known.count((False, False)),
    )
    return paired_difference(counts, alpha)


def _correct_quantities(case: Case) -> list[tuple[str, str]]:
    """The quantities the latest correction says are right; empty when it names none."""
    for remark in reversed(case.corrections):
        fact = stated_fact(remark.text)
        found = quantities(fact.value if fact else remark.text)
        if found:
            return found
    return []
