"""What the people on the other side have established: facts several of them state independently.

One user may be wrong, or lie. A fact counts when at least `min_sessions` different sessions of the same
tenant state it and, since it was first stated, most statements about its topic agree. A newer fact
replaces an older one as soon as that holds for it: companies change their minds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import msgspec

from evaluators.cases import Case
from evaluators.facts import Fact, quantities, stated_fact


class Statement(msgspec.Struct, frozen=True):
    """One person stating one fact."""

    tenant: str
    session_id: str
    annotation_id: str
    at: str
    fact: Fact


class EstablishedFact(msgspec.Struct, frozen=True):
    tenant: str
    fact: Fact
    provenance: tuple[str, ...]
    """Annotation ids, oldest first."""
    sessions: tuple[str, ...]
    """Distinct sessions, in the order of their first statement."""
    since: str
    """When it was first stated; answers given before may rightly say something else."""
    contradicted: int
    """Statements of the same topic with another value since then."""


def statements(cases: Sequence[Case]) -> list[Statement]:
    """Every fact stated in a correction or a demonstrated answer, oldest first."""
    out: dict[tuple[str, str], Statement] = {}
    for case in cases:
        said = [(remark.id, remark.at, remark.text) for remark in case.corrections]
        if case.demonstration_id and case.wanted and not case.wanted.calls:
            said.append((case.demonstration_id, case.at, case.wanted.text))
        for annotation_id, at, text in said:
            fact = stated_fact(text)
            if fact:
                out[case.tenant, annotation_id] = Statement(case.tenant, case.session_id, annotation_id, at, fact)
    return sorted(out.values(), key=lambda s: (s.at, s.annotation_id))


def established(cases: Sequence[Case], min_sessions: int = 3) -> list[EstablishedFact]:
    """The facts in force, one a tenant and topic at most."""
    topics: dict[tuple[str, str], list[Statement]] = defaultdict(list)
    for statement in statements(cases):
        topics[statement.tenant, statement.fact.topic].append(statement)
    out = []
    for (tenant, _), said in sorted(topics.items()):
        for value in dict.fromkeys(s.fact.value for s in reversed(said)):
            first = next(i for i, s in enumerate(said) if s.fact.value == value)
            agreeing = [s for s in said[first:] if s.fact.value == value]
            sessions = tuple(dict.fromkeys(s.session_id for s in agreeing))
            contradicted = len(said) - first - len(agreeing)
            if len(sessions) >= min_sessions and len(agreeing) > contradicted:
                out.append(
                    EstablishedFact(
                        tenant=tenant,
                        fact=agreeing[0].fact,
                        provenance=tuple(s.annotation_id for s in agreeing),
                        sessions=sessions,
                        since=agreeing[0].at,
                        contradicted=contradicted,
                    )
                )
                break
    return out


def outdated(case: Case, facts: Sequence[EstablishedFact]) -> bool:
    """Does the case hold up as right what has since been established to be otherwise?"""
    words = set(case.request.lower().replace("?", " ").replace(".", " ").replace(",", " ").split())
    for known in facts:
        if known.tenant != case.tenant or case.at >= known.since or not set(known.fact.topic.split()) <= words:
            continue
        right = quantities(known.fact.value)
        held = case.wanted.text if case.wanted and not case.wanted.calls else ""
        if case.success and not case.action.calls:
            held = held or case.action.text
        if held and quantities(held) != right:
            return True
        if not held and any(quantities(f.value) != right for r in case.corrections if (f := stated_fact(r.text))):
            return True
    return False
