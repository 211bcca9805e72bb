"""Skills: procedures mined from what went well or was shown, patched when they lack a step, retired when they harm.

Extractive: a step names a tool that was called there and where each argument came from. A skill mined from one tenant's
sessions is that tenant's, one learned from one end user that user's; it is a candidate until a person has approved the
version it comes with. Its tests are decisions of the same kind that it was not learned from.
"""

from __future__ import annotations

from typing import Any

import msgspec

from evaluators.diagnosis.outcomes import outcomes_of, read_only
from evaluators.skills import Procedure, mine, utility
from evaluators.skills.when import words
from evoplane.settings import Settings
from flows.interventions.base import Evidence, Proposal, Surface
from registry.control import now
from registry.manifest import Manifest, Skill

_RISK = "read by the model for requests of this kind only; a wrong step is repeated until corrected"


class Skills(Surface):
    surface = "skill"

    def cost(self, config: Settings) -> float:
        return config.surfaces.skill_cost

    def risk(self, config: Settings) -> float:
        return config.surfaces.skill_risk

    def propose(self, evidence: Evidence, config: Settings) -> list[Proposal]:
        """One proposal a procedure that failures lacked, and one for the skills in use that do harm."""
        outcomes = outcomes_of(evidence.current, read_only(evidence.current))
        found = mine(outcomes, evidence.split.is_held_out, config.surfaces.min_sessions, config.monitor.alpha)
        made = [p for each in found if (p := self._learned(each, evidence.manifest, config)) is not None]
        harmful = self._harmful(evidence, config)
        return [*harmful, *made][: config.surfaces.max_proposals]

    def apply(self, manifest: Manifest, proposal: Proposal, made: dict[str, Any]) -> Manifest:
        """Skills that the champion serves have been approved with it; the new one is a candidate."""
        gone = {*proposal.content["retire"]}
        new = tuple(
            msgspec.convert({**skill, "trust": "candidate", "created_at": now()}, Skill)
            for skill in proposal.content["skills"]
        )
        gone |= {skill.id for skill in new}
        kept = tuple(
            msgspec.structs.replace(skill, trust="vetted") for skill in manifest.skills if skill.id not in gone
        )
        return msgspec.structs.replace(manifest, skills=kept + new)

    def _learned(self, found: Procedure, manifest: Manifest, config: Settings) -> Proposal | None:
        old = _patched(found, manifest)
        if old is not None and old.steps == found.steps:
            return None
        skill = _skill(found, old)
        if sum(len(step.encode()) for step in found.steps) > config.surfaces.max_bytes:
            return None
        removed = [f"- {n}. {step}" for n, step in enumerate(old.steps, 1)] if old is not None else []
        added = [f"+ {n}. {step}" for n, step in enumerate(found.steps, 1)]
        what = "patched" if old is not None else "new"
        return Proposal(
            surface=self.surface,
            summary=f"{what} procedure {skill['name']}: {' → '.join(found.tools)}",
            diff="\n".join(
                [
                    f"  when a request is about: {skill['when']}",
                    *removed,
                    *added,
                    f"  {found.missed} sessions went without; success with it differs by {found.difference}",
                ]
            ),
            content={"skills": [skill], "retire": []},
            cost=self.cost(config),
            risk=_RISK,
            risk_penalty=self.risk(config),
            source_sessions=found.sessions,
            tests=found.tests,
            evidence=found.events,
        )

    def _harmful(self, evidence: Evidence, config: Settings) -> list[Proposal]:
        uses = [utility(skill, evidence.cases, config.monitor.alpha) for skill in evidence.manifest.skills]
        harmful = [u for u in uses if u.harmful and len(u.sessions) >= config.surfaces.min_sessions]
        if not harmful:
            return []
        names = {skill.id: skill.name for skill in evidence.manifest.skills}
        return [
            Proposal(
                surface=self.surface,
                summary=f"retire {', '.join(names[u.skill] for u in harmful)}",
                diff="\n".join(f"- {names[u.skill]}  (success with it differs by {u.difference})" for u in harmful),
                content={"skills": [], "retire": sorted(u.skill for u in harmful)},
                cost=self.cost(config),
                risk="what the procedure was good for may be forgotten",
                risk_penalty=self.risk(config),
                evidence=tuple(sorted({id for u in harmful for _, id in u.sessions})),
            )
        ]


def _patched(found: Procedure, manifest: Manifest) -> Skill | None:
    """The skill in use that is for the same requests, by most of its words."""
    for skill in manifest.skills:
        mine = words(skill.when.replace("|", " "))
        if mine and 2 * len(mine.intersection(found.when)) >= len(mine) and _visible(skill, found):
            return skill
    return None


def _visible(skill: Skill, found: Procedure) -> bool:
    """Is it shown to those the procedure was learned from, and to nobody else's users?"""
    return skill.tenant in (msgspec.UNSET, *found.tenants) and skill.subject in (msgspec.UNSET, *found.subjects)


def _skill(found: Procedure, old: Skill | None) -> dict[str, Any]:
    """The skill as JSON. One tenant's sessions make a skill of that tenant's; one user's, of that user's."""
    name = old.name if old is not None else f"{found.when[0]}: {' then '.join(found.tools)}"
    skill: dict[str, Any] = {
        "id": old.id if old is not None else f"skill_{'_'.join((found.when[0], *found.tools))}",
        "name": name,
        "when": old.when if old is not None else " | ".join(found.when),
        "steps": list(found.steps),
        "provenance": list(found.events[:16]),
    }
    if len(found.tenants) == 1:
        skill["tenant"] = found.tenants[0]
    if len(found.subjects) == 1:
        skill["subject"] = found.subjects[0]
    return skill
