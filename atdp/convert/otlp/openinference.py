"""OpenInference's semantic conventions (Arize): `openinference.span.kind`, lists as numbered keys."""

from __future__ import annotations

from typing import Any

import orjson

from atdp import messages
from atdp.convert.base import Record
from atdp.convert.otlp.flat import flatten, unflatten
from atdp.convert.otlp.spans import Span, structured
from atdp.convert.otlp.step import Step, Taker
from atdp.convert.transcripts import openai

_KIND = "openinference.span.kind"
KINDS = {
    "LLM": "llm_call",
    "TOOL": "tool_call",
    "RETRIEVER": "retrieval",
    "AGENT": "handoff",
    "GUARDRAIL": "guardrail",
}
"""Span kind → event kind; any other is `x.<kind>` in small letters."""
SPAN_KINDS = {
    "llm_call": "LLM",
    "retrieval": "RETRIEVER",
    "memory_read": "RETRIEVER",
    "handoff": "AGENT",
    "guardrail": "GUARDRAIL",
}
"""Event kind → span kind; every other operation is a TOOL."""
_USAGE = {
    "input_tokens": "llm.token_count.prompt",
    "output_tokens": "llm.token_count.completion",
    "cache_read_input_tokens": "llm.token_count.prompt_details.cache_read",
    "cache_creation_input_tokens": "llm.token_count.prompt_details.cache_write",
    "reasoning_output_tokens": "llm.token_count.completion_details.reasoning",
}
_JSON = "application/json"


def recognises(span: Span) -> bool:
    return _KIND in span.attributes


def step(span: Span) -> Step:
    """The event an OpenInference span is."""
    kind = str(span.attributes[_KIND])
    made = Step(KINDS.get(kind.upper(), f"x.{kind.lower()}"))
    taker = Taker(span.attributes, made)
    made.told.add(_KIND)
    made.session_id = taker.take("session.id")
    if made.kind == "llm_call":
        _call(taker, made)
    else:
        _operation(span, taker, made)
    for event in span.events:
        if event.name == "exception":
            made.y["error"] = {
                "type": str(event.attributes.get("exception.type", "exception")),
                "message": str(event.attributes.get("exception.message", "")),
            }
    return made


def _call(taker: Taker, made: Step) -> None:
    shown = unflatten(taker.under("llm.input_messages."))
    said = unflatten(taker.under("llm.output_messages."))
    given, output = _value(taker, "input"), _value(taker, "output")
    if not shown and given is not None:
        shown = given.get("messages", []) if isinstance(given, dict) else [{"role": "user", "content": str(given)}]
    if not said and output is not None:
        said = [{"role": "assistant", "content": output if isinstance(output, str) else orjson.dumps(output).decode()}]
    made.o["messages"] = [_message(message) for message in shown]
    made.a["messages"] = [_message(message) for message in said]
    params = structured(taker.take("llm.invocation_parameters"))
    if isinstance(params, dict):
        params.pop("model", None)
        if params:
            made.a["params"] = params
    names = {
        "name": taker.take("llm.model_name", "llm.request.model_name"),
        "response_name": taker.take("llm.response.model_name"),
        "provider": taker.take("llm.provider", "llm.system"),
    }
    model = {key: str(value) for key, value in names.items() if value is not None}
    if model:
        made.context["model"] = model
    usage = {name: int(v) for name, key in _USAGE.items() if (v := taker.take(key)) is not None}
    taker.take("llm.token_count.total")
    if usage:
        made.m["usage"] = usage
    cost = taker.take("llm.cost.total")
    if cost is not None:
        made.m["cost_usd"] = float(cost)
    finish = taker.take("llm.finish_reason")
    if finish is not None:
        made.y["finish_reason"] = str(finish)
    tools = unflatten(taker.under("llm.tools."))
    made.tools = [structured(item["tool"].get("json_schema", item["tool"])) for item in tools if "tool" in item]


def _operation(span: Span, taker: Taker, made: Step) -> None:
    given, output = _value(taker, "input"), _value(taker, "output")
    documents = unflatten(taker.under("retrieval.documents."))
    made.a["name"] = str(taker.take("tool.name", "agent.name", "graph.node.id") or span.name or made.kind)
    arguments = structured(taker.take("tool.parameters"))
    call_id = taker.take("tool_call.id", "tool.id")
    if call_id is not None:
        made.a["call_id"] = str(call_id)
    if given is not None or arguments is not None:
        made.a["arguments"] = arguments if given is None else given
    if documents:
        made.y["result"] = [item.get("document", item) for item in documents]
    elif output is not None:
        made.y["result"] = output


