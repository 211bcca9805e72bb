"""Rollback: back to a version before, when the champion is certain to do worse than that did.

The comparison says that something is worse, not that the version is to blame (the work may have changed): whether the
former version would do better on today's work, replay has to show.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from evaluators.cases import Case
from evaluators.intervals import Interval, rate_difference, wilson
from evoplane.settings import Settings
from flows.interventions.base import Evidence, Proposal, Surface
from registry.manifest import AgentVersion, Manifest

_REMEMBERED = 5
"""Versions back that are looked at."""


class Rollback(Surface):
    surface = "rollback"

    def cost(self, config: Settings) -> float:
        return config.surfaces.rollback_cost

    def risk(self, config: Settings) -> float:
        return config.surfaces.rollback_risk

    def propose(self, evidence: Evidence, config: Settings) -> list[Proposal]:
        """The newest former version that did certainly better; none while there is not enough data of both."""
        least = config.monitor.min_outcomes // 2
        now_ = _judged(evidence.current)
        for version in evidence.versions[1:]:
            then = _judged([c for c in evidence.cases if _served_by(c, version.version)])
            if min(len(now_), len(then)) < least or version.manifest == evidence.manifest:
                continue
            change = rate_difference(_rate(now_, config.monitor.alpha), _rate(then, config.monitor.alpha))
            if change.high < 0:
                return [self._back_to(version, evidence, change, config)]
        return []

    def apply(self, manifest: Manifest, proposal: Proposal, made: dict[str, Any]) -> Manifest:
        return msgspec.convert(proposal.content["manifest"], Manifest)

    def _back_to(self, version: AgentVersion, evidence: Evidence, change: Interval, config: Settings) -> Proposal:
        champion = evidence.versions[0]
        return Proposal(
            surface=self.surface,
            summary=f"back to version {version.version}: success changed by {change} since",
            diff="\n".join(
                [
                    f"- version {champion.version} ({champion.intervention}): {champion.description}",
                    f"+ version {version.version} ({version.intervention}): {version.description}",
                ]
            ),
            content={
                "version": version.version,
                "digest": version.digest,
                "manifest": msgspec.to_builtins(version.manifest),
            },
            cost=self.cost(config),
            risk="what was learned since is lost; it is the version users know",
            risk_penalty=self.risk(config),
            evidence=tuple(sorted(c.event_id for c in _judged(evidence.current) if not c.success)),
        )


def history(versions: Mapping[str, AgentVersion], champion: str) -> tuple[AgentVersion, ...]:
    """The champion and the versions it descends from, newest first: `Evidence.versions`."""
    found: list[AgentVersion] = []
    label: str | None = champion
    while label is not None and label in versions and len(found) <= _REMEMBERED:
        found.append(versions[label])
        label = versions[label].parent
    return tuple(found)


def _served_by(case: Case, version: str) -> bool:
    return case.agent_version == version and case.purpose == "serve" and case.role == "champion"


def _judged(cases: Any) -> list[Case]:
    return [c for c in cases if c.success is not None]


def _rate(cases: list[Case], alpha: float) -> Interval:
    return wilson(sum(bool(c.success) for c in cases), len(cases), alpha)
