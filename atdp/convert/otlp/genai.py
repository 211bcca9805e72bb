"""OpenTelemetry's semantic conventions for generative AI (`gen_ai.*`), newest names first, older ones understood.

Messages are the same here as in ATDP: role, parts. Legacy forms read: `gen_ai.prompt.N.*`, `gen_ai.completion.N.*`,
and the per-message events (`gen_ai.user.message`, `gen_ai.choice`).
"""

from __future__ import annotations

from typing import Any

import orjson

from atdp import messages
from atdp.convert.base import Record
from atdp.convert.otlp.flat import unflatten
from atdp.convert.otlp.spans import Span, structured
from atdp.convert.otlp.step import Step, Taker
from atdp.convert.view import instruction_parts

KINDS = {
    "chat": "llm_call", "text_completion": "llm_call", "generate_content": "llm_call", "execute_tool": "tool_call",
    "retrieval": "retrieval", "search_memory": "memory_read", "create_memory": "memory_write",
    "update_memory": "memory_write", "upsert_memory": "memory_write", "delete_memory": "memory_write",
    "invoke_agent": "handoff", "apply_guardrail": "guardrail",
}  # fmt: skip
"""`gen_ai.operation.name` → kind; any other operation is `x.<name>`."""
OPERATIONS = {
    "llm_call": "chat", "retrieval": "retrieval", "memory_read": "search_memory", "memory_write": "update_memory",
    "handoff": "invoke_agent", "guardrail": "apply_guardrail",
}  # fmt: skip
"""Kind → `gen_ai.operation.name`; every other operation is the execution of a tool."""
_USAGE = {
    "input_tokens": ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens"),
    "output_tokens": ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens"),
    "cache_read_input_tokens": ("gen_ai.usage.cache_read.input_tokens", "gen_ai.usage.cache_read_input_tokens"),
    "cache_creation_input_tokens": (
        "gen_ai.usage.cache_creation.input_tokens",
        "gen_ai.usage.cache_creation_input_tokens",
    ),
    "reasoning_output_tokens": ("gen_ai.usage.reasoning.output_tokens",),
}
_MODEL = {
    "gen_ai.request.model": "name",
    "gen_ai.response.model": "response_name",
    "gen_ai.provider.name": "provider",
}
EVALUATION = "gen_ai.evaluation.result"
_PART_FIELDS = {"type", "content", "id", "name", "arguments", "response", "result"}


def recognises(span: Span) -> bool:
    return "gen_ai.operation.name" in span.attributes


def step(span: Span) -> Step:
    """The event a GenAI span is."""
    operation = str(span.attributes["gen_ai.operation.name"])
    made = Step(KINDS.get(operation, f"x.{operation}"))
    taker = Taker(span.attributes, made)
    if KINDS.get(operation) is not None:
        made.told.add("gen_ai.operation.name")
    made.session_id = taker.take("gen_ai.conversation.id", "session.id")
    _context(taker, made)
    usage = {name: int(v) for name, keys in _USAGE.items() if (v := taker.take(*keys)) is not None}
    if usage:
        made.m["usage"] = usage
    if made.kind == "llm_call":
        _call(span, taker, made)
    else:
        _operation(operation, taker, made)
    error = taker.take("error.type")
    if error is not None:
        made.y["error"] = {"type": str(error)}
    for event in span.events:
        if event.name == EVALUATION:
            made.evaluations.append(_evaluation(event.attributes))
    return made


def _context(taker: Taker, made: Step) -> None:
    names = {
        "name": taker.take("gen_ai.request.model"),
        "response_name": taker.take("gen_ai.response.model"),
        "provider": taker.take("gen_ai.provider.name", "gen_ai.system"),
    }
    model = {key: str(value) for key, value in names.items() if value is not None}
    if model:
        made.context["model"] = model
    made.tools = structured(taker.take("gen_ai.tool.definitions")) or []