def _value(taker: Taker, side: str) -> Any:
    value, mime = taker.take(f"{side}.value"), taker.take(f"{side}.mime_type")
    return structured(value) if mime == _JSON else value


def _message(raw: dict[str, Any]) -> dict[str, Any]:
    """A message of `message.*` keys, by way of OpenAI's form."""
    found = raw.get("message", raw)
    message: dict[str, Any] = {"role": found.get("role", "assistant")}
    contents = found.get("contents")
    if isinstance(contents, list):
        message["content"] = [_content(item.get("message_content", item)) for item in contents]
    elif "content" in found:
        message["content"] = found["content"]
    calls = [item.get("tool_call", item) for item in found.get("tool_calls") or ()]
    if calls:
        message["tool_calls"] = [{"id": call.get("id"), "function": call.get("function", {})} for call in calls]
    for key in ("tool_call_id", "name"):
        if found.get(key) is not None:
            message[key] = found[key]
    made = messages.from_openai(message, found.get("finish_reason"))
    if isinstance(contents, list):
        made.get("ext", {}).pop("content", None)
    return made


def _content(item: dict[str, Any]) -> dict[str, Any]:
    if item.get("type") == "text":
        return {"type": "text", "text": item.get("text", "")}
    return item


# -- writing


def attributes(
    event: Record, prompt: list[dict[str, Any]], context: dict[str, Any], tools: list[Any]
) -> dict[str, Any]:
    """The attributes of an event's span."""
    action, outcome, metadata = event.get("a", {}), event["y"], event.get("m", {})
    kind = event["kind"]
    found: dict[str, Any] = {_KIND: SPAN_KINDS.get(kind, kind[2:].upper() if kind.startswith("x.") else "TOOL")}
    if kind == "llm_call":
        model = context.get("model", {})
        for key, name in (
            ("llm.model_name", "name"), ("llm.response.model_name", "response_name"), ("llm.provider", "provider")
        ):  # fmt: skip
            if name in model:
                found[key] = model[name]
        found |= flatten("llm.input_messages", [{"message": _flat(m)} for m in prompt])
        found |= flatten("llm.output_messages", [{"message": _flat(m)} for m in action.get("messages", [])])
        if action.get("params"):
            found["llm.invocation_parameters"] = orjson.dumps(action["params"]).decode()
        for name, key in _USAGE.items():
            if name in metadata.get("usage", {}):
                found[key] = metadata["usage"][name]
        if "cost_usd" in metadata:
            found["llm.cost.total"] = metadata["cost_usd"]
        if "finish_reason" in outcome:
            found["llm.finish_reason"] = outcome["finish_reason"]
        for index, tool in enumerate(tools):
            found[f"llm.tools.{index}.tool.json_schema"] = orjson.dumps(tool).decode()
        return found
    if "name" in action:
        found["agent.name" if kind == "handoff" else "tool.name"] = action["name"]
    if action.get("call_id") is not None:
        found["tool_call.id"] = action["call_id"]
    for side, holder, key in (("input", action, "arguments"), ("output", outcome, "result")):
        if key in holder:
            value = holder[key]
            found[f"{side}.value"] = value if isinstance(value, str) else orjson.dumps(value).decode()
            found[f"{side}.mime_type"] = "text/plain" if isinstance(value, str) else _JSON
    return found


def _flat(message: dict[str, Any]) -> dict[str, Any]:
    raw = openai(message)
    made: dict[str, Any] = {"role": raw["role"]}
    for key in ("tool_call_id", "name"):
        if raw.get(key) is not None:
            made[key] = raw[key]
    content = raw.get("content")
    if isinstance(content, list):
        made["contents"] = [{"message_content": item} for item in content]
    elif content is not None:
        made["content"] = content if isinstance(content, str) else orjson.dumps(content).decode()
    if raw.get("tool_calls"):
        made["tool_calls"] = [
            {"tool_call": {"id": call.get("id") or "", "function": call["function"]}} for call in raw["tool_calls"]
        ]
    if message.get("finish_reason"):
        made["finish_reason"] = message["finish_reason"]
    return made
