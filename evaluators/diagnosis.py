"""Why an agent fails: its failures in named clusters, each with how common it is and what may help.

A failure is explained by what somebody said about it: a demonstrated tool call shows what the agent
should have done, a stated fact what it should have known. Failures nobody commented on stay
unexplained; they are counted, and no surface is suggested for them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Literal

import msgspec

from evaluators.cases import Case
from evaluators.corrections import EstablishedFact, outdated
from evaluators.facts import stated_fact
from evaluators.intervals import Interval, wilson

Surface = Literal["memory", "policy", "none"]
_EXAMPLES = 5


class Cluster(msgspec.Struct, frozen=True):
    name: str
    surface: Surface
    prevalence: Interval
    """Share of all judged decisions that failed for this reason."""
    events: tuple[str, ...]
    tenants: tuple[str, ...]
    kinds: tuple[str, ...]
    """Wanted tools or topics."""
    examples: tuple[str, ...]

    @property
    def broad(self) -> bool:
        """Across tenants and tools: something the model can't do rather than something it was not told."""
        return len(self.tenants) > 1 and len(self.kinds) > 1


class Diagnosis(msgspec.Struct, frozen=True):
    clusters: tuple[Cluster, ...]
    """Largest first."""
    judged: int
    failures: int

    def share(self, surface: Surface) -> float:
        """Share of the failures that clusters of this surface hold."""
        held = {event for c in self.clusters if c.surface == surface for event in c.events}
        return len(held) / self.failures if self.failures else 0.0


def diagnose(cases: Sequence[Case], facts: Sequence[EstablishedFact] = (), alpha: float = 0.05) -> Diagnosis:
    """Cluster the failures among judged cases of one agent version."""
    judged = [c for c in cases if c.success is not None and not outdated(c, facts)]
    failures = [c for c in judged if not c.success]
    groups: dict[tuple[str, Surface], list[tuple[Case, str]]] = defaultdict(list)
    for case in failures:
        name, surface, kind = _explain(case)
        groups[name, surface].append((case, kind))
    clusters = [
        Cluster(
            name=name,
            surface=surface,
            prevalence=wilson(len(members), len(judged), alpha),
            events=tuple(c.event_id for c, _ in members),
            tenants=tuple(sorted({c.tenant for c, _ in members})),
            kinds=tuple(sorted({kind for _, kind in members})),
            examples=tuple(_example(c) for c, _ in members[-_EXAMPLES:]),
        )
        for (name, surface), members in groups.items()
    ]
    clusters.sort(key=lambda c: (-len(c.events), c.name))
    return Diagnosis(clusters=tuple(clusters), judged=len(judged), failures=len(failures))


def _explain(case: Case) -> tuple[str, Surface, str]:
    """The cluster's name, the surface that may help, and the tool or topic of this member."""
    wanted = case.wanted
    if wanted and wanted.calls:
        return "no or incorrect tool call", "policy", wanted.kind
    texts = [remark.text for remark in case.corrections] + ([wanted.text] if wanted else [])
    fact = next((f for text in texts if (f := stated_fact(text))), None)
    if fact is None:
        return "unexplained", "none", case.action.kind
    if fact.value in case.shown:
        return "ignores a fact in its context", "policy", fact.topic
    return f'missing or stale fact: "{fact.topic}" ({case.tenant})', "memory", fact.topic


def _example(case: Case) -> str:
    action = case.action
    did = "; ".join(f"{c.name}({c.arguments})" for c in action.calls) or action.text[:120] or "(nothing)"
    said = case.corrections[-1].text if case.corrections else ""
    if not said and case.wanted:
        said = "; ".join(f"{c.name}({c.arguments})" for c in case.wanted.calls) or case.wanted.text
    return f"“{case.request[:120]}” → {did}" + (f" (right: {said[:120]})" if said else "")
