"""What every intervention can do: propose bounded, readable changes from evidence, and apply them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from atdp.canonical import digest
from evaluators.cases import Case, Key
from evaluators.corrections import EstablishedFact
from evaluators.dataset import Split
from evaluators.diagnosis import Diagnosis
from evoplane.settings import Settings
from flows.tenancy import Learnable
from registry.manifest import AgentVersion, Manifest


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
    learnable: Learnable | None = None
    """Whose cases one training set may hold; None is everybody's."""
    versions: Sequence[AgentVersion] = ()
    """The champion and those before it that served, newest first: what a rollback can return to."""


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
    """What may go wrong, in words."""
    risk_penalty: float = 0.0
    """Subtracted as well: what may go wrong, in points of success."""
    source_sessions: tuple[Key, ...] = ()
    """Sessions the change was made from; replay keeps away from them."""
    uses_heldout_tasks: bool = False
    """Whether replay must keep to held-out tasks because the change was fitted to the others."""
    tests: tuple[Key, ...] = ()
    """Held-out cases that the change must answer right, whatever it does elsewhere."""
    evidence: tuple[str, ...] = ()
    """Ids of the annotations, events and sessions it rests on."""
    refused: str = ""
    """Why it is not to be tried, where the surface itself says so: kept for the decision record."""

    @property
    def fingerprint(self) -> str:
        """The same for the same change made from the same evidence: what was rejected is known by it."""
        return digest({"surface": self.surface, "content": self.content, "evidence": sorted(self.evidence)})

    @property
    def name(self) -> str:
        return f"{self.surface}-{self.fingerprint[7:15]}"


class Intervention(Protocol):
    surface: str

    def propose(self, evidence: Evidence, config: Settings) -> Sequence[Proposal]:
        """The changes this surface would make; none when the evidence does not call for any."""
        ...

    def cost(self, config: Settings) -> float:
        """What a change of this surface costs, in points of success."""
        ...

    def risk(self, config: Settings) -> float:
        """What may go wrong with one that replay does not see, in points of success."""
        ...

    def apply(self, manifest: Manifest, proposal: Proposal, made: dict[str, Any]) -> Manifest:
        """The manifest with the change in it. `made` is what preparing the proposal produced (an adapter)."""
        ...

    def describe(self, proposal: Proposal) -> str:
        """The proposal as a page: Markdown."""
        ...


class Surface:
    """What interventions have in common: how they are told of."""

    surface: str

    def describe(self, proposal: Proposal) -> str:
        lines = [
            f"### {proposal.name}: {proposal.summary}",
            "",
            "```diff",
            proposal.diff,
            "```",
            "",
            f"- cost {proposal.cost:.3f}, risk {proposal.risk_penalty:.3f}: {proposal.risk}",
            f"- made from {len(proposal.source_sessions)} sessions; evidence: {_listed(proposal.evidence)}",
        ]
        if proposal.tests:
            lines.append(f"- must answer right: {_listed([id for _, id in proposal.tests])}")
        return "\n".join(lines)


def _listed(ids: Sequence[str], most: int = 5) -> str:
    more = f" and {len(ids) - most} more" if len(ids) > most else ""
    return (", ".join(ids[:most]) or "none") + more
