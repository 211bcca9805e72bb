"""What is behind an evolution's steps: DVC's snapshots, Great Expectations, the worker that serves candidates."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evaluators import quality as gate
from evaluators.cases import Action, Case, Key
from evoplane.settings import Settings
from flows import policies, snapshot
from flows.answering import answer_cases
from flows.evolution import CandidateFailed
from registry.manifest import Manifest
from services.worker import client


def taken(config: Settings, agent: str, repository: Path | None = None) -> tuple[snapshot.Snapshot, list[Case]]:
    """A snapshot, and its cases as a reader of the snapshot gets them."""
    found = snapshot.take(config, agent, repository)
    return found, snapshot.read(Path(found.path))


def quality(config: Settings, agent: str, cases: list[Case], repository: Path | None = None) -> gate.QualityResult:
    """What the data gate says, kept with the snapshot: no training set is made without."""
    judged = [c for c in cases if c.success is not None]
    found = gate.check(gate.frame(judged), config.monitor.min_outcomes)
    snapshot.pass_gate(config, agent, found, repository)
    return found


def answer(config: Settings, manifest: Manifest, cases: Sequence[Case]) -> dict[Key, Action | None]:
    return answer_cases(config, manifest, cases)


def serve(config: Settings, manifest: Manifest, made: dict[str, Any]) -> None:
    """Have the worker serve what was trained, probed, beside what it serves already."""
    policies.claim(config, manifest.policy.served_name)
    try:
        client.load(config, manifest.policy, made.get("probe"))
    except client.PolicyRefused as error:
        policies.release(config, manifest.policy.served_name)
        raise CandidateFailed(str(error)) from error


def withdraw(config: Settings, manifest: Manifest) -> None:
    """A loser need not stay loaded; whatever else needs its policy keeps it (`policies.retire`)."""
    policies.release(config, manifest.policy.served_name)
