"""Ids by which requests and answers name what a provider keeps: files, containers, stores, skills."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_ONE = frozenset({"file_id", "container_id", "container", "skill_id"})
_SEVERAL = frozenset({"file_ids", "vector_store_ids"})
_OPAQUE = frozenset({"input", "arguments", "action", "parameters"})
"""What a model or a client's own tool has written: an id there names nothing at the provider."""


def state_in(value: Any) -> Iterator[str]:
    """The ids in a JSON value, however deep."""
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting.extend(value)
        elif isinstance(value, dict):
            for field, inner in value.items():
                if field in _ONE and isinstance(inner, str):
                    if field != "skill_id" or not _of_the_vendor(value, inner):
                        yield inner
                elif field in _SEVERAL and isinstance(inner, list):
                    yield from (id for id in inner if isinstance(id, str))
                elif field not in _OPAQUE and isinstance(inner, dict | list):
                    waiting.append(inner)


def id_of(value: Any) -> list[str]:
    """The id of what is named by a text or by an object with an `id`."""
    id = value.get("id") if isinstance(value, dict) else value
    return [id] if isinstance(id, str) and id else []


def named(value: Any) -> str | None:
    """An answer's id or a model's name as an upstream gives it; None for what is none."""
    return value if isinstance(value, str) else None


def _of_the_vendor(skill: dict[str, Any], id: str) -> bool:
    return skill.get("type") == "anthropic" or id.startswith("openai-")
