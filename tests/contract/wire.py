"""An answer in each dialect, whole and streamed, in the shapes of the recorded ones (`test_model`)."""

from __future__ import annotations

import json
from typing import Any

from tests.contract.thinking import Reply

CREATED = 1_795_992_791
_PIECE = 11
"""Characters a streamed piece of text has."""
_SIGNATURE = "ZmFrZS1zaWduYXR1cmU="
_ENCRYPTED = "ZmFrZS1lbmNyeXB0ZWQtcmVhc29uaW5n"


def pieces(text: str) -> list[str]:
    return [text[start : start + _PIECE] for start in range(0, len(text), _PIECE)]


def _sse(data: dict[str, Any], named: bool = True) -> bytes:
    head = f"event: {data['type']}\n" if named else ""
    return f"{head}data: {json.dumps(data)}\n\n".encode()


def arguments_of(call: tuple[str, dict[str, Any]]) -> str:
    return json.dumps(call[1])


# -- chat completions


def chat_usage(asked: int, said: int, thought: int) -> dict[str, Any]:
    wrote = {"reasoning_tokens": thought, "audio_tokens": 0, "accepted_prediction_tokens": 0}
    return {
        "prompt_tokens": asked,
        "completion_tokens": said,
        "total_tokens": asked + said,
        "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
        "completion_tokens_details": {**wrote, "rejected_prediction_tokens": 0},
    }


def chat(reply: Reply, id: str, model: str, usage: dict[str, Any]) -> dict[str, Any]:
    message: dict[str, Any] = {
        "role": "assistant", "content": reply.text or None, "refusal": None, "annotations": [],
    }  # fmt: skip
    if reply.thinking:
        message["reasoning_content"] = reply.thinking
    if reply.calls:
        message["tool_calls"] = [
            {"id": f"call_{id}_{n}", "type": "function", "function": {"name": c[0], "arguments": arguments_of(c)}}
            for n, c in enumerate(reply.calls)
        ]
    reason = "tool_calls" if reply.calls else "stop"
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": reason}
    head = {"id": f"chatcmpl-{id}", "object": "chat.completion", "created": CREATED, "model": model}
    return {
        **head, "choices": [choice], "usage": usage, "service_tier": "default", "system_fingerprint": "fp_fake",
    }  # fmt: skip


def chat_stream(reply: Reply, id: str, model: str, usage: dict[str, Any] | None) -> list[bytes]:
    head = {"id": f"chatcmpl-{id}", "object": "chat.completion.chunk", "created": CREATED, "model": model}
    head |= {"system_fingerprint": "fp_fake", "service_tier": "default"}
    events: list[bytes] = []

    def send(delta: dict[str, Any], finish: str | None = None) -> None:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        events.append(_sse({**head, "choices": [choice]}, named=False))

    send({"role": "assistant", "content": None, "refusal": None})
    for piece in pieces(reply.thinking):
        send({"reasoning_content": piece})
    for piece in pieces(reply.text):
        send({"content": piece})
    for n, call in enumerate(reply.calls):
        function = {"name": call[0], "arguments": ""}
        send({"tool_calls": [{"index": n, "id": f"call_{id}_{n}", "type": "function", "function": function}]})
        for piece in pieces(arguments_of(call)):
            send({"tool_calls": [{"index": n, "function": {"arguments": piece}}]})
    send({}, "tool_calls" if reply.calls else "stop")
    if usage is not None:
        events.append(_sse({**head, "choices": [], "usage": usage}, named=False))
    return [*events, b"data: [DONE]\n\n"]


# -- responses


def responses_usage(asked: int, said: int, thought: int) -> dict[str, Any]:
    return {
        "input_tokens": asked,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": said,
        "output_tokens_details": {"reasoning_tokens": thought},
        "total_tokens": asked + said,
    }


def responses(reply: Reply, id: str, body: dict[str, Any], usage: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": f"resp_{id}",
        "object": "response",
        "created_at": CREATED,
        "status": "completed",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": body.get("instructions"),
        "max_output_tokens": body.get("max_output_tokens"),
        "model": body["model"],
        "output": _items(reply, id),
        "parallel_tool_calls": body.get("parallel_tool_calls", True),
        "previous_response_id": body.get("previous_response_id"),
        "reasoning": body.get("reasoning") or {"effort": None, "summary": None},
        "service_tier": "default",
        "store": body.get("store", True),
        "temperature": 1.0,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": body.get("tools") or [],
        "top_p": 1.0,
        "truncation": "disabled",
        "usage": usage,
        "user": None,
        "metadata": {},
    }


