"""Policy updates: other weights, by what the data allow.

- SFT learns what people demonstrated, and what was resolved, so that it is not forgotten.
- RFT (rejection sampling) learns the agent's own successes alone, where nobody demonstrated anything.
- DPO learns from pairs: what was demonstrated against what the agent did instead.
- GRPO learns from groups of sampled answers whose reward is declared; it needs requests with mixed outcomes.
- OPD (on-policy distillation) learns from what was said about answers: corrections, as hints to a teacher.

Only the algorithms that `surfaces.algorithms` names are proposed. The recipe is carried out by the worker.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import msgspec

from evaluators.dataset import Selection, select
from evoplane.settings import Settings
from flows import policies
from flows.interventions.base import Evidence, Proposal, Surface
from flows.training_set import MAX_EXAMPLES
from registry.manifest import Manifest, Policy


class _Data(msgspec.Struct, frozen=True):
    """What an algorithm would learn from."""

    what: str
    rows: int
    ids: tuple[str, ...]


class PolicyUpdate(Surface):
    surface = "policy"

    def cost(self, config: Settings) -> float:
        return config.evolve.policy_cost

    def risk(self, config: Settings) -> float:
        return config.surfaces.policy_risk

    def propose(self, evidence: Evidence, config: Settings) -> list[Proposal]:
        """Only when failures call for it, and there is enough to learn from: one proposal an algorithm."""
        clusters = [c for c in evidence.diagnosis.clusters if c.surface == self.surface]
        if not clusters:
            return []
        chosen = select(evidence.cases, evidence.split, evidence.facts, MAX_EXAMPLES)
        kinds = sorted({kind for c in clusters for kind in c.kinds})
        made = []
        for algorithm in config.surfaces.algorithms:
            data = _DATA[algorithm](evidence, chosen, kinds)
            if data.rows >= config.evolve.min_demonstrations:
                made.append(self._proposal(algorithm, data, chosen, evidence, config))
        return made[: config.surfaces.max_proposals]

    def apply(self, manifest: Manifest, proposal: Proposal, made: dict[str, Any]) -> Manifest:
        digest: str = made["digest"]
        policy = Policy(
            base=manifest.policy.base,
            served_name=policies.candidate_name(made["agent"], digest),
            adapter=digest,
            path=made["path"],
        )
        return msgspec.structs.replace(manifest, policy=policy)

    def _proposal(
        self, algorithm: str, data: _Data, chosen: Selection, evidence: Evidence, config: Settings
    ) -> Proposal:
        dropped = "; ".join(f"{n} {reason}" for reason, n in sorted(chosen.dropped.items())) or "none"
        recipe = {
            "algorithm": algorithm,
            "epochs": config.evolve.epochs,
            "batch_size": config.evolve.batch_size,
            "learning_rate": config.evolve.learning_rate,
            "lora_rank": config.evolve.lora_rank,
        }
        return Proposal(
            surface=self.surface,
            summary=f"adapter ({algorithm}) from {data.what}",
            diff=f"+ LoRA adapter (rank {config.evolve.lora_rank}, {algorithm}) from {data.rows} examples\n"
            f"  held out: {len(chosen.heldout)} examples of {len(evidence.split.heldout)} tasks\n"
            f"  dropped: {dropped}",
            content=recipe,
            cost=self.cost(config),
            risk="changes every answer of every tenant; reversible by one pointer",
            risk_penalty=self.risk(config),
            uses_heldout_tasks=True,
            evidence=data.ids,
        )


def _sft(evidence: Evidence, chosen: Selection, kinds: list[str]) -> _Data:
    shown = [c for c in chosen.train if c.demonstration_id]
    what = f"{len(shown)} demonstrations of {', '.join(kinds)} and {len(chosen.train) - len(shown)} successes"
    return _Data(what, len(shown), tuple(sorted(c.demonstration_id for c in shown if c.demonstration_id)))


def _rft(evidence: Evidence, chosen: Selection, kinds: list[str]) -> _Data:
    own = [c for c in chosen.train if not c.demonstration_id]
    return _Data(f"{len(own)} of its own successes", len(own), tuple(sorted(c.event_id for c in own)))


def _dpo(evidence: Evidence, chosen: Selection, kinds: list[str]) -> _Data:
    pairs = [c for c in chosen.train if c.demonstration_id and not c.success and c.completion_token_ids]
    ids = tuple(sorted(c.demonstration_id for c in pairs if c.demonstration_id))
    return _Data(f"{len(pairs)} pairs of what was shown and what was done", len(pairs), ids)


def _grpo(evidence: Evidence, chosen: Selection, kinds: list[str]) -> _Data:
    """Requests whose outcome varies: a group that always fails, or never, has no advantage to learn from."""
    tasks: dict[str, set[bool]] = defaultdict(set)
    usable = [c for c in evidence.current if c.trainable and c.success is not None and c.prompt_token_ids]
    for case in usable:
        tasks[case.task_key].add(bool(case.success))
    mixed = [c for c in usable if len(tasks[c.task_key]) == 2 and not evidence.split.is_held_out(c)]
    return _Data(f"{len(mixed)} requests with mixed outcomes", len(mixed), tuple(sorted(c.event_id for c in mixed)))


def _opd(evidence: Evidence, chosen: Selection, kinds: list[str]) -> _Data:
    hinted = [
        c
        for c in evidence.current
        if c.trainable and c.corrections and c.completion_token_ids and not evidence.split.is_held_out(c)
    ]
    ids = tuple(sorted(remark.id for c in hinted for remark in c.corrections))
    return _Data(f"{len(hinted)} answers with corrections as hints", len(hinted), ids)


_DATA: dict[str, Callable[[Evidence, Selection, list[str]], _Data]] = {
    "sft": _sft,
    "rft": _rft,
    "dpo": _dpo,
    "grpo": _grpo,
    "opd": _opd,
}
