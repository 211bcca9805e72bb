"""The tape of a live session: what each of its tool calls returned, by the tool's name and canonical arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

Tape = dict[tuple[str, bytes], Any]


def tape_of(request: Mapping[str, Any]) -> Tape:
    """Calls and results in a chat request's messages; of a call made twice, the later result."""
    asked: dict[str, tuple[str, bytes]] = {}
    tape: Tape = {}
    for message in request.get("messages") or []:
        if not isinstance(message, dict):
            continue
        for call in message.get("tool_calls") or []:
            key = _key(call)
            if key is not None and isinstance(call.get("id"), str):
                asked[call["id"]] = key
        answered = asked.get(str(message.get("tool_call_id")))
        if message.get("role") == "tool" and answered is not None:
            tape[answered] = message.get("content")
    return tape


def answers_to(message: Mapping[str, Any], tape: Tape) -> list[dict[str, Any]] | None:
    """Tool messages that answer an assistant's calls; None unless the tape has every one of them."""
    results = []
    for call in message.get("tool_calls") or []:
        key = _key(call)
        if key is None or key not in tape:
            return None
        results.append({"role": "tool", "tool_call_id": call.get("id"), "content": tape[key]})
    return results


def _key(call: Any) -> tuple[str, bytes] | None:
    """None for a call whose arguments are not one JSON object: no tool could be given them."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return None
    raw = function.get("arguments") or "{}"
    try:
        arguments = orjson.loads(raw) if isinstance(raw, str) else raw
    except orjson.JSONDecodeError:
        return None
    if not isinstance(arguments, dict):
        return None
    return str(function.get("name")), orjson.dumps(arguments, option=orjson.OPT_SORT_KEYS)
