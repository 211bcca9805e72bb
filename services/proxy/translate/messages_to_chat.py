"""Anthropic's requests as chat: tool results become messages, content blocks parts."""

from __future__ import annotations

from typing import Any

from services.proxy.dialects.base import dicts
from services.proxy.translate import content as chat
from services.proxy.translate.base import NotTranslatable
from services.proxy.translate.notes import Notes

_READ = frozenset(
    {"model", "messages", "system", "max_tokens", "stop_sequences", "tools", "tool_choice", "output_config",
     "output_format", "stream", "thread"}
)  # fmt: skip
"""Fields that this file reads."""

_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def chat_request(request: dict[str, Any], notes: Notes, also: frozenset[str]) -> dict[str, Any]:
    """The request as chat; raises `NotTranslatable` for a thread, which is kept at the provider."""
    if request.get("thread") is not None:
        raise NotTranslatable(
            "Threads are kept at the provider, and this model is served by one that knows none: send the whole"
            " conversation instead.",
            "thread",
            "thread_unsupported_request",
        )
    system = _system(request.get("system"), notes)
    result: dict[str, Any] = {
        "model": request.get("model"),
        "messages": [*system, *(m for raw in dicts(request.get("messages")) for m in _message(raw, notes))],
        **chat.carried(request, notes, _READ, also),
        **chat.streaming(request),
    }
    if request.get("max_tokens") is not None:
        result["max_completion_tokens"] = request["max_tokens"]
    if request.get("stop_sequences"):
        result["stop"] = request["stop_sequences"]
    result.update(_tools(request, notes))
    result.update(_output(request, notes))
    return result


def _system(system: Any, notes: Notes) -> list[dict[str, Any]]:
    if isinstance(system, list):
        parts = _parts(system, notes, "system")
        return [{"role": "system", "content": chat.content_of(parts)}] if parts else []
    return [{"role": "system", "content": system}] if system else []


def _message(raw: dict[str, Any], notes: Notes) -> list[dict[str, Any]]:
    """One message: several when it carries tool results."""
    role, content = raw.get("role"), raw.get("content")
    notes.rest("messages", raw, "role", "content")
    if not isinstance(content, list):
        return [{"role": role, "content": content}]
    if role == "assistant":
        return [_assistant(content, notes)]
    results = [block for block in dicts(content) if block.get("type") == "tool_result"]
    said, media = [], []
    for block in results:
        message, others = _result(block, notes)
        said.append(message)
        media += others
    rest = [block for block in dicts(content) if block.get("type") != "tool_result"]
    parts = [*media, *_parts(rest, notes)]
    return [*said, {"role": role, "content": chat.content_of(parts)}] if parts or not results else said


def _result(block: dict[str, Any], notes: Notes) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    notes.rest("messages.tool_result", block, "type", "tool_use_id", "content", "is_error")
    if block.get("is_error") is True:
        notes.drop("messages.tool_result.is_error")
    content = block.get("content")
    parts = _parts(content, notes) if isinstance(content, list) else [chat.text_part(content or "")]
    return chat.tool_messages(block.get("tool_use_id"), parts)


def _assistant(blocks: list[Any], notes: Notes) -> dict[str, Any]:
    parts: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    reasoning: list[str] = []
    for block in dicts(blocks):
        match block.get("type"):
            case "tool_use":
                notes.rest("messages.tool_use", block, "type", "id", "name", "input")
                calls.append(chat.function_call(block.get("id"), block.get("name"), block.get("input")))
            case "thinking" if not block.get("signature"):
                reasoning.append(str(block.get("thinking") or ""))
            case _:
                parts += _parts([block], notes)
    return chat.assistant(parts, calls, reasoning)


def _parts(blocks: list[Any], notes: Notes, where: str = "messages") -> list[dict[str, Any]]:
    return [part for block in dicts(blocks) for part in _part(block, notes, where)]


def _part(block: dict[str, Any], notes: Notes, where: str) -> list[dict[str, Any]]:
    kind = block.get("type")
    name = f"{where}.{kind}"
    source = block.get("source")
    match kind:
        case "text":
            notes.rest(name, block, "type", "text")
            return [chat.text_part(block.get("text") or "")]
        case "image" | "document" if isinstance(source, dict):
            notes.rest(name, block, "type", "source")
            parts = _image(source) if kind == "image" else _document(source, notes, where)
            if not parts:
                notes.drop(f"{name}.source.{source.get('type')}")
            return parts
    notes.drop(name)
    return []


def _image(source: dict[str, Any]) -> list[dict[str, Any]]:
    match source.get("type"):
        case "base64":
            return [{"type": "image_url", "image_url": {"url": _data_url(source)}}]
        case "url":
            return [{"type": "image_url", "image_url": {"url": source.get("url")}}]
    return []


def _document(source: dict[str, Any], notes: Notes, where: str) -> list[dict[str, Any]]:
    match source.get("type"):
        case "text":
            return [chat.text_part(source.get("data") or "")]
        case "content":
            content = source.get("content")
            return [chat.text_part(content)] if isinstance(content, str) else _parts(content or [], notes, where)
        case "base64":
            return [{"type": "file", "file": {"filename": "document.pdf", "file_data": _data_url(source)}}]
    return []


def _data_url(source: dict[str, Any]) -> str:
    return f"data:{source.get('media_type')};base64,{source.get('data')}"


def _tools(request: dict[str, Any], notes: Notes) -> dict[str, Any]:
    tools = []
    for tool in dicts(request.get("tools")):
        if tool.get("type") in (None, "custom"):
            notes.rest("tools", tool, "type", "name", "description", "input_schema", "strict")
            tools.append(chat.function(tool, tool.get("input_schema")))
        else:
            notes.drop(f"tools.{tool['type']}")
    choice = request.get("tool_choice")
    if not tools:
        if choice is not None:
            notes.drop("tool_choice")
        return {}
    return {"tools": tools, **(_choice(choice, notes) if isinstance(choice, dict) else {})}


def _choice(choice: dict[str, Any], notes: Notes) -> dict[str, Any]:
    result: dict[str, Any] = {}
    kind = choice.get("type")
    if kind == "tool":
        result["tool_choice"] = {"type": "function", "function": {"name": choice.get("name")}}
    elif kind in _CHOICES:
        result["tool_choice"] = _CHOICES[kind]
    else:
        notes.drop(f"tool_choice.{kind}")
    if "disable_parallel_tool_use" in choice:
        result["parallel_tool_calls"] = choice["disable_parallel_tool_use"] is not True
    return result


def _output(request: dict[str, Any], notes: Notes) -> dict[str, Any]:
    """A schema that the answer has to follow."""
    config = request.get("output_config")
    config = config if isinstance(config, dict) else {}
    notes.rest("output_config", config, "format")
    wanted = config.get("format") or request.get("output_format")
    if not isinstance(wanted, dict):
        return {}
    if wanted.get("type") != "json_schema":
        notes.drop(f"output_config.format.{wanted.get('type')}")
        return {}
    schema = {"name": "answer", "schema": wanted.get("schema"), "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}
