"""Memory insertion: facts that users state and the agent does not know.

Extractive: an item's text is the statement itself in its normal form, its provenance the annotations it
was read from. An item replaces the tenant's older items on the same topic.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import msgspec

from evaluators.corrections import EstablishedFact
from evoplane.settings import Settings
from flows.interventions.base import Evidence, Proposal, Surface
from registry.control import now
from registry.manifest import Manifest, MemoryItem

_SOURCES = 3
"""Sessions an item is made from: as many as establish a fact. Later ones are left for replay to judge on."""


class Memory(Surface):
    surface = "memory"

    def cost(self, config: Settings) -> float:
        return config.evolve.memory_cost

    def risk(self, config: Settings) -> float:
        return config.surfaces.memory_risk

    def propose(self, evidence: Evidence, config: Settings) -> list[Proposal]:
        known = {(item.tenant, item.topic): item.text for item in evidence.manifest.memory}
        news = [f for f in evidence.facts if known.get((f.tenant, f.fact.topic)) != f.fact.text]
        if not news:
            return []
        items = [
            {
                "tenant": f.tenant,
                "topic": f.fact.topic,
                "text": f.fact.text,
                "provenance": list(f.provenance[:_SOURCES]),
            }
            for f in news
        ]
        sources = {session for f in news for session in f.sessions[:_SOURCES]}
        proposal = Proposal(
            surface=self.surface,
            summary=f"{len(items)} fact{'s' * (len(items) > 1)}: " + "; ".join(sorted({f.fact.topic for f in news})),
            diff="\n".join(_diff(f, known.get((f.tenant, f.fact.topic))) for f in news),
            content={"items": items},
            cost=self.cost(config),
            risk="reads only: shown to the tenant it comes from; a wrong fact is repeated until corrected",
            source_sessions=tuple(sorted(sources)),
            evidence=tuple(sorted(id for f in news for id in f.provenance)),
            risk_penalty=self.risk(config),
        )
        return [proposal]

    def apply(self, manifest: Manifest, proposal: Proposal, made: dict[str, Any]) -> Manifest:
        """The new items are candidates until a person has approved the version they come with; those the
        champion serves have been."""
        replaced: dict[str, set[str]] = defaultdict(set)
        for item in proposal.content["items"]:
            replaced[item["tenant"]].add(item["topic"])
        kept = tuple(
            msgspec.structs.replace(item, trust="vetted")
            for item in manifest.memory
            if item.topic not in replaced[item.tenant]
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
            )
            for position, item in enumerate(proposal.content["items"])
        )
        return msgspec.structs.replace(manifest, memory=kept + new)


def _diff(fact: EstablishedFact, old: str | None) -> str:
    removed = f"- {fact.tenant}: {old}\n" if old else ""
    said = f"{len(fact.sessions)} sessions say so, {fact.contradicted} against"
    return f"{removed}+ {fact.tenant}: {fact.fact.text}  ({said})"
