"""Responses' requests as chat: items become messages, what one answer generated one message."""

from __future__ import annotations

from typing import Any

from services.proxy.dialects.base import dicts
from services.proxy.translate import content as chat
from services.proxy.translate.base import NotTranslatable
from services.proxy.translate.notes import Notes

_READ = frozenset(
    {"model", "input", "instructions", "max_output_tokens", "tools", "tool_choice", "text", "reasoning", "store",
     "stream", "truncation"}
)  # fmt: skip
"""Fields that this file reads."""

_SAME = frozenset(
    {"parallel_tool_calls", "user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "service_tier"}
)
"""Fields that OpenAI's chat knows under the same name."""

_KEPT_THERE = ("previous_response_id", "conversation", "prompt")
"""Fields that point at what the provider keeps."""

_ROLES = {"developer": "system"}
"""`system` is understood everywhere, and taken for `developer` by the models that know the difference."""


def chat_request(request: dict[str, Any], notes: Notes, also: frozenset[str]) -> dict[str, Any]:
    """The request as chat; raises `NotTranslatable` where it goes on from what the provider keeps."""
    for field in _KEPT_THERE:
        if request.get(field) is not None:
            raise _kept_there(field)
    instructions = request.get("instructions")
    system = [{"role": "system", "content": instructions}] if instructions else []
    result: dict[str, Any] = {
        "model": request.get("model"),
        "messages": [*system, *_messages(request.get("input"), notes)],
        **chat.carried(request, notes, _READ, also | _SAME),
        **chat.streaming(request),
    }
    if request.get("max_output_tokens") is not None:
        result["max_completion_tokens"] = request["max_output_tokens"]
    if request.get("store") is True:
        notes.drop("store")
    if request.get("truncation") not in (None, "disabled"):
        notes.drop("truncation")
    result.update(_tools(request, notes))
    result.update(_text(request.get("text"), notes))
    result.update(_reasoning(request.get("reasoning"), notes))
    return result


def _kept_there(field: str) -> NotTranslatable:
    return NotTranslatable(
        f"{field!r} points at what the provider keeps, and this model is served by one that keeps nothing: send the"
        " whole conversation as input.",
        field,
        "unsupported_parameter",
    )


def _messages(given: Any, notes: Notes) -> list[dict[str, Any]]:
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    result: list[dict[str, Any]] = []
    generated: list[dict[str, Any]] = []
    media: list[dict[str, Any]] = []
    for item in dicts(given):
        kind = str(item.get("type") or "message")
        if kind == "item_reference":
            raise _kept_there("item_reference")
        own = kind in ("function_call", "reasoning") or (kind == "message" and item.get("role") == "assistant")
        if generated and not own:
            result.append(_assistant(generated, notes))
            generated = []
        if media and kind != "function_call_output":
            result.append({"role": "user", "content": media})
            media = []
        if own:
            generated.append(item)
        elif kind == "message":
            result.append(_said(item, notes))
        elif kind == "function_call_output":
            message, others = _output(item, notes)
            result.append(message)
            media += others
        else:
            notes.drop(f"input.{kind}")
    if generated:
        result.append(_assistant(generated, notes))
    return [*result, {"role": "user", "content": media}] if media else result


def _said(item: dict[str, Any], notes: Notes) -> dict[str, Any]:
    notes.rest("input.message", item, "type", "role", "content", "id", "status")
    role = item.get("role")
    return {"role": _ROLES.get(str(role), role), "content": _content(item.get("content"), notes)}


def _output(item: dict[str, Any], notes: Notes) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    notes.rest("input.function_call_output", item, "type", "call_id", "output", "id", "status")
    output = item.get("output")
    parts = _parts(output, notes) if isinstance(output, list) else [chat.text_part("" if output is None else output)]
    return chat.tool_messages(item.get("call_id"), parts)


def _assistant(items: list[dict[str, Any]], notes: Notes) -> dict[str, Any]:
    """What one answer generated."""
    parts: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    reasoning: list[str] = []
    for item in items:
        match item.get("type"):
            case "function_call":
                notes.rest("input.function_call", item, "type", "call_id", "name", "arguments", "id", "status")
                calls.append(chat.function_call(item.get("call_id"), item.get("name"), item.get("arguments")))
            case "reasoning":
                notes.rest("input.reasoning", item, "type", "content", "id", "status")
                reasoning += [str(part.get("text") or "") for part in dicts(item.get("content"))]
            case _:
                notes.rest("input.message", item, "type", "role", "content", "id", "status")
                content = item.get("content")
                parts += [chat.text_part(content)] if isinstance(content, str) else _parts(content, notes)
    return chat.assistant(parts, calls, reasoning)


def _content(content: Any, notes: Notes) -> Any:
    return chat.content_of(_parts(content, notes)) if isinstance(content, list) else content


def _parts(content: Any, notes: Notes) -> list[dict[str, Any]]:
    return [part for item in dicts(content) if (part := _part(item, notes)) is not None]


def _part(item: dict[str, Any], notes: Notes) -> dict[str, Any] | None:
    kind = str(item.get("type"))
    name = f"input.{kind}"
    match kind:
        case "input_text" | "output_text" | "text":
            notes.rest(name, item, "type", "text")
            return chat.text_part(item.get("text") or "")
        case "refusal":
            return {"type": "refusal", "refusal": item.get("refusal")}
        case "input_image" if item.get("image_url"):
            notes.rest(name, item, "type", "image_url", "detail")
            detail = {"detail": item["detail"]} if item.get("detail") else {}
            return {"type": "image_url", "image_url": {"url": item["image_url"], **detail}}
        case "input_file" if item.get("file_data"):
            notes.rest(name, item, "type", "file_data", "filename")
            return {"type": "file", "file": {k: item[k] for k in ("filename", "file_data") if item.get(k)}}
        case "input_audio":
            return {"type": "input_audio", "input_audio": item.get("input_audio")}
    notes.drop(name)
    return None


def _tools(request: dict[str, Any], notes: Notes) -> dict[str, Any]:
    tools = []
    for tool in dicts(request.get("tools")):
        if tool.get("type") == "function":
            notes.rest("tools", tool, "type", "name", "description", "parameters", "strict")
            tools.append(chat.function(tool, tool.get("parameters")))
        else:
            notes.drop(f"tools.{tool.get('type')}")
    choice = request.get("tool_choice")
    if not tools:
        if choice not in (None, "auto", "none"):
            notes.drop("tool_choice")
        return {}
    return {"tools": tools, **_choice(choice, notes)}


def _choice(choice: Any, notes: Notes) -> dict[str, Any]:
    if choice is None or isinstance(choice, str):
        return {} if choice is None else {"tool_choice": choice}
    kind = choice.get("type") if isinstance(choice, dict) else None
    if kind == "function":
        return {"tool_choice": {"type": "function", "function": {"name": choice.get("name")}}}
    notes.drop(f"tool_choice.{kind}")
    return {}


def _text(text: Any, notes: Notes) -> dict[str, Any]:
    """The form that the answer has to have."""
    if not isinstance(text, dict):
        return {}
    notes.rest("text", text, "format", "verbosity")
    result: dict[str, Any] = {"verbosity": text["verbosity"]} if text.get("verbosity") else {}
    wanted = text.get("format") or {}
    match wanted.get("type"):
        case "json_schema":
            schema = {k: v for k, v in wanted.items() if k != "type" and v is not None}
            result["response_format"] = {"type": "json_schema", "json_schema": schema}
        case "json_object":
            result["response_format"] = {"type": "json_object"}
        case None | "text":
            pass
        case other:
            notes.drop(f"text.format.{other}")
    return result


def _reasoning(reasoning: Any, notes: Notes) -> dict[str, Any]:
    if not isinstance(reasoning, dict):
        return {}
    notes.rest("reasoning", reasoning, "effort")
    return {"reasoning_effort": reasoning["effort"]} if reasoning.get("effort") else {}