def _items(reply: Reply, id: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    if reply.thinking:
        summary = [{"type": "summary_text", "text": reply.thinking}]
        items.append({"id": f"rs_{id}", "type": "reasoning", "summary": summary, "encrypted_content": _ENCRYPTED})
    if reply.text:
        content = [{"type": "output_text", "text": reply.text, "annotations": [], "logprobs": []}]
        head = {"id": f"msg_{id}", "type": "message", "status": "completed", "role": "assistant"}
        items.append({**head, "content": content})
    for n, call in enumerate(reply.calls):
        head = {"id": f"fc_{id}_{n}", "type": "function_call", "status": "completed", "call_id": f"call_{id}_{n}"}
        items.append({**head, "name": call[0], "arguments": arguments_of(call)})
    return items


def responses_stream(whole: dict[str, Any]) -> list[bytes]:
    events: list[bytes] = []

    def send(kind: str, **data: Any) -> None:
        events.append(_sse({"type": f"response.{kind}", "sequence_number": len(events), **data}))

    begun = {**whole, "status": "in_progress", "output": [], "usage": None}
    send("created", response=begun)
    send("in_progress", response=begun)
    for index, item in enumerate(whole["output"]):
        place = {"item_id": item["id"], "output_index": index}
        match item["type"]:
            case "reasoning":
                send("output_item.added", output_index=index, item={**item, "summary": []})
                (part,) = item["summary"]
                at = {**place, "summary_index": 0}
                send("reasoning_summary_part.added", **at, part={**part, "text": ""})
                for piece in pieces(part["text"]):
                    send("reasoning_summary_text.delta", **at, delta=piece)
                send("reasoning_summary_text.done", **at, text=part["text"])
                send("reasoning_summary_part.done", **at, part=part)
            case "message":
                send("output_item.added", output_index=index, item={**item, "status": "in_progress", "content": []})
                (part,) = item["content"]
                at = {**place, "content_index": 0}
                send("content_part.added", **at, part={**part, "text": ""})
                for piece in pieces(part["text"]):
                    send("output_text.delta", **at, delta=piece, logprobs=[])
                send("output_text.done", **at, text=part["text"], logprobs=[])
                send("content_part.done", **at, part=part)
            case _:
                begun = {**item, "status": "in_progress", "arguments": ""}
                send("output_item.added", output_index=index, item=begun)
                for piece in pieces(item["arguments"]):
                    send("function_call_arguments.delta", **place, delta=piece)
                send("function_call_arguments.done", **place, arguments=item["arguments"], name=item["name"])
        send("output_item.done", output_index=index, item=item)
    send("completed", response=whole)
    return events


# -- messages


def messages_usage(asked: int, said: int) -> dict[str, Any]:
    cache = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
    return {"input_tokens": asked, **cache, "output_tokens": said, "service_tier": "standard"}


def messages(reply: Reply, id: str, model: str, usage: dict[str, Any]) -> dict[str, Any]:
    content: list[dict[str, Any]] = []
    if reply.thinking:
        content.append({"type": "thinking", "thinking": reply.thinking, "signature": _SIGNATURE})
    if reply.text:
        content.append({"type": "text", "text": reply.text})
    content += [
        {"type": "tool_use", "id": f"toolu_{id}_{n}", "name": name, "input": arguments}
        for n, (name, arguments) in enumerate(reply.calls)
    ]
    stop = {"stop_reason": "tool_use" if reply.calls else "end_turn", "stop_sequence": None}
    head = {"id": f"msg_{id}", "type": "message", "role": "assistant", "model": model}
    return {**head, "content": content, **stop, "usage": usage}


def messages_stream(whole: dict[str, Any]) -> list[bytes]:
    begun = {**whole, "content": [], "stop_reason": None, "usage": {**whole["usage"], "output_tokens": 1}}
    events = [_sse({"type": "message_start", "message": begun})]
    for index, block in enumerate(whole["content"]):
        empty, deltas = _deltas(block)
        events.append(_sse({"type": "content_block_start", "index": index, "content_block": empty}))
        if index == 0:
            events.append(_sse({"type": "ping"}))
        events += [_sse({"type": "content_block_delta", "index": index, "delta": delta}) for delta in deltas]
        events.append(_sse({"type": "content_block_stop", "index": index}))
    stop = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    usage = {"output_tokens": whole["usage"]["output_tokens"]}
    events.append(_sse({"type": "message_delta", "delta": stop, "usage": usage}))
    return [*events, _sse({"type": "message_stop"})]


def _deltas(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    match block["type"]:
        case "thinking":
            deltas = [{"type": "thinking_delta", "thinking": piece} for piece in pieces(block["thinking"])]
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
            return {"type": "thinking", "thinking": "", "signature": ""}, deltas
        case "text":
            return {"type": "text", "text": ""}, [{"type": "text_delta", "text": p} for p in pieces(block["text"])]
    given = [{"type": "input_json_delta", "partial_json": p} for p in ["", *pieces(json.dumps(block["input"]))]]
    return {**block, "input": {}}, given


# -- errors


_MESSAGES_ERRORS = {400: "invalid_request_error", 404: "not_found_error", 429: "rate_limit_error"}


def error(path: str, status: int, id: str) -> dict[str, Any]:
    """A refusal as the dialect's servers word it."""
    message = f"fake upstream: scripted {status}"
    if path.startswith("/messages"):
        kind = _MESSAGES_ERRORS.get(status, "api_error")
        return {"type": "error", "error": {"type": kind, "message": message}, "request_id": f"req_{id}"}
    code = "rate_limit_exceeded" if status == 429 else None
    kind = "requests" if status == 429 else "invalid_request_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}
