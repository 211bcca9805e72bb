"""What can be prepared once for a version rather than with every request."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import msgspec

from registry.manifest import Manifest, MemoryItem, Skill
from services.router.overlays.words import Index

_REMEMBERED = 64
"""Versions served, shadowed and replayed at a time."""

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
        self._memory: dict[str, list[MemoryItem]] = defaultdict(list)
        for item in manifest.memory:
            self._memory[item.tenant].append(item)
        self._memory_index: dict[str, Index[MemoryItem]] = {}
        self._skills = manifest.skills
        self._skill_index: dict[str, Index[Skill] | None] = {}

    def memory(self, tenant: str) -> Index[MemoryItem] | None:
        """The tenant's items; None when it has none."""
        if tenant not in self._memory:
            return None
        if tenant not in self._memory_index:
            self._memory_index[tenant] = memory_index(self._memory[tenant])
        return self._memory_index[tenant]

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


def memory_index(items: Iterable[MemoryItem]) -> Index[MemoryItem]:
    """Vetted items before candidates, whatever matches better; the newest first."""
    newest = sorted(items, key=lambda item: (item.created_at, item.id), reverse=True)
    return Index([(item, item.topic, 0 if item.trust == "vetted" else 1) for item in newest])


def _skill_index(skills: Iterable[Skill]) -> Index[Skill]:
    newest = sorted(skills, key=lambda skill: (skill.created_at, skill.id), reverse=True)
    return Index([(skill, skill.when, 0 if skill.trust == "vetted" else 1) for skill in newest])
