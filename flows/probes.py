"""What a candidate is asked besides the replayed cases: what used to work, and its own tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dashboards.reading import served
from evaluators import replay
from evaluators.cases import Action, Case, Key
from evaluators.intervals import Interval, wilson
from flows.interventions import Evidence

Answers = Mapping[Key, Action | None]


def probes(evidence: Evidence, replayed: Sequence[Case], limit: int) -> list[Case]:
    """Drift probes: successes recorded before the replayed ones, one of each kind of request and tenant, newest first.

    What has since been established to be otherwise is no success any longer, and left out.
    """
    asked = {c.key for c in replayed}
    known = replay.usable(served(list(evidence.cases)), facts=evidence.facts)
    found: dict[tuple[str, str], Case] = {}
    for case in sorted(known, key=lambda c: (c.at, c.event_id), reverse=True):
        if case.success and case.key not in asked:
            kind = evidence.split.clusters.get(case.task_key, case.task_key)
            found.setdefault((case.tenant, kind), case)
    return list(found.values())[:limit]


def probes_lost(cases: Sequence[Case], answers: Answers, alpha: float) -> Interval | None:
    """Share of the probes that are answered wrong now, among those the tape can judge; None without any."""
    judged = [replay.judge(case, answers.get(case.key)) for case in cases]
    known = [j for j in judged if j != "unknown"]
    return wilson(sum(j == "failure" for j in known), len(known), alpha) if known else None


def tests_failed(cases: Sequence[Case], answers: Answers) -> tuple[str, ...]:
    """The cases a change must answer right, and did not."""
    return tuple(c.event_id for c in cases if replay.judge(c, answers.get(c.key)) == "failure")
