"""A recorded step as a person reads it: who did what, what came of it, what it took, and what was said about it.

Only the stored view is told: what was redacted stays redacted, what is sealed is named and not opened.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

_WIDE = 100
"""Characters of JSON that stand on one line."""


class Passage(NamedTuple):
    """Something that was said or done."""

    who: str
    """system, user, assistant, tool, call, result, error …"""
    text: str
    added: bool = False
    """Was it put there by the version, not by the client?"""
    removed: bool = False


class Signal(NamedTuple):
    """An annotation, as it arrived."""

    name: str
    kind: str
    value: str
    source: str
    time: str
    text: str
    confidence: str


class Step(NamedTuple):
    id: str
    kind: str
    title: str
    actor: str
    """Who acted, as it was recorded; empty for the agent itself."""
    time: str
    turn: int | None
    status: str
    version: str
    role: str
    facts: list[tuple[str, str]]
    """Small print: latency, tokens, model, causes."""
    sent: list[Passage]
    """What the client sent; of the history only how much of it there is."""
    got: list[Passage]
    """What the version made of it: only what it changed."""
    out: list[Passage]
    """What came of it."""
    signals: list[Signal]


def new_in(event: dict[str, Any]) -> dict[str, Any]:
    """The call without its history, which would have to be put together from all calls before it."""
    tokens = event.get("tokens")
    if tokens:
        event = {**event, "tokens": {k: v for k, v in tokens.items() if k != "prompt_token_ids"}}
    observed = event.get("o") or {}
    messages = observed.get("messages")
    if not isinstance(messages, dict) or "prefix" not in messages:
        return event
    history = {"role": "history", "parts": [{"type": "text", "content": f"as of step {messages['prefix']}"}]}
    new = [change["message"] for change in messages.get("changed", ())]
    new += [message for message in messages["append"] if "event" not in message]  # an event is a step of its own
    return {**event, "o": {**observed, "messages": [history, *new]}}


def step(event: dict[str, Any], signals: list[Signal]) -> Step:
    """A resolved event, and what was said about it; `new_in` it first, where its history is not to be told again."""
    tags = (event.get("m") or {}).get("tags") or {}
    y = event.get("y") or {}
    action = event.get("a") or {}
    return Step(
        id=event["id"],
        kind=event["kind"],
        title=_title(event),
        actor=" ".join(str((event.get("actor") or {}).get(key) or "") for key in ("type", "id")).strip(),
        time=event["time"],
        turn=event.get("turn"),
        status=y.get("status", ""),
        version=str(tags.get("agent_version", "")),
        role=tags.get("role", ""),
        facts=_facts(event),
        sent=_sent(event),
        got=[passage for overlay in _overlays(event) for passage in _overlay(overlay)],
        out=[*_said(action.get("messages")), *_did(action), *_came(y)],
        signals=signals,
    )


def _title(event: dict[str, Any]) -> str:
    name = (event.get("a") or {}).get("name")
    kind = event["kind"].replace("_", " ")
    if event["kind"] == "llm_call":
        response = (event.get("ext") or {}).get("response")
        told = response.get("model") if isinstance(response, dict) else None
        return f"model call · {told}" if told else "model call"
    return f"{kind} · {name}" if isinstance(name, str) and name else kind


def _facts(event: dict[str, Any]) -> list[tuple[str, str]]:
    usage = (event.get("m") or {}).get("usage") or {}
    tokens = event.get("tokens") or {}
    causes = ", ".join(f"{c['rel']} {c['id'][:14]}…" for c in event.get("causes") or [])
    replay = event.get("replay") or {}
    facts = [
        ("took", _duration(event.get("duration_ms"))),
        (
            "tokens",
            f"{usage['input_tokens']} in, {usage.get('output_tokens', '?')} out" if "input_tokens" in usage else "",
        ),
        ("exact tokens", "captured" if tokens.get("completion_token_ids") else ""),
        ("finish", str((event.get("y") or {}).get("finish_reason") or "")),
        ("effect", str(replay.get("effect", "")) if event["kind"] != "llm_call" else ""),
        ("replay", str(replay.get("class", ""))),
        ("because of", causes),
    ]
    return [(name, text) for name, text in facts if text]


def _duration(ms: float | None) -> str:
    if not ms:
        return ""
    return f"{ms:.0f} ms" if ms < 1000 else f"{ms / 1000:.2f} s"


def _sent(event: dict[str, Any]) -> list[Passage]:
    observed = event.get("o") or {}
    passages = []
    if observed.get("system_instructions") is not None:
        passages.append(Passage("system", _text(observed["system_instructions"])))
    return passages + _said(observed.get("messages"))


def _said(messages: Any) -> list[Passage]:
    passages: list[Passage] = []
    for message in messages if isinstance(messages, list) else []:
        if not isinstance(message, dict):
            continue
        for part in message.get("parts", []):
            match part.get("type"):
                case "tool_call":
                    passages.append(
                        Passage("call", f"{part.get('name')}({_text(part.get('raw', part.get('arguments')))})")
                    )
                case "tool_call_response":
                    passages.append(Passage("tool", _text(part.get("response"))))
                case "text" | "reasoning" as kind:
                    passages.append(
                        Passage(message["role"] if kind == "text" else "reasoning", _text(part.get("content")))
                    )
                case other:
                    passages.append(Passage(message["role"], f"[{other}] {_text(part.get('content'))}"))
    return passages


def _did(action: dict[str, Any]) -> list[Passage]:
    passages = []
    if "arguments" in action or "raw" in action:
        given = _text(action.get("raw", action.get("arguments")))
        passages.append(Passage("call", f"{action.get('name', '')}({given})"))
    if action.get("decision"):
        passages.append(Passage("decision", _text(action["decision"])))
    return passages


def _came(outcome: dict[str, Any]) -> list[Passage]:
    passages = [Passage("result", _text(outcome["result"]))] if outcome.get("result") is not None else []
    error = outcome.get("error")
    if error:
        passages.append(Passage("error", _text(error)))
    if outcome.get("reason"):
        passages.append(Passage("reason", _text(outcome["reason"])))
    return passages


def _overlays(event: dict[str, Any]) -> list[dict[str, Any]]:
    """`ext` of an imported record is whatever its maker put there."""
    found = (event.get("ext") or {}).get("overlays")
    return [overlay for overlay in found if isinstance(overlay, dict)] if isinstance(found, list) else []


def _overlay(overlay: dict[str, Any]) -> list[Passage]:
    """What one overlay took away and what it put there."""
    where = f"{overlay.get('surface', '')} · {overlay.get('target', '')}"
    if overlay.get("skipped"):
        return [Passage(where, f"not applied: {_text(overlay['skipped'])}")]
    passages = []
    for name in ("old", "before"):
        if overlay.get(name):
            passages.append(Passage(where, _text(overlay[name]), removed=True))
    for name in ("text", "value", "after"):
        if overlay.get(name):
            passages.append(Passage(where, _text(overlay[name]).strip(), added=True))
    return passages or [Passage(where, _text({k: v for k, v in overlay.items() if k != "digest"}), added=True)]


def signal(record: dict[str, Any]) -> Signal:
    """A resolved annotation."""
    source = record.get("source") or {}
    demonstration = (record.get("ext") or {}).get("demonstration")
    said = record.get("explanation") or (_demonstrated(demonstration) if isinstance(demonstration, dict) else "")
    value = record.get("value", record.get("label"))
    return Signal(
        name=record.get("name") or record["kind"],
        kind=record["kind"],
        value="" if value is None else f"{value:g}" if isinstance(value, int | float) else str(value),
        source=" ".join(str(source[k]) for k in ("kind", "id") if source.get(k)),
        time=record.get("observed_at") or record["time"],
        text=_text(said),
        confidence=f"{record['confidence']:.2f}" if record.get("confidence") is not None else "",
    )


def _demonstrated(message: dict[str, Any]) -> str:
    told = message.get("tool_calls")
    asked = [c.get("function") for c in told if isinstance(c, dict)] if isinstance(told, list) else []
    calls = [function for function in asked if isinstance(function, dict)]
    return "; ".join(f"{c.get('name')}({c.get('arguments')})" for c in calls) or _text(message.get("content"))


def _text(value: Any) -> str:
    """Text as it is, anything else as JSON; what is sealed or redacted in words."""
    for hidden in ("sealed", "redacted"):
        if isinstance(value, dict) and hidden in value:
            labels = value.get("labels")
            # what a tool answered may look like this as well, with anything for labels
            return f"[{hidden}: {', '.join(map(str, labels)) if isinstance(labels, list) else ''}]"
    if isinstance(value, str):
        return value
    line = json.dumps(value, ensure_ascii=False, default=str)
    return line if len(line) <= _WIDE else json.dumps(value, ensure_ascii=False, indent=1, default=str)
