"""Annotations and events as records, with only what a test speaks about spelled out."""

from __future__ import annotations

from typing import Any


def says(
    id: str,
    value: float | None,
    name: str = "resolved",
    source: str = "end_user",
    *,
    at: str = "2026-01-01T00:00:00.000Z",
    about: str | None = None,
    trajectory: str = "tr",
    **fields: Any,
) -> dict[str, Any]:
    target = {"trajectory_id": trajectory, **({"event_id": about} if about else {})}
    who = source if isinstance(source, dict) else {"kind": source}
    given = {} if value is None else {"value": value}
    return {"record": "annotation", "id": id, "trajectory_id": trajectory, "kind": "reward", "name": name,
            "targets": [target], "source": who, "time": at, **given, **fields}  # fmt: skip


Causes = tuple[tuple[str, str], ...]
"""(event, relation) pairs."""


def event(id: str, kind: str = "llm_call", causes: Causes = (), **fields: Any) -> dict[str, Any]:
    links = [{"id": cause, "rel": rel} for cause, rel in causes]
    return {"record": "event", "id": id, "kind": kind, "trajectory_id": "tr", "time": at(0), "causes": links,
            "y": {"status": "ok"}, **fields}  # fmt: skip


def at(second: int) -> str:
    return f"2026-01-01T00:{second // 60:02d}:{second % 60:02d}.000Z"
