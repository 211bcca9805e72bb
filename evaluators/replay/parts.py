"""What a decision was made from, part by part, and the same decision without one: leave-one-out replay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from registry.manifest import Manifest

Kind = Literal["memory", "skill", "guardrail", "tool_overlay", "prompt_edit", "system_append", "observation"]


class Part(msgspec.Struct, frozen=True):
    kind: Kind
    id: str
    """The item's id; for an observation, the place of its message."""


def parts_of(manifest: Manifest, messages: Sequence[dict[str, Any]] = ()) -> list[Part]:
    """What a version adds to a request, and the observations in it: everything but the last user's words."""
    parts = [Part("memory", item.id) for item in manifest.memory]
    parts += [Part("skill", skill.id) for skill in manifest.skills]
    parts += [Part("guardrail", rule.id) for rule in manifest.guardrails if not rule.protected]
    parts += [Part("tool_overlay", tool.name) for tool in manifest.tools]
    parts += [Part("prompt_edit", edit.id) for edit in manifest.harness.edits]
    if manifest.harness.system_append:
        parts.append(Part("system_append", "system_append"))
    last = max((i for i, m in enumerate(messages) if m.get("role") == "user"), default=-1)
    return parts + [Part("observation", str(i)) for i, m in enumerate(messages) if i != last and _observed(m)]


def manifest_without(manifest: Manifest, part: Part) -> Manifest:
    """The version without that part; an observation is none of its parts and leaves it as it is."""
    replace = msgspec.structs.replace
    match part.kind:
        case "memory":
            return replace(manifest, memory=tuple(i for i in manifest.memory if i.id != part.id))
        case "skill":
            return replace(manifest, skills=tuple(s for s in manifest.skills if s.id != part.id))
        case "guardrail":
            return replace(manifest, guardrails=tuple(g for g in manifest.guardrails if g.id != part.id))
        case "tool_overlay":
            return replace(manifest, tools=tuple(t for t in manifest.tools if t.name != part.id))
        case "prompt_edit":
            kept = tuple(e for e in manifest.harness.edits if e.id != part.id)
            return replace(manifest, harness=replace(manifest.harness, edits=kept))
        case "system_append":
            return replace(manifest, harness=replace(manifest.harness, system_append=""))
        case "observation":
            return manifest


def messages_without(messages: Sequence[dict[str, Any]], part: Part) -> list[dict[str, Any]]:
    """The request without that observation; a tool's result is emptied, since its call must keep its pair."""
    kept = list(messages)
    if part.kind == "observation":
        place = int(part.id)
        if kept[place].get("role") == "tool":
            kept[place] = {**kept[place], "content": ""}
        else:
            del kept[place]
    return kept


def _observed(message: dict[str, Any]) -> bool:
    return message.get("role") in ("user", "tool", "system", "developer")
