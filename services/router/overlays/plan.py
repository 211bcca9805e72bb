"""What can be prepared once for a version rather than with every request."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import msgspec

from registry.manifest import Manifest, MemoryItem, Skill
from services.router.overlays.words import Index

_REMEMBERED = 64
"""Versions served, shadowed and replayed at a time."""

Ranked = tuple[MemoryItem, str, int, int]

_plans: dict[int, tuple[Manifest, Plan]] = {}


class Plan:
    def __init__(self, manifest: Manifest) -> None:
        self.empty = not (
            manifest.harness.params
            or manifest.harness.system_append
            or manifest.harness.edits
            or manifest.memory
            or manifest.skills
            or manifest.tools
            or manifest.guardrails
        )
        self.guardrail_ids = [rule.id for rule in manifest.guardrails]
        rules = "".join(f"\n- {rule.text}" for rule in manifest.guardrails)
        self.guardrail_text = f"\nRules:{rules}" if rules else ""
        self._memory: dict[tuple[str, str | None], list[Ranked]] = defaultdict(list)
        for ranked in ranked_memory(manifest.memory):
            self._memory[ranked[0].tenant, ranked[0].subject or None].append(ranked)
        self._with_memory = {tenant for tenant, _ in self._memory}
        self._memory_index: dict[tuple[str, str | None], Index[MemoryItem]] = {}
        self._skills = manifest.skills
        self._skill_index: dict[str, Index[Skill] | None] = {}

    def has_memory(self, tenant: str) -> bool:
        return tenant in self._with_memory

    def memory(self, tenant: str, subject: str | None) -> list[Index[MemoryItem]]:
        """The tenant's items about nobody in particular, and those about this subject."""
        found = []
        for key in dict.fromkeys(((tenant, None), (tenant, subject))):
            if key in self._memory:
                if key not in self._memory_index:
                    self._memory_index[key] = Index(self._memory[key])
                found.append(self._memory_index[key])
        return found

    def skills(self, tenant: str) -> Index[Skill] | None:
        """What the tenant may see: its own skills and those of nobody; None when there are none."""
        if not self._skills:
            return None
        if tenant not in self._skill_index:
            mine = [skill for skill in self._skills if skill.tenant in (msgspec.UNSET, tenant)]
            self._skill_index[tenant] = _skill_index(mine) if mine else None
        return self._skill_index[tenant]


def plan_of(manifest: Manifest) -> Plan:
    """The manifest's plan, made when it is first asked for."""
    known = _plans.get(id(manifest))
    if known is not None and known[0] is manifest:
        return known[1]
    plan = Plan(manifest)
    _plans[id(manifest)] = (manifest, plan)  # holding the manifest keeps its id from being given away
    while len(_plans) > _REMEMBERED:
        _plans.pop(next(iter(_plans)), None)
    return plan


def ranked_memory(items: Iterable[MemoryItem]) -> list[Ranked]:
    """Vetted items before candidates, whatever matches better; the newest first."""
    newest = sorted(items, key=lambda item: (item.created_at, item.id), reverse=True)
    return [(item, item.topic, 0 if item.trust == "vetted" else 1, n) for n, item in enumerate(newest)]


def _skill_index(skills: Iterable[Skill]) -> Index[Skill]:
    newest = sorted(skills, key=lambda skill: (skill.created_at, skill.id), reverse=True)
    kinds = [(skill, kind) for skill in newest for kind in skill.kinds]
    return Index((skill, kind, 0 if skill.trust == "vetted" else 1, n) for n, (skill, kind) in enumerate(kinds))
