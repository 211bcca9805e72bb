"""Memory: facts that users state and the agent does not know, or knows wrong, or knows and was not shown.

Extractive: an item's text is the statement itself in its normal form, its provenance the annotations it was read from.
An item replaces the older ones of its tenant and subject on the same topic. What all statements of one end user say is
that user's: it is shown to nobody else.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import msgspec

from evaluators import cases as recorded
from evaluators.cases import Case
from evaluators.corrections import EstablishedFact, Statement, statements
from evaluators.skills.procedures import subject_of
from evoplane.settings import Settings
from flows.interventions import retrieval
from flows.interventions.base import Evidence, Proposal, Surface
from registry.control import now
from registry.manifest import Manifest, MemoryItem, Retrieval

_SOURCES = 3
"""Sessions an item is made from: as many as establish a fact. Later ones are left for replay to judge on."""

Key = tuple[str, str, str | None]
"""Tenant, topic, subject."""


class Memory(Surface):
    surface = "memory"

    def cost(self, config: Settings) -> float:
        return config.evolve.memory_cost

    def risk(self, config: Settings) -> float:
        return config.surfaces.memory_risk

    def propose(self, evidence: Evidence, config: Settings) -> list[Proposal]:
        """What to insert or update; what to retire; how else to choose what is shown."""
        made = [self._stated(evidence, config), self._contradicted(evidence, config), self._unseen(evidence, config)]
        return [p for p in made if p is not None][: config.surfaces.max_proposals]

    def apply(self, manifest: Manifest, proposal: Proposal, made: dict[str, Any]) -> Manifest:
        """The new items are candidates until a person has approved the version they come with; those the
        champion serves have been."""
        content = proposal.content
        replaced = {_key_of(item) for item in content.get("items", [])}
        gone = set(content.get("retire", []))
        kept = tuple(
            msgspec.structs.replace(item, trust="vetted")
            for item in manifest.memory
            if _key(item) not in replaced and item.id not in gone
        )
        at = now()
        new = tuple(
            MemoryItem(
                id=f"mem_{proposal.fingerprint[7:15]}_{position}",
                tenant=item["tenant"],
                topic=item["topic"],
                text=item["text"],
                trust="candidate",
                provenance=tuple(item["provenance"]),
                created_at=at,
                subject=item.get("subject", msgspec.UNSET),
            )
            for position, item in enumerate(content.get("items", []))
        )
        changed = content.get("retrieval")
        chosen = msgspec.convert(changed, Retrieval) if changed else manifest.retrieval
        return msgspec.structs.replace(manifest, memory=kept + new, retrieval=chosen)

    def _stated(self, evidence: Evidence, config: Settings) -> Proposal | None:
        known = {_key(item): item.text for item in evidence.manifest.memory}
        subjects = _subjects(evidence.cases)
        facts = [(f, _one_subject(f, subjects)) for f in evidence.facts]
        news = [(f, s) for f, s in facts if known.get((f.tenant, f.fact.topic, s)) != f.fact.text]
        news = _bounded([(f, s) for f, s in news if known.get((f.tenant, f.fact.topic, None)) != f.fact.text], config)
        if not news:
            return None
        items: list[dict[str, Any]] = []
        for f, subject in news:
            item: dict[str, Any] = {
                "tenant": f.tenant,
                "topic": f.fact.topic,
                "text": f.fact.text,
                "provenance": list(f.provenance[:_SOURCES]),
            }
            items.append(item if subject is None else {**item, "subject": subject})
        sources = {(f.tenant, session) for f, _ in news for session in f.sessions[:_SOURCES]}
        return Proposal(
            surface=self.surface,
            summary=f"{len(items)} fact{'s' * (len(items) > 1)}: " + "; ".join(sorted({f.fact.topic for f, _ in news})),
            diff="\n".join(_diff(f, s, known.get((f.tenant, f.fact.topic, s))) for f, s in news),
            content={"items": items},
            cost=self.cost(config),
            risk="reads only: shown to the tenant it comes from; a wrong fact is repeated until corrected",
            risk_penalty=self.risk(config),
            source_sessions=tuple(sorted(sources)),
            evidence=tuple(sorted(id for f, _ in news for id in f.provenance)),
        )

    def _contradicted(self, evidence: Evidence, config: Settings) -> Proposal | None:
        """Items that enough people have contradicted since, though they don't agree on what is right."""
        settled = {(f.tenant, f.fact.topic) for f in evidence.facts}
        said: dict[tuple[str, str], list[Statement]] = defaultdict(list)
        for statement in statements(evidence.current):
            said[statement.tenant, statement.fact.topic].append(statement)
        gone: list[tuple[MemoryItem, list[Statement]]] = []
        for item in evidence.manifest.memory:
            if (item.tenant, item.topic) in settled:
                continue  # it is right, or another takes its place
            since = [s for s in said[item.tenant, item.topic] if s.at >= item.created_at]
            against = [s for s in since if s.fact.text != item.text]
            enough = len({s.session_id for s in against}) >= config.surfaces.min_sessions
            if enough and len(against) > 2 * (len(since) - len(against)):
                gone.append((item, against))
        gone = gone[: config.surfaces.max_items]
        if not gone:
            return None
        return Proposal(
            surface=self.surface,
            summary=f"retire {len(gone)} contradicted fact{'s' * (len(gone) > 1)}",
            diff="\n".join(
                f"- {item.tenant}: {item.text}  (contradicted in {len({s.session_id for s in against})} sessions)"
                for item, against in gone
            ),
            content={"items": [], "retire": [item.id for item, _ in gone]},
            cost=self.cost(config),
            risk="the agent says nothing where it said something that was sometimes right",
            risk_penalty=self.risk(config),
            source_sessions=tuple(
                sorted({(s.tenant, s.session_id) for _, against in gone for s in against[:_SOURCES]})
            ),
            evidence=tuple(sorted({s.annotation_id for _, against in gone for s in against})),
        )

    def _unseen(self, evidence: Evidence, config: Settings) -> Proposal | None:
        """Another retrieval policy, where what people had to say was in memory and was not shown."""
        found = retrieval.better(
            evidence.current, evidence.manifest, config.surfaces.min_sessions, config.gateway.memory_items
        )
        if found is None:
            return None
        policy, missed = found
        before = evidence.manifest.retrieval
        return Proposal(
            surface=self.surface,
            summary=f"retrieval: {len(missed)} answers were in memory and not shown",
            diff="\n".join(
                f"- {name} {getattr(before, name)}\n+ {name} {getattr(policy, name)}"
                for name in ("items", "overlap")
                if getattr(before, name) != getattr(policy, name)
            ),
            content={"retrieval": msgspec.to_builtins(policy)},
            cost=self.cost(config),
            risk="more of memory is shown with every request, also what does not matter to it",
            risk_penalty=self.risk(config),
            source_sessions=tuple(dict.fromkeys(case.session for case in missed))[:_SOURCES],
            evidence=tuple(sorted(case.event_id for case in missed)),
        )


