"""Policy update: a LoRA adapter trained on what people demonstrated and on what was resolved (SFT)."""

from __future__ import annotations

from typing import Any

import msgspec

from evaluators.dataset import select
from evoplane.settings import Settings
from flows import policies
from flows.interventions.base import Evidence, Proposal, Surface
from flows.training_set import MAX_EXAMPLES
from registry.manifest import Manifest, Policy


class PolicyUpdate(Surface):
    surface = "policy"

    def cost(self, config: Settings) -> float:
        return config.evolve.policy_cost

    def risk(self, config: Settings) -> float:
        return config.surfaces.policy_risk

    def propose(self, evidence: Evidence, config: Settings) -> list[Proposal]:
        """Only when failures call for it, and people have shown often enough what would be right."""
        clusters = [c for c in evidence.diagnosis.clusters if c.surface == self.surface]
        if not clusters:
            return []
        chosen = select(evidence.cases, evidence.split, evidence.facts, MAX_EXAMPLES)
        demonstrated = [c for c in chosen.train if c.demonstration_id]
        if len(demonstrated) < config.evolve.min_demonstrations:
            return []
        recipe = {
            "algorithm": "sft",
            "epochs": config.evolve.epochs,
            "batch_size": config.evolve.batch_size,
            "learning_rate": config.evolve.learning_rate,
            "lora_rank": config.evolve.lora_rank,
        }
        kinds = sorted({kind for c in clusters for kind in c.kinds})
        dropped = "; ".join(f"{n} {reason}" for reason, n in sorted(chosen.dropped.items())) or "none"
        proposal = Proposal(
            surface=self.surface,
            summary=f"adapter from {len(demonstrated)} demonstrations of {', '.join(kinds)} "
            f"and {len(chosen.train) - len(demonstrated)} successes",
            diff=f"+ LoRA adapter (rank {config.evolve.lora_rank}) from {len(chosen.train)} examples\n"
            f"  held out: {len(chosen.heldout)} examples of {len(evidence.split.heldout)} tasks\n"
            f"  dropped: {dropped}",
            content=recipe,
            cost=self.cost(config),
            risk="changes every answer of every tenant; reversible by one pointer",
            uses_heldout_tasks=True,
            evidence=tuple(sorted(c.demonstration_id for c in chosen.train if c.demonstration_id)),
            risk_penalty=self.risk(config),
        )
        return [proposal]

    def apply(self, manifest: Manifest, proposal: Proposal, made: dict[str, Any]) -> Manifest:
        digest: str = made["digest"]
        policy = Policy(
            base=manifest.policy.base,
            served_name=policies.candidate_name(made["agent"], digest),
            adapter=digest,
            path=made["path"],
        )
        return msgspec.structs.replace(manifest, policy=policy)
