"""The decision record: everything needed to see why, including every loser."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from evaluators.decision import Decision, Evaluated
from evaluators.quality import QualityResult
from flows.interventions import Evidence, Proposal
from flows.pages import finite
from flows.snapshot import Snapshot


def record(
    reason: str,
    parent: str,
    taken: Snapshot,
    gate: QualityResult,
    evidence: Evidence,
    proposals: Sequence[Proposal],
    skipped: Sequence[tuple[Proposal, str]],
    evaluated: Sequence[Evaluated],
    made: Mapping[str, Mapping[str, Any]],
    decision: Decision,
) -> dict[str, Any]:
    """JSON; `rejected` are the fingerprints of what was tried and lost."""
    by_name = {p.name: p for p in [*proposals, *(p for p, _ in skipped)]}
    return {
        "agent": evidence.agent,
        "reason": reason,
        "parent": parent,
        "snapshot": taken.id,
        "trajectories": taken.trajectories,
        "reward_rule": taken.reward_rule,
        "data_gate": gate.summary,
        "diagnosis": finite(msgspec.to_builtins(evidence.diagnosis)),
        "chosen": decision.chosen,
        "ranking": msgspec.to_builtins(decision.ranking),
        "rejected": [p.fingerprint for p in proposals if p.name != decision.chosen],
        "compared": sum(e.replay is not None for e in evaluated),
        "candidates": {e.name: _candidate(e, by_name[e.name], made.get(e.name, {})) for e in evaluated},
    }


def _candidate(evaluated: Evaluated, proposal: Proposal, made: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "surface": evaluated.surface,
        "summary": proposal.summary,
        "diff": proposal.diff,
        "risk": proposal.risk,
        "cost": evaluated.cost,
        "risk_penalty": evaluated.risk,
        "problem": evaluated.problem,
        "replay": _plain(evaluated.replay),
        "simultaneous": _plain(evaluated.simultaneous),
        "probes_lost": _plain(evaluated.probes_lost),
        "tests": evaluated.tests,
        "failed_tests": list(evaluated.failed_tests),
        "training": made.get("result"),
        "training_set": made.get("training_set"),
    }


def _plain(value: Any) -> Any:
    return None if value is None else finite(msgspec.to_builtins(value))
