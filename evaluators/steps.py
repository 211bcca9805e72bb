"""What happened after a decision, until the user spoke again: tool results, and the answers that read them.

A tool's result belongs to the decision whose call it was (`decided_by`), or else to the last one before it. Clients
that send a result back as a message report every result as one that came; what such a result says then counts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from atdp import messages
from atdp.error_class import error_class, tells_failure

_OPERATIONS = frozenset(
    {"tool_call", "retrieval", "memory_read", "memory_write", "file_op", "browser_op", "code_exec", "approval",
     "handoff", "guardrail"}
)  # fmt: skip
_FAILED = frozenset({"error", "timeout", "denied"})


class Step(msgspec.Struct, frozen=True):
    """One thing that followed a decision."""

    kind: str
    """The event's: `tool_call`, `retrieval`, …; `llm_call` for a later answer of the same turn."""
    name: str
    """The tool's; empty for an answer."""
    arguments: dict[str, Any] | None
    """None when they are not one JSON object, and for an answer."""
    status: str
    """The event's, but `error` also where a result says so itself."""
    error_class: str
    """What kind of failure it was (`atdp.error_class`); empty when it was none."""
    text: str
    """The result, or the answer, as text."""
    event_id: str
    effect: str = ""
    """What the call may change, as its record says (`read`, `write`, …); empty when nobody said."""

    @property
    def failed(self) -> bool:
        return self.status in _FAILED


def steps_by_decision(events: Sequence[dict[str, Any]], decisions: Sequence[str]) -> Mapping[str, tuple[Step, ...]]:
    """The steps that followed each decision, by its event id.

    Args:
        events: the resolved events of one trajectory, in order.
        decisions: ids of the model calls that answer a user, in order.
    """
    owner: dict[str, str] = {}
    found: dict[str, list[Step]] = {id: [] for id in decisions}
    current: str | None = None
    for event in events:
        id, kind = event["id"], event["kind"]
        if id in found:
            current = owner[id] = id
        elif kind == "user_message":
            current = None
        elif kind == "llm_call" or kind in _OPERATIONS:
            mine = owner.get(_decided_by(event)) or current
            if mine is not None:
                owner[id] = mine
                found[mine].append(_answer(event) if kind == "llm_call" else _operation(event))
    return {id: tuple(steps) for id, steps in found.items()}


def _decided_by(event: dict[str, Any]) -> str:
    causes = event.get("causes") or []
    return next((c["id"] for c in causes if c.get("rel") == "decided_by"), event.get("parent_id") or "")


def _operation(event: dict[str, Any]) -> Step:
    action, outcome = event.get("a") or {}, event.get("y") or {}
    error = outcome.get("error") or {}
    text = _text(error.get("message")) or _text(outcome.get("result"))
    status = str(outcome.get("status") or "unknown")
    if status == "ok" and tells_failure(text):
        status = "error"
    failed = status in _FAILED
    arguments = action.get("arguments")
    return Step(
        kind=event["kind"],
        name=str(action.get("name") or ""),
        arguments=arguments if isinstance(arguments, dict) else _object(arguments),
        status=status,
        error_class=(error.get("type") or error_class(text)) if failed else "",
        text=text,
        event_id=event["id"],
        effect=str((event.get("replay") or {}).get("effect") or ""),
    )


def _answer(event: dict[str, Any]) -> Step:
    said = ((event.get("a") or {}).get("messages") or [None])[0]
    status = str((event.get("y") or {}).get("status") or "unknown")
    return Step("llm_call", "", None, status, "", messages.text(said) if said else "", event["id"])


def _object(value: Any) -> dict[str, Any] | None:
    if not isinstance(value, str):
        return None
    try:
        read = json.loads(value)
    except ValueError:
        return None
    return read if isinstance(read, dict) else None


def _text(value: Any) -> str:
    """A leaf as text: strings as they are, blocks by their text, the rest as JSON."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(item, dict) and isinstance(item.get("text"), str) for item in value):
        return "\n".join(item["text"] for item in value)
    return json.dumps(value, ensure_ascii=False, default=str)
