"""Policy updates: other weights, by what the data allow.

- SFT learns what people demonstrated, and what was resolved, so that it is not forgotten.
- RFT (rejection sampling) learns the agent's own successes alone, where nobody demonstrated anything.
- DPO learns from pairs: what was demonstrated against what the agent did instead.
- GRPO learns from groups of answers to one prompt, sampled at temperature 1, whose rewards differ.
- OPD (on-policy distillation) learns from what was said about answers: corrections, as hints to a teacher.

What an algorithm learns from it declares itself (`services.worker.training.algorithms`); `surfaces.algorithms` may
narrow the choice. One for which there is not enough is kept, with the reason, for the decision record. The others come
in the order of what a row is expected to teach for each time it has to be computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from evaluators import dataset
from evaluators.dataset import Selection, select
from evoplane.settings import Settings
from flows import policies
from flows.interventions.base import Evidence, Proposal, Surface
from flows.training_set import MAX_EXAMPLES
from registry.manifest import Manifest, Policy
from services.worker.training.algorithms import Source, algorithm

_TEACHES: Mapping[Source, float] = {"demonstrations": 1.0, "pairs": 1.0, "groups": 0.5, "hints": 0.4, "successes": 0.2}
"""How much of what is wrong one row can put right, by judgement: a demonstration says what is right, a reward only that
something was, and the agent's own successes hold nothing it can't do already. Replay decides; this orders."""


class _Data(msgspec.Struct, frozen=True):
    """What an algorithm would learn from."""

    what: str
    rows: int
    ids: tuple[str, ...]
    lacks: str = ""
    """Why there is not more of it."""


class PolicyUpdate(Surface):
    surface = "policy"

    def cost(self, config: Settings) -> float:
        return config.evolve.policy_cost

    def risk(self, config: Settings) -> float:
        return config.surfaces.policy_risk

    def propose(self, evidence: Evidence, config: Settings) -> list[Proposal]:
        """Only when failures call for it: one proposal an algorithm, the most promising first, then those that are
        refused for want of data."""
        clusters = [c for c in evidence.diagnosis.clusters if c.surface == self.surface]
        if not clusters:
            return []
        evidence = _learnable(evidence)
        chosen = select(evidence.cases, evidence.split, evidence.facts, MAX_EXAMPLES)
        kinds = sorted({kind for c in clusters for kind in c.kinds})
        made: list[tuple[float, Proposal]] = []
        for name in config.surfaces.algorithms:
            data = _DATA[algorithm(name).learns_from()](evidence, chosen, kinds)
            if evidence.learnable is not None and evidence.learnable.why:
                data = msgspec.structs.replace(data, lacks=evidence.learnable.why)
            worth = expected(name, data.rows, evidence.diagnosis.share("policy"), config)
            made.append((worth, self._proposal(name, data, worth, chosen, evidence, config)))
        ranked = [proposal for _, proposal in sorted(made, key=lambda each: -each[0])]
        able = [p for p in ranked if not p.refused]
        return [*able[: config.surfaces.max_proposals], *(p for p in ranked if p.refused)]

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
        self, name: str, data: _Data, worth: float, chosen: Selection, evidence: Evidence, config: Settings
    ) -> Proposal:
        dropped = "; ".join(f"{n} {reason}" for reason, n in sorted(chosen.dropped.items())) or "none"
        evolve = config.evolve
        imitates = algorithm(name).imitates
        recipe = {
            "algorithm": name,
            "epochs": evolve.epochs,
            "batch_size": evolve.batch_size,
            "learning_rate": evolve.learning_rate if imitates else evolve.gentle_learning_rate,
            "lora_rank": evolve.lora_rank,
        }
        least = evolve.min_demonstrations
        refused = f"{name} needs {least} (evolve.min_demonstrations), and there are {data.what}"
        return Proposal(
            surface=self.surface,
            summary=f"adapter ({name}) from {data.what}",
            diff=f"+ LoRA adapter (rank {evolve.lora_rank}, {name}) from {data.rows} examples\n"
            f"  expected to put right {worth:.2f} of the failures for each pass over a row\n"
            f"  held out: {len(chosen.heldout)} examples of {len(evidence.split.heldout)} tasks\n"
            f"  dropped: {dropped}",
            content=recipe,
            cost=self.cost(config),
            risk="changes every answer of every tenant; reversible by one pointer",
            risk_penalty=self.risk(config),
            uses_heldout_tasks=True,
            evidence=data.ids,
            refused="" if data.rows >= least else refused + (f" ({data.lacks})" if data.lacks else ""),
        )


def _learnable(evidence: Evidence) -> Evidence:
    """The evidence that a training set would be made of: that of the tenants which share one."""
    if evidence.learnable is None:
        return evidence
    tenants = evidence.learnable.tenants
    return msgspec.structs.replace(
        evidence,
        cases=[c for c in evidence.cases if c.tenant in tenants],
        current=[c for c in evidence.current if c.tenant in tenants],
    )


def expected(name: str, rows: int, share: float, config: Settings) -> float:
    """Expected value per cost of learning from so many rows, where `share` of the failures are the policy's.

        share · teaches · n / (n + n0) / passes

    n0 is `evolve.min_demonstrations`; `passes` is how often the algorithm has to compute a row.
    """
    how = algorithm(name)
    enough = rows / (rows + max(1, config.evolve.min_demonstrations))
    return share * _TEACHES[how.learns_from()] * enough / how.passes()


def _demonstrations(evidence: Evidence, chosen: Selection, kinds: list[str]) -> _Data:
    shown = [c for c in chosen.train if c.demonstration_id]
    what = f"{len(shown)} demonstrations of {', '.join(kinds)} and {len(chosen.train) - len(shown)} successes"
    return _Data(what, len(shown), tuple(sorted(c.demonstration_id for c in shown if c.demonstration_id)))


def _successes(evidence: Evidence, chosen: Selection, kinds: list[str]) -> _Data:
    own = [c for c in chosen.train if not c.demonstration_id]
    return _Data(f"{len(own)} of its own successes", len(own), tuple(sorted(c.event_id for c in own)))


def _pairs(evidence: Evidence, chosen: Selection, kinds: list[str]) -> _Data:
    pairs = dataset.shown_otherwise(chosen.train)
    ids = tuple(sorted(c.demonstration_id for c in pairs if c.demonstration_id))
    return _Data(f"{len(pairs)} pairs of what was shown and what was done", len(pairs), ids)


def _groups(evidence: Evidence, chosen: Selection, kinds: list[str]) -> _Data:
    mixed, without = dataset.contrasting(evidence.current, evidence.split)
    lacks = "; ".join(f"{n} {reason}" for reason, n in sorted(without.items()))
    what = f"{len(mixed)} answers to prompts that were answered rightly and wrongly"
    return _Data(what, len(mixed), tuple(sorted(c.event_id for c in mixed)), lacks)


def _hints(evidence: Evidence, chosen: Selection, kinds: list[str]) -> _Data:
    hinted = dataset.hinted(evidence.current, evidence.split)
    ids = tuple(sorted(remark.id for c in hinted for remark in c.corrections))
    return _Data(f"{len(hinted)} answers with corrections as hints", len(hinted), ids)


_DATA: dict[Source, Callable[[Evidence, Selection, list[str]], _Data]] = {
    "demonstrations": _demonstrations,
    "successes": _successes,
    "pairs": _pairs,
    "groups": _groups,
    "hints": _hints,
}
