"""From judged decisions to a diagnosis."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from evaluators.cases import Case, Key
from evaluators.corrections import EstablishedFact, outdated
from evaluators.diagnosis.belief import Disbelief, believed, doubted
from evaluators.diagnosis.clusters import Group, groups
from evaluators.diagnosis.mix import Change, change
from evaluators.diagnosis.outcomes import Outcome, outcomes_of, read_only
from evaluators.diagnosis.surfaces import Surface, suggest
from evaluators.diagnosis.symptoms import symptom, told
from evaluators.intervals import Interval, wilson
from evaluators.tasks import cluster as cluster_keys

_EXAMPLES = 5
_REGRESSION = 0.05
"""A loss of less than this is not worth going back for."""
_COMPARED = 0.5
"""Share of the newer work that must have counterparts before versions are compared."""


class Example(msgspec.Struct, frozen=True):
    """A representative failure."""

    trajectory_id: str
    event_id: str
    text: str


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    """Failures of one cause."""

    name: str
    symptom: str
    surface: Surface
    why: tuple[str, ...]
    """The evidence for the surface."""
    prevalence: Interval
    """Share of all judged work that failed for this reason."""
    p: float
    """How likely chance brings as many together, adjusted for all clusters looked at."""
    events: tuple[Key, ...]
    """(tenant, id) of the decisions that failed so."""
    tenants: tuple[str, ...]
    kinds: tuple[str, ...]
    """Wanted tools or topics."""
    tool: str = ""
    argument: str = ""
    error_class: str = ""
    templates: tuple[str, ...] = ()
    """The most frequent requests, numbers and names masked."""
    examples: tuple[Example, ...] = ()
    broad: bool = False
    """Across tenants and tools: something the model can't do rather than something it was not told."""


class Regression(msgspec.Struct, frozen=True):
    """The version is worse than the one before it, at the same work."""

    version: str
    before: str
    change: Change


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    clusters: tuple[Cluster, ...]
    """More than chance first, then by size."""
    judged: int
    failures: int
    regression: Regression | None = None
    shift: Change | None = None
    """The newer half of the work against the older: what changed within kinds of work, and what the mix changed."""
    disbelief: Disbelief | None = None
    """Why rewards of some judge were left out."""
    left_out: int = 0
    """Decisions that only that judge had judged."""

    def share(self, surface: Surface) -> float:
        """Share of the failures that clusters of this surface hold."""
        held = {key for c in self.clusters if c.surface == surface for key in c.events}
        return len(held) / self.failures if self.failures else 0.0

    @property
    def calls_for_nothing(self) -> bool:
        """Is there no cluster for which anything could be done?"""
        return all(c.surface == "no-op" for c in self.clusters)


def diagnose(
    cases: Sequence[Case],
    facts: Sequence[EstablishedFact] = (),
    alpha: float = 0.05,
    *,
    before: Sequence[Case] = (),
    tolerated: float = 0.1,
    look_ups: Collection[str] = (),
) -> Diagnosis:
    """Cluster the failures among judged cases of one agent version.

    Args:
        before: judged cases of the version before it, if there was one.
        tolerated: share of failures that calls for nothing (1 - the target of success).
        look_ups: tools known to change nothing, besides those whose records say so.
    """
    disbelief = doubted([*before, *cases], alpha)
    kept = believed(cases, disbelief)
    idle = read_only(kept) | frozenset(look_ups)
    outcomes = outcomes_of([c for c in kept if not outdated(c, facts)], idle)
    failures = sum(o.failed for o in outcomes)
    clusters = [_cluster(g, outcomes, alpha) for g in groups(outcomes, facts, tolerated, alpha)]
    earlier = outcomes_of(believed(before, disbelief), idle)
    regression = _regression(outcomes, earlier, alpha)
    if regression is not None:
        clusters.insert(0, _since(regression, outcomes, alpha))
    half = len(outcomes) // 2
    return Diagnosis(
        clusters=tuple(clusters),
        judged=len(outcomes),
        failures=failures,
        regression=regression,
        shift=change(outcomes[half:], outcomes[:half], alpha) if half else None,
        disbelief=disbelief,
        left_out=len(cases) - len(kept),
    )


