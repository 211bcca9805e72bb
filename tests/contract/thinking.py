"""How the scripted model answers: it asks for the tools that a question needs, then says what they said.

Nothing is random, so that the same client asks and is answered alike twice.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from tests.contract.asked import CITIES, Asked

_FINAL = ("final_answer", "final_result", "StructuredOutput")
"""Tools by which frameworks want the answer itself."""

_OTHERS = ("transfer_to", "ask_", "Agent", "Task")
"""What tools that start or call another agent begin with."""

_SEARCH = "ToolSearch"
"""By which Claude Code's model gets at the tools that a server offers."""


@dataclass
class Reply:
    """An answer, before a dialect has given it its form."""

    text: str = ""
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """Tool and arguments."""
    thinking: str = ""


def answer(asked: Asked) -> Reply:
    reply = _answer(asked)
    if asked.thinks:
        reply.thinking = "thinking about the tool" if reply.calls else "thinking about the answer"
    return reply


def _answer(asked: Asked) -> Reply:
    told_in_words = bool(asked.results) and not asked.called  # smolagents sends no calls back, only what came of them
    calls = [call for call in _wanted(asked) if call[0] not in asked.called and not told_in_words]
    if calls:
        return Reply(calls=calls)
    text = "; ".join(asked.results) or f"There is nothing to look up in: {asked.question[:60]}"
    final = next((name for name in _FINAL if name in asked.tools), None)
    if final:
        return Reply(calls=[(final, filled(asked.tools[final], text))])
    if asked.schema:
        return Reply(json.dumps(filled(asked.schema, text)))
    return Reply(f"This is what I found. {text}. Is there anything else?")


def _wanted(asked: Asked) -> list[tuple[str, dict[str, Any]]]:
    """The calls a question needs, as far as their tools are there."""
    question = asked.question
    specialist = next((name for name in asked.tools if name.startswith(_OTHERS)), None)
    if "specialist" in question and specialist:
        return [(specialist, filled(asked.tools[specialist], "Helper: What is the weather in Rome?"))]
    wanted: list[tuple[str, dict[str, Any]]] = [("get_weather", {"city": city}) for city in CITIES.findall(question)]
    if "time" in question:
        wanted.append(("get_time", {}))
    calls = [(full, arguments) for name, arguments in wanted if (full := _named(asked, name))]
    if wanted and not calls and _SEARCH in asked.tools:
        return [(_SEARCH, {"query": "select:mcp__desk__get_weather,mcp__desk__get_time", "max_results": 5})]
    return calls


def _named(asked: Asked, name: str) -> str | None:
    """The tool as the client calls it: some put their server's name before it."""
    return next((each for each in asked.tools if each == name or each.endswith(f"__{name}")), None)


def filled(schema: dict[str, Any], text: str) -> dict[str, Any]:
    """The smallest object a schema allows, with `text` wherever words are wanted."""
    properties = schema.get("properties") or {"value": {"type": "string"}}
    required = schema.get("required") or list(properties)
    return {name: _value(properties[name], text) for name in required if name in properties}


def _value(schema: dict[str, Any], text: str) -> Any:
    if "enum" in schema:
        return schema["enum"][0]
    match schema.get("type"):
        case "integer" | "number":
            return 21
        case "boolean":
            return True
        case "array":
            return []
        case "object":
            return filled(schema, text)
    return text
