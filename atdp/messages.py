"""OpenAI chat messages as ATDP messages, and back.

The way there keeps everything a model could have seen. Only what says nothing is dropped: an
assistant's `null` fields and empty lists, which SDKs add or leave out as they please when they
send an answer back. `content` that was an array stays an array.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from atdp.canonical import canonical

OPENAI_PART = "x.openai"
"""Part type that carries a content item of OpenAI's as it is (images, audio, files, cache marks)."""

ABOUT_PART = "x.openai.about"
"""Part type that carries what else was said about the text part before it (citations, log-probabilities)."""

_UNSAID = frozenset({"reasoning", ABOUT_PART})
"""Parts that clients add or leave out as they please when they send an answer back."""

_KNOWN_FIELDS = frozenset({"role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content", "reasoning"})


def from_openai(message: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    """One chat message, as a request carries it or a reply gives it, in ATDP's form."""
    role = message.get("role", "assistant")
    lenient = role == "assistant"
    ext: dict[str, Any] = {}
    parts: list[dict[str, Any]] = []
    for key in ("reasoning_content", "reasoning"):
        if message.get(key):
            parts.append({"type": "reasoning", "content": message[key], "name": key})
    content = message.get("content")
    if role == "tool":
        parts.append({"type": "tool_call_response", "id": name(message.get("tool_call_id")), "response": content})
    elif isinstance(content, str):
        if content or not lenient:
            parts.append({"type": "text", "content": content})
    elif isinstance(content, list):
        ext["content"] = "array"
        parts.extend(part for item in content for part in _content_parts(item))
    elif content is None and not lenient:
        ext["content"] = "null" if "content" in message else "absent"
    elif content is not None:
        ext["content"] = content
    calls = message.get("tool_calls")
    if isinstance(calls, list):
        parts.extend(call_part(call) for call in calls)
        more = [[at, rest] for at, call in enumerate(calls) if (rest := _beyond(call))]
        if more:
            ext["calls"] = more
    elif calls is not None:
        ext["tool_calls"] = calls
    rest = {k: v for k, v in message.items() if k not in _KNOWN_FIELDS and not (lenient and v in (None, [], {}))}
    if rest:
        ext["fields"] = rest
    result: dict[str, Any] = {"role": role if isinstance(role, str) else "unknown", "parts": parts}
    if message.get("name") is not None:
        result["name"] = name(message["name"])
    if finish_reason is not None:
        result["finish_reason"] = finish_reason
    if ext:
        result["ext"] = ext
    return result


def to_openai(message: dict[str, Any]) -> dict[str, Any]:
    """The chat message an ATDP message came from (with `content: null` where nothing was said)."""
    ext = message.get("ext", {})
    result: dict[str, Any] = {"role": message["role"]}
    if message.get("name") is not None:
        result["name"] = message["name"]
    texts: list[Any] = []
    calls: list[dict[str, Any]] = []
    for part in message["parts"]:
        match part["type"]:
            case "text":
                texts.append({"type": "text", "text": part["content"]})
            case "tool_call":
                calls.append(_call_openai(part))
            case "tool_call_response":
                result["tool_call_id"] = part.get("id")
                result["content"] = part.get("response")
            case "reasoning":
                result[part.get("name", "reasoning_content")] = part["content"]
            case "x.openai.about" if texts:
                texts[-1] = {**texts[-1], **part["content"]}
            case _:
                texts.append(part["content"])
    if ext.get("content") == "array":
        result["content"] = texts
    elif texts:
        result["content"] = texts[0]["text"]
    elif "content" not in result and ext.get("content") != "absent":
        result["content"] = None
    for at, rest in ext.get("calls", ()):
        calls[at] = {**calls[at], **rest, "function": {**calls[at]["function"], **rest.get("function", {})}}
    if calls:
        result["tool_calls"] = calls
    return {**result, **ext.get("fields", {})}


def arguments_text(part: dict[str, Any]) -> str:
    """The exact text of a tool call's arguments, as the model wrote it."""
    if "raw" in part:
        return str(part["raw"])
    arguments = part.get("arguments")
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def tool_calls(message: dict[str, Any]) -> list[dict[str, Any]]:
    """The tool calls of an ATDP message, in order."""
    return [part for part in message["parts"] if part["type"] == "tool_call"]


def text(message: dict[str, Any]) -> str:
    """What an ATDP message says in words; parts that are not text are left out."""
    return "".join(p["content"] for p in message["parts"] if p["type"] == "text" and isinstance(p["content"], str))


def meaning(message: dict[str, Any]) -> bytes:
    """Bytes that are equal for messages that say the same.

    SDKs re-serialise arguments and turn a single text block into a string (and back) when they
    resend an answer, and cache marks move on; that must not make it another conversation.
    Reasoning is left out because many clients drop it.
    """
    parts = [_meant(part) for part in message["parts"] if part["type"] not in _UNSAID]
    return msgspec.json.encode({"role": message["role"], "parts": parts}, order="sorted")


def _meant(part: dict[str, Any]) -> dict[str, Any]:
    match part["type"]:
        case "tool_call":
            return {key: value for key, value in part.items() if key != "raw"}
        case "tool_call_response":
            return {**part, "response": _said(part.get("response"))}
    return part


def _said(response: Any) -> Any:
    """A tool's result without its wrapping: a text, and a list of one text block, say the same."""
    if not isinstance(response, list):
        return response
    texts = [item.get("text") if isinstance(item, dict) and item.get("type") == "text" else item for item in response]
    return texts[0] if len(texts) == 1 else texts


def loads_or_none(text: str) -> Any:
    """The text as a JSON value; None when it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def object_or_none(text: str) -> dict[str, Any] | None:
    """The text as an object; None when it is none, or one that only its own text can carry, such as half an emoji."""
    value = loads_or_none(text)
    if not isinstance(value, dict):
        return None
    try:
        msgspec.json.encode(value)
    except (ValueError, RecursionError):
        return None
    return value


def name(value: Any) -> str | None:
    """Names and ids are strings; what a client sends instead is kept as its text."""
    return value if value is None or isinstance(value, str) else str(value)


def _content_parts(item: Any) -> list[dict[str, Any]]:
    if isinstance(item, dict) and item.get("type") == "text" and isinstance(item.get("text"), str):
        about = {key: value for key, value in item.items() if key not in ("type", "text")}
        said = {"type": "text", "content": item["text"]}
        return [said, {"type": ABOUT_PART, "content": about}] if about else [said]
    return [{"type": OPENAI_PART, "content": item}]


def call_part(call: Any) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return {"type": "x.openai_tool_call", "content": call}
    part: dict[str, Any] = {"type": "tool_call", "id": name(call.get("id")), "name": str(function.get("name") or "")}
    raw = function.get("arguments")
    value = loads_or_none(raw) if isinstance(raw, str) else None
    if not isinstance(value, dict):
        return {**part, "arguments": raw, "malformed": True}
    try:
        canonical(value)
    except ValueError:  # such as an integer beyond 2**53: valid JSON that only its own text can carry
        return {**part, "arguments": raw}
    part["arguments"] = value
    if not (isinstance(raw, str) and _written_alike(value, raw)):
        part["raw"] = raw
    return part


def _written_alike(value: dict[str, Any], raw: str) -> bool:
    """Does writing the value give the text again, after a log has put its keys in canonical order?

    RFC 8785 orders keys by UTF-16 code units, Python by code points: alike within the basic plane.
    """
    return max(raw) <= "\uffff" and json.dumps(value, ensure_ascii=False, sort_keys=True) == raw


def _beyond(call: Any) -> dict[str, Any]:
    """What a tool call has besides the fields that a part holds."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return {}
    beyond = {k: v for k, v in call.items() if k not in ("id", "function") and (k, v) != ("type", "function")}
    inside = {k: v for k, v in function.items() if k not in ("name", "arguments")}
    return {**beyond, "function": inside} if inside else beyond


def _call_openai(part: dict[str, Any]) -> dict[str, Any]:
    function = {"name": part["name"], "arguments": arguments_text(part)}
    return {"id": part.get("id"), "type": "function", "function": function}