def _regression(outcomes: Sequence[Outcome], earlier: Sequence[Outcome], alpha: float) -> Regression | None:
    if not outcomes or not earlier:
        return None
    found = change(outcomes, earlier, alpha)
    if found.compared < _COMPARED or found.within.high >= 0 or found.within.value > -_REGRESSION:
        return None
    return Regression(outcomes[-1].case.agent_version, earlier[-1].case.agent_version, found)


def _since(regression: Regression, outcomes: Sequence[Outcome], alpha: float) -> Cluster:
    change = regression.change
    return _described(
        [o for o in outcomes if o.failed],
        outcomes,
        alpha,
        name=f"worse since version {regression.version}",
        symptom="regression",
        surface="rollback",
        why=(
            f"at the same work, success changed by {change.within} from version {regression.before}",
            f"another mix of work accounts for {change.mix:+.2f}",
        ),
        p=alpha,
    )


def _cluster(group: Group, outcomes: Sequence[Outcome], alpha: float) -> Cluster:
    surface, why = suggest(group, outcomes)
    of_tools = not group.broad and "fact" not in group.symptom.kind
    return _described(
        group.members,
        outcomes,
        alpha,
        name=_name(group),
        symptom=group.symptom.kind,
        surface=surface,
        why=why,
        p=group.p,
        tool=group.symptom.tool if of_tools else "",
        argument=group.symptom.detail if group.symptom.kind == "arguments" else "",
        error_class=group.symptom.error_class,
        broad=group.broad,
    )


def _described(members: Sequence[Outcome], outcomes: Sequence[Outcome], alpha: float, **given: Any) -> Cluster:
    topics = {s.tool for o in members if "fact" in (s := symptom(o)).kind}
    return Cluster(
        prevalence=wilson(len(members), len(outcomes), alpha),
        events=tuple(o.case.key for o in members),
        tenants=tuple(sorted({o.case.tenant for o in members})),
        kinds=tuple(sorted(topics or {o.tool for o in members})),
        templates=_templates(members),
        examples=tuple(_example(o) for o in members[-_EXAMPLES:]),
        **given,
    )


def _name(group: Group) -> str:
    tool, detail = group.symptom.tool, group.symptom.detail
    if group.broad:
        return "calls and answers go wrong across tools and tenants"
    match group.symptom.kind:
        case "missing fact":
            return f'missing or stale fact: "{tool}" ({detail})'
        case "ignored fact":
            return f'ignores a fact in its context: "{tool}"'
        case "wrong tool":
            return f"{detail} called instead of {tool}"
        case "no call":
            return f"{tool} not called"
        case "arguments":
            tools = tool or ", ".join(sorted({o.tool for o in group.members}))
            return f"{tools}: wrong {detail or 'arguments'}"
        case "rejected call":
            return f"{tool} rejects its arguments ({group.symptom.error_class})"
        case "missing steps":
            return f"{tool}: steps in the wrong order" if detail == "order" else f"{tool}: left out {detail}"
        case "needless call":
            return f"{tool} called though nothing was due"
        case "refused":
            return "refuses what people want done"
        case "wrong answer":
            return "wrong answer"
        case "unexplained":
            return "unexplained"


def _templates(members: Sequence[Outcome]) -> tuple[str, ...]:
    keys = [o.case.task_key for o in members]
    named = cluster_keys(keys)
    return tuple(key for key, _ in Counter(named[k] for k in keys).most_common(3))


def _example(outcome: Outcome) -> Example:
    case = outcome.case
    did = "; ".join(f"{c.name}({c.arguments})" for c in outcome.done) or case.action.text[:120] or "(nothing)"
    right = case.corrections[-1].text if case.corrections else ""
    if not right and case.wanted is not None:
        right = told(case.wanted)
    text = f"“{case.request[:120]}” → {did}" + (f" (right: {right[:120]})" if right else "")
    return Example(case.trajectory_id, case.event_id, text)