def _call(span: Span, taker: Taker, made: Step) -> None:
    shown = structured(taker.take("gen_ai.input.messages"))
    said = structured(taker.take("gen_ai.output.messages"))
    system = structured(taker.take("gen_ai.system_instructions"))
    if shown is None:
        shown = _flat(taker.under("gen_ai.prompt.")) or _from_events(span, made)[0]
    if said is None:
        said = _flat(taker.under("gen_ai.completion.")) or _from_events(span, made)[1]
    if system:
        texts = [part["content"] for part in system if part.get("type") == "text"]
        made.o["system_instructions"] = texts[0] if len(texts) == len(system) == 1 else system
    made.o["messages"] = [_message(message) for message in shown or ()]
    made.a["messages"] = [_message(message) for message in said or ()]
    params = taker.under("gen_ai.request.")
    params.pop("model", None)
    if params:
        made.a["params"] = params
    finish = taker.take("gen_ai.response.finish_reasons")
    if not finish:
        finish = next((message["finish_reason"] for message in made.a["messages"] if "finish_reason" in message), None)
    if finish:
        made.y["finish_reason"] = str(finish[0] if isinstance(finish, list) else finish)
    first = taker.take("gen_ai.response.time_to_first_chunk")
    if first is not None:
        made.m["ttft_ms"] = float(first) * 1000


def _operation(operation: str, taker: Taker, made: Step) -> None:
    query = taker.take("gen_ai.retrieval.query.text")
    documents = structured(taker.take("gen_ai.retrieval.documents"))
    arguments = structured(taker.take("gen_ai.tool.call.arguments"))
    result = structured(taker.take("gen_ai.tool.call.result"))
    name = taker.take("gen_ai.tool.name") or taker.take("gen_ai.data_source.id")
    if made.kind == "handoff":
        name = taker.take("gen_ai.agent.name") or name
        arguments = structured(taker.take("gen_ai.input.messages")) if arguments is None else arguments
        result = structured(taker.take("gen_ai.output.messages")) if result is None else result
    call_id = taker.take("gen_ai.tool.call.id")
    made.a["name"] = str(name or operation)
    if call_id is not None:
        made.a["call_id"] = str(call_id)
    if arguments is not None:
        made.a["arguments"] = arguments
    elif query is not None:
        made.a["arguments"] = {"query": query}
    if result is not None or documents is not None:
        made.y["result"] = documents if result is None else result


def _evaluation(found: dict[str, Any]) -> dict[str, Any]:
    fields = {
        "name": str(found.get("gen_ai.evaluation.name", "evaluation")),
        "value": found.get("gen_ai.evaluation.score.value"),
        "label": found.get("gen_ai.evaluation.score.label"),
        "explanation": found.get("gen_ai.evaluation.explanation"),
    }
    return {key: value for key, value in fields.items() if value is not None}


def _message(message: dict[str, Any]) -> dict[str, Any]:
    """OTel's message in ATDP's fields; what a part has beyond them is its content."""
    if "parts" not in message:  # a chat message of an older instrumentation
        return messages.from_openai(message, message.get("finish_reason"))
    made: dict[str, Any] = {"role": str(message.get("role", "assistant")), "parts": []}
    for part in message["parts"]:
        kind = str(part.get("type", "text"))
        if part.keys() - _PART_FIELDS:
            made["parts"].append({"type": kind, "content": {k: v for k, v in part.items() if k != "type"}})
            continue
        fields = {key: value for key, value in part.items() if key not in ("type", "result")}
        if "result" in part and "response" not in part:
            fields["response"] = part["result"]
        if kind == "tool_call":
            fields["arguments"] = structured(fields.get("arguments"))
        made["parts"].append({"type": kind, **fields})
    for key in ("name", "finish_reason"):
        if message.get(key) is not None:
            made[key] = message[key]
    return made


