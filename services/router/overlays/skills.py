"""Skills: the procedures for what the user asks for."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from registry.manifest import Retrieval, Skill
from services.router.overlays.draft import Draft
from services.router.overlays.plan import Plan


def apply(draft: Draft, plan: Plan, retrieval: Retrieval) -> None:
    index = plan.skills(draft.tenant)
    if index is None:
        return
    chosen: list[Skill] = []
    subject = draft.dialect.subject(draft.given)
    for *_, skill in index.about(draft.said, retrieval.overlap):
        if len(chosen) >= retrieval.skills:
            break
        if skill in chosen or skill.subject not in (msgspec.UNSET, subject):
            continue
        if len(skill_text([*chosen, skill]).encode()) <= draft.max_bytes:
            chosen.append(skill)
    if chosen:
        shown = [{"id": skill.id, "trust": skill.trust, "provenance": list(skill.provenance)} for skill in chosen]
        draft.append("skills", skill_text(chosen), items=shown)


def skill_text(skills: Iterable[Skill]) -> str:
    """How procedures are put to the model."""
    return "".join(
        f"\n{skill.heading}" + "".join(f"\n{n}. {step}" for n, step in enumerate(skill.steps, 1)) for skill in skills
    )
