"""No-op: leave the agent as it is. It is always among the candidates, and wins ties."""

from __future__ import annotations

from typing import Any

from evoplane.settings import Settings
from flows.interventions.base import Evidence, Proposal, Surface
from registry.manifest import Manifest


class NoOp(Surface):
    surface = "no-op"

    def cost(self, config: Settings) -> float:
        return 0.0

    def risk(self, config: Settings) -> float:
        return 0.0

    def propose(self, evidence: Evidence, config: Settings) -> list[Proposal]:
        """Nothing to try: the decision itself weighs every candidate against doing nothing."""
        return []

    def apply(self, manifest: Manifest, proposal: Proposal, made: dict[str, Any]) -> Manifest:
        return manifest