def _flat(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Messages of `gen_ai.prompt.0.role`, `gen_ai.prompt.0.tool_calls.0.name`, …"""
    result = []
    for raw in unflatten(found):
        calls = raw.pop("tool_calls", None)
        if calls:
            raw["tool_calls"] = [
                {"id": call.get("id"), "function": {"name": call.get("name"), "arguments": call.get("arguments")}}
                for call in calls
            ]
        raw.setdefault("role", "assistant")
        result.append(raw)
    return result


def _from_events(span: Span, made: Step) -> tuple[list[Any], list[Any]]:
    shown: list[Any] = []
    said: list[Any] = []
    for event in span.events:
        if event.name == "gen_ai.choice":
            message = structured(event.attributes.get("message")) or event.attributes
            said.append({"role": "assistant", **(message if isinstance(message, dict) else {"content": message})})
        elif event.name.startswith("gen_ai.") and event.name.endswith(".message"):
            role = event.name.split(".")[1]
            raw = {**event.attributes, "role": role}
            raw["tool_calls"] = structured(raw.get("tool_calls"))
            if role == "tool":
                raw["tool_call_id"] = raw.pop("id", None)
            shown.append({key: value for key, value in raw.items() if value is not None})
    return shown, said


# -- writing


def attributes(
    event: Record, prompt: list[dict[str, Any]], context: dict[str, Any], tools: list[Any]
) -> dict[str, Any]:
    """The attributes of an event's span."""
    action, outcome, metadata = event.get("a", {}), event["y"], event.get("m", {})
    kind = event["kind"]
    found: dict[str, Any] = {
        "gen_ai.operation.name": OPERATIONS.get(kind, kind[2:] if kind.startswith("x.") else "execute_tool")
    }
    model = context.get("model", {})
    for key, name in _MODEL.items():
        if name in model:
            found[key] = model[name]
    for name, keys in _USAGE.items():
        if name in metadata.get("usage", {}):
            found[keys[0]] = metadata["usage"][name]
    if kind == "llm_call":
        system = event.get("o", {}).get("system_instructions")
        if system is not None:
            found["gen_ai.system_instructions"] = _text(instruction_parts(system))
            prompt = prompt[1:] if prompt and prompt[0].get("ext", {}).get("system_instructions") else prompt
        found["gen_ai.input.messages"] = _text([_otel(message) for message in prompt])
        found["gen_ai.output.messages"] = _text([_otel(message) for message in action.get("messages", [])])
        found |= {f"gen_ai.request.{key}": value for key, value in action.get("params", {}).items()}
        if "finish_reason" in outcome:
            found["gen_ai.response.finish_reasons"] = [outcome["finish_reason"]]
        if "ttft_ms" in metadata:
            found["gen_ai.response.time_to_first_chunk"] = metadata["ttft_ms"] / 1000
        if tools:
            found["gen_ai.tool.definitions"] = _text(tools)
    else:
        found |= _operation_attributes(kind, action, outcome)
    if "error" in outcome:
        found["error.type"] = outcome["error"]["type"]
    return found


def _operation_attributes(kind: str, action: dict[str, Any], outcome: dict[str, Any]) -> dict[str, Any]:
    name_key = "gen_ai.agent.name" if kind == "handoff" else "gen_ai.tool.name"
    found: dict[str, Any] = {name_key: action["name"]} if "name" in action else {}
    if action.get("call_id") is not None:
        found["gen_ai.tool.call.id"] = action["call_id"]
    if "arguments" in action:
        found["gen_ai.tool.call.arguments"] = _text(action["arguments"])
    if "result" in outcome:
        found["gen_ai.tool.call.result"] = _text(outcome["result"])
    return found


def _otel(message: dict[str, Any]) -> dict[str, Any]:
    parts = []
    for part in message["parts"]:
        known = {key: part[key] for key in ("type", "content", "id", "name", "arguments", "response") if key in part}
        if part["type"] not in ("text", "reasoning") and isinstance(part.get("content"), dict):
            known = {"type": part["type"], **part["content"]}
        parts.append(known)
    rest = {key: message[key] for key in ("name", "finish_reason") if message.get(key) is not None}
    return {"role": message["role"], "parts": parts, **rest}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()
