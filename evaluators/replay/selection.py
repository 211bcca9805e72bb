"""Which recorded decisions a candidate is replayed on."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence

from evaluators.cases import Case, Key
from evaluators.corrections import EstablishedFact, outdated
from evaluators.replay.judging import correct_quantities

_FAILURE_SHARE = 2 / 3
"""Of the replayed cases, how many are failures at most; the rest guards what already works."""


def usable(
    cases: Iterable[Case],
    *,
    exclude_sessions: Collection[Key] = (),
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
        if case.success is None or case.session in exclude_sessions or outdated(case, facts):
            continue
        if tasks is not None and (clusters or {}).get(case.task_key, case.task_key) not in tasks:
            continue
        if not case.success and case.wanted is None and not correct_quantities(case):
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