def _key(item: MemoryItem) -> Key:
    return item.tenant, item.topic, item.subject or None


def _key_of(item: dict[str, Any]) -> Key:
    return item["tenant"], item["topic"], item.get("subject")


def _subjects(cases: Sequence[Case]) -> dict[recorded.Key, str | None]:
    """By tenant and session: clients name sessions, and two tenants' clients may choose the same name."""
    return {case.session: subject_of(case) for case in cases}


def _one_subject(fact: EstablishedFact, subjects: dict[tuple[str, str], str | None]) -> str | None:
    """The end user who alone says so; None when several do, or when clients don't name them."""
    said = {subjects.get((fact.tenant, session)) for session in fact.sessions}
    return said.pop() if len(said) == 1 else None


def _bounded(
    news: list[tuple[EstablishedFact, str | None]], config: Settings
) -> list[tuple[EstablishedFact, str | None]]:
    """As many as one proposal may hold, those that most sessions state first."""
    kept: list[tuple[EstablishedFact, str | None]] = []
    size = 0
    for fact, subject in sorted(news, key=lambda each: -len(each[0].sessions)):
        size += len(fact.fact.text.encode())
        if len(kept) < config.surfaces.max_items and size <= config.surfaces.max_bytes:
            kept.append((fact, subject))
    return sorted(kept, key=lambda each: (each[0].tenant, each[0].fact.topic))


def _diff(fact: EstablishedFact, subject: str | None, old: str | None) -> str:
    whose = fact.tenant if subject is None else f"{fact.tenant}, {subject} alone"
    removed = f"- {whose}: {old}\n" if old else ""
    said = f"{len(fact.sessions)} sessions say so, {fact.contradicted} against"
    return f"{removed}+ {whose}: {fact.fact.text}  ({said})"
