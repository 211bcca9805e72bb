"""What every intervention can do: propose a bounded, readable change from evidence, and apply it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from atdp.canonical import digest
from evaluators.cases import Case
from evaluators.corrections import EstablishedFact
from evaluators.dataset import Split
from evaluators.diagnosis import Diagnosis
from evoplane.settings import Settings
from registry.manifest import Manifest


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What proposals are made from: one verified snapshot and what was read in it."""

    agent: str
    snapshot: str
    cases: Sequence[Case]
    """All served decisions of the snapshot."""
    current: Sequence[Case]
    """Those of the champion version: only they say what it does wrong."""
    manifest: Manifest
    """The champion's."""
    facts: Sequence[EstablishedFact]
    diagnosis: Diagnosis
    split: Split


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """One candidate change, before it is applied."""

    surface: str
    summary: str
    """One line: what would change."""
    diff: str
    """The change as a person reads it."""
    content: dict[str, Any]
    """What `apply` needs; JSON."""
    cost: float
    """Subtracted from the lower bound of the improvement when candidates are compared."""
    risk: str
    source_sessions: tuple[str, ...] = ()
    """Sessions the change was made from; replay keeps away from them."""
    uses_heldout_tasks: bool = False
    """Whether replay must keep to held-out tasks because the change was fitted to the others."""
    evidence: tuple[str, ...] = ()

    @property
    def fingerprint(self) -> str:
        """The same for the same change made from the same evidence: what was rejected is known by it."""
        return digest({"surface": self.surface, "content": self.content, "evidence": sorted(self.evidence)})

    @property
    def name(self) -> str:
        return f"{self.surface}-{self.fingerprint[7:15]}"


class Intervention(Protocol):
    surface: str

    def propose(self, evidence: Evidence, config: Settings) -> Proposal | None:
        """The change this surface would make, or None when the evidence does not call for it."""
        ...

    def cost(self, config: Settings) -> float: ...

    def apply(self, manifest: Manifest, proposal: Proposal, made: dict[str, Any]) -> Manifest:
        """The manifest with the change in it. `made` is what preparing the proposal produced (an adapter)."""
        ...
