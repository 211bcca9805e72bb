"""What an evolution tries: what the surfaces propose, but for what lost before, is not needed, or is too dear."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from evoplane.settings import Settings
from flows.budget import trained_today
from flows.interventions import Evidence, Proposal, interventions, rejections
from registry import control, decisions


def propose(config: Settings, evidence: Evidence, champion: str) -> tuple[list[Proposal], list[tuple[Proposal, str]]]:
    """What to try, and what not to although it was proposed, with the reason."""
    records = decisions.list_decisions(control.connect(config.control_db), evidence.agent)
    made = [p for i in interventions().values() for p in i.propose(evidence, config)]
    fresh, skipped = rejections.fresh([p for p in made if not p.refused], records, champion)
    skipped += [(p, p.refused) for p in made if p.refused]
    share = evidence.diagnosis.share
    cheaper = max((share(p.surface) for p in fresh if p.surface != "policy"), default=0.0)  # type: ignore[arg-type]
    kept = []
    for proposal in fresh:
        if proposal.surface == "policy" and cheaper and share("policy") <= cheaper:
            why = f"not trained: addresses {share('policy'):.0%} of the failures, a cheaper surface {cheaper:.0%}"
            skipped.append((proposal, why))
        else:
            kept.append(proposal)
    affordable, dear = _affordable(config, kept, records)
    return affordable, [*skipped, *dear]


def _affordable(
    config: Settings, proposals: Sequence[Proposal], records: Sequence[dict[str, Any]]
) -> tuple[list[Proposal], list[tuple[Proposal, str]]]:
    """All but the policy candidates beyond what may be trained now, which come in the order of what they are expected
    to bring; and these with the reason."""
    left = config.evolve.trainings_per_day - trained_today(records)
    most = max(0, min(config.surfaces.max_trained, left))
    policies = [p for p in proposals if p.surface == "policy"]
    first = "; ".join(p.summary for p in policies[:most]) or "none"
    why = (
        f"not trained: {most} may be now (surfaces.max_trained, evolve.trainings_per_day), and before it comes {first}"
    )
    kept = [p for p in proposals if p.surface != "policy" or any(p is chosen for chosen in policies[:most])]
    return kept, [(p, why) for p in policies[most:]]
