"""What requests of all dialects have in common once they are chat."""

from __future__ import annotations

import json
from typing import Any

from services.proxy.translate.notes import Notes

CARRIED = frozenset({"temperature", "top_p", "seed", "frequency_penalty", "presence_penalty", "logit_bias"})
"""Fields that mean the same in chat, whoever sends them."""


def content_of(parts: list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    """Parts as a message's content: a text alone is just that, because some servers read nothing else."""
    if not parts:
        return ""
    first = parts[0]
    return first["text"] if len(parts) == 1 and first["type"] == "text" else parts


def text_part(text: Any) -> dict[str, Any]:
    return {"type": "text", "text": text if isinstance(text, str) else json.dumps(text, ensure_ascii=False)}


def tool_messages(call_id: Any, parts: list[dict[str, Any]]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A tool's result, and of it what only a user's message may hold here (images, files)."""
    texts = [part for part in parts if part["type"] == "text"]
    others = [part for part in parts if part["type"] != "text"]
    return {"role": "tool", "tool_call_id": call_id, "content": content_of(texts)}, others


def assistant(parts: list[dict[str, Any]], calls: list[dict[str, Any]], reasoning: list[str]) -> dict[str, Any]:
    """An earlier answer. Reasoning that came from an upstream of this kind goes back to it as it came."""
    message: dict[str, Any] = {"role": "assistant", "content": content_of(parts) if parts or not calls else None}
    if reasoning:
        message["reasoning_content"] = "".join(reasoning)
    if calls:
        message["tool_calls"] = calls
    return message


def function_call(id: Any, name: Any, arguments: Any) -> dict[str, Any]:
    """A tool call. Arguments are text here: what is a text already travels as it is, object or not."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {"id": id, "type": "function", "function": {"name": name, "arguments": text}}


def function(tool: dict[str, Any], parameters: Any) -> dict[str, Any]:
    """A tool's definition; what it does not say is left out."""
    known = {
        "name": tool.get("name"),
        "description": tool.get("description"),
        "parameters": parameters,
        "strict": tool.get("strict"),
    }
    return {"type": "function", "function": {k: v for k, v in known.items() if v is not None}}


def streaming(request: dict[str, Any]) -> dict[str, Any]:
    """The fields that ask for a stream, with the usage that the other dialects always give."""
    if request.get("stream") is not True:
        return {"stream": False} if "stream" in request else {}
    return {"stream": True, "stream_options": {"include_usage": True}}


def carried(request: dict[str, Any], notes: Notes, read: frozenset[str], also: frozenset[str]) -> dict[str, Any]:
    """The fields that travel under their own name; what is neither carried nor read is named."""
    same = CARRIED | also
    notes.rest("", request, *read, *same)
    return {field: request[field] for field in request if field in same and request[field] is not None}
