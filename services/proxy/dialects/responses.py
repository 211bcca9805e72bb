"""OpenAI's Responses: items in, items out.

What one answer generated (reasoning, text, calls) is one assistant message of several parts, so that
a conversation reads alike in every dialect. Items that ATDP has no word for are kept as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import orjson
from msgspec import UNSET

from atdp import messages
from services.proxy.completion import Choice, Completion
from services.proxy.dialects.base import (
    Assembler,
    Message,
    Path,
    Place,
    Problem,
    Texts,
    ToolPlace,
    WrongRequest,
    dicts,
    field_end,
    flat_tools,
    text_paths,
)
from services.proxy.dialects.naming import id_of, named, state_in
from services.proxy.dialects.openai import OpenAIDialect
from services.proxy.sse import ServerSentEvent

_TERMINAL = frozenset({"response.completed", "response.incomplete", "response.failed"})
_TEXT_ITEMS = frozenset({"input_text", "output_text", "text"})
_EMPTY: tuple[Any, ...] = (None, [], {})
_CLIENTS_TOOLS = frozenset({"function", "custom"})
_WITH_STATE = frozenset({"message", "code_interpreter_call", "file_search_call", "shell_call"})
"""Items of an answer in which the provider tells of files and containers."""


class Responses(OpenAIDialect):
    name = "openai.responses"
    path = "/responses"
    not_params = frozenset({"input", "instructions", "tools", "model", "stream", "stream_options"})
    content_field = "input"

    def check(self, request: dict[str, Any]) -> None:
        if not isinstance(request.get("input", []), str | list):
            raise WrongRequest("'input' must be a text or an array of items.", "input")

    def conversation(self, request: dict[str, Any]) -> list[Message]:
        given = request.get("input")
        if isinstance(given, str):
            return [{"role": "user", "parts": [{"type": "text", "content": given}]}]
        return from_items(dicts(given))

    def instructions(self, request: dict[str, Any]) -> Any:
        return request.get("instructions")

    def answer(self, choice: Choice) -> Message:
        found = from_items(dicts(choice.message.get("output")))
        message: Message = found[0] if found else {"role": "assistant", "parts": []}
        if choice.finish_reason is not None:
            message["finish_reason"] = choice.finish_reason
        return message

    def whole(self, body: dict[str, Any]) -> Completion | None:
        if not isinstance(body.get("output"), list):
            return None
        completion = Completion(done=True)
        _read(completion, body)
        return completion

    def assembler(self) -> ResponsesAssembler:
        return ResponsesAssembler()

    def system_end(self, request: dict[str, Any]) -> Place:
        return field_end(request, "instructions")

    def system_texts(self, request: dict[str, Any]) -> Iterator[Path]:
        yield from text_paths(request.get("instructions"), ("instructions",))
        yield from super().system_texts(request)

    def tools(self, request: dict[str, Any]) -> dict[str, ToolPlace]:
        return flat_tools(request, "parameters")

    def error_frame(self, problem: Problem) -> bytes:
        """`response.failed`, the event after which clients of this dialect raise."""
        failed = {
            "type": "response.failed",
            "response": {
                "object": "response",
                "status": "failed",
                "output": [],
                "error": {"code": problem.code or "server_error", "message": problem.message},
            },
        }
        return b"event: response.failed\ndata: " + orjson.dumps(failed) + b"\n\n"

    def keeps(self, request: Mapping[str, Any]) -> bool:
        return request.get("store") is not False

    def continues(self, request: Mapping[str, Any]) -> str | None:
        id = request.get("previous_response_id")
        return id if isinstance(id, str) and id else None

    def names(self, request: Mapping[str, Any]) -> list[str]:
        prompt = request.get("prompt")
        variables = prompt.get("variables") if isinstance(prompt, dict) else None
        own_tools = [tool for tool in dicts(request.get("tools")) if tool.get("type") not in _CLIENTS_TOOLS]
        return [
            *id_of(request.get("conversation")),
            *id_of(prompt),
            *state_in(variables),
            *state_in(own_tools),
            *(id for item in dicts(request.get("input")) for id in _named_by(item)),
        ]

    def kept(self, request: Mapping[str, Any], completion: Completion) -> list[str]:
        output = dicts(completion.choice(0).message.get("output"))
        items = [id for item in output for id in id_of(item)] if self.keeps(request) else []
        return [*super().kept(request, completion), *items]


class ResponsesAssembler(Assembler):
    """Adds up a stream of response events.

    The last event repeats the whole response; what came before it counts only when that never arrives.
    """

    def __init__(self) -> None:
        super().__init__()
        self._items: dict[int, dict[str, Any]] = {}

    def ends(self, event: ServerSentEvent, chunk: dict[str, Any] | None) -> bool:
        return chunk is not None and named(chunk.get("type")) in _TERMINAL

    def shows(self, chunk: dict[str, Any]) -> bool:
        kind = chunk.get("type")
        return isinstance(kind, str) and kind.startswith("response.output")

    def add(self, chunk: dict[str, Any]) -> None:
        kind, response = named(chunk.get("type")), chunk.get("response")
        if kind in _TERMINAL and isinstance(response, dict):
            self._items.clear()
            self._texts = Texts()
            _read(self._completion, response)
        elif kind == "error":
            error = chunk.get("error")
            self._completion.error = error if isinstance(error, dict) else chunk
        elif isinstance(response, dict):
            self._completion.id = named(response.get("id")) or self._completion.id
            self._completion.model = named(response.get("model")) or self._completion.model
        elif isinstance(chunk.get("output_index"), int):
            self._add(chunk["output_index"], str(kind), chunk)

    def _add(self, index: int, kind: str, chunk: dict[str, Any]) -> None:
        item = self._items.setdefault(index, {})
        if kind in ("response.output_item.added", "response.output_item.done") and isinstance(chunk.get("item"), dict):
            self._texts.replaced(item)
            item.clear()
            item.update(chunk["item"])
        elif isinstance(chunk.get("delta"), str):
            _add_delta(self._texts, item, kind, chunk)
        self._completion.choice(0).message = {"output": [self._items[i] for i in sorted(self._items)]}


def _add_delta(texts: Texts, item: dict[str, Any], kind: str, chunk: dict[str, Any]) -> None:
    delta = chunk["delta"]
    match kind:
        case "response.function_call_arguments.delta":
            texts.add(item, "arguments", delta)
        case "response.custom_tool_call_input.delta":
            texts.add(item, "input", delta)
        case "response.output_text.delta" | "response.refusal.delta":
            name = "text" if "output_text" in kind else "refusal"
            part = _part(item, "content", chunk.get("content_index"), {"type": f"output_{name}"[:11], name: ""})
            texts.add(part, name, delta)
        case "response.reasoning_summary_text.delta":
            part = _part(item, "summary", chunk.get("summary_index"), {"type": "summary_text", "text": ""})
            texts.add(part, "text", delta)
        case "response.reasoning_text.delta":
            part = _part(item, "content", chunk.get("content_index"), {"type": "reasoning_text", "text": ""})
            texts.add(part, "text", delta)


def _part(item: dict[str, Any], field: str, index: Any, empty: dict[str, Any]) -> dict[str, Any]:
    """The part that a delta is for; items arrive with lists that are filled as the parts come."""
    found = item.get(field)
    given = found if isinstance(found, list) else []
    at = index if isinstance(index, int) and 0 <= index <= len(given) else max(len(given) - 1, 0)
    while len(given) <= at:
        given.append(dict(empty))
    if not isinstance(given[at], dict):
        given[at] = dict(empty)
    item[field] = given
    part: dict[str, Any] = given[at]
    return part


def _read(completion: Completion, response: dict[str, Any]) -> None:
    completion.id = named(response.get("id")) or completion.id
    completion.model = named(response.get("model")) or completion.model
    if isinstance(response.get("usage"), dict):
        completion.usage = response["usage"]
    if isinstance(response.get("error"), dict):
        completion.error = response["error"]
    elif response.get("status") in ("failed", "cancelled"):
        completion.error = {"type": response["status"], "message": f"the response is {response['status']}"}
    choice = completion.choice(0)
    if response.get("output") or "output" not in choice.message:
        choice.message = {"output": dicts(response.get("output"))}
    output = dicts(choice.message["output"])
    choice.finish_reason = _finish_reason(response, output)
    told = [item for item in output if named(item.get("type")) in _WITH_STATE]
    completion.state = list(dict.fromkeys([*id_of(response.get("conversation") or {}), *state_in(told)]))


def _finish_reason(response: dict[str, Any], output: list[dict[str, Any]]) -> str | None:
    """Why it ended, in the words of the other dialects; None while it has not."""
    match response.get("status"):
        case "completed":
            calls = any(str(item.get("type")).endswith("_call") for item in output)
            return "tool_calls" if calls else "stop"
        case "incomplete":
            details = response.get("incomplete_details")
            reason = details.get("reason") if isinstance(details, dict) else None
            return "length" if reason in (None, "max_output_tokens") else str(reason)
    return None


def _named_by(item: dict[str, Any]) -> list[str]:
    """What an item of a request leaves for the provider to look up."""
    kind = item.get("type")
    carried = {name for name, value in item.items() if value not in _EMPTY} - {"id", "type", "status"}
    if kind == "reasoning":  # a summary is not what the model thought: the provider looks that up
        carried &= {"content", "encrypted_content"}
    looked_up = id_of(item) if kind == "item_reference" or not carried else []
    container = item.get("container_id")
    parts = [*dicts(item.get("content")), *dicts(item.get("output")), *dicts([item.get("output")])]
    given = [part for part in parts if part.get("type") not in _TEXT_ITEMS]
    return [*looked_up, *([container] if isinstance(container, str) else []), *state_in(given)]


# -- items and messages


def from_items(items: list[dict[str, Any]]) -> list[Message]:
    """Items as messages: consecutive items of the assistant's are one message."""
    result: list[Message] = []
    for item in items:
        kind = str(item.get("type") or "message")
        if kind == "message" and item.get("role") != "assistant":
            result.append(_spoken(item))
        elif kind.endswith("_output") or kind == "mcp_approval_response":
            result.append(_output(kind, item))
        else:
            _generated(kind, item, result)
    return result


def to_items(said: list[Message]) -> list[dict[str, Any]]:
    """The items that messages came from."""
    return [item for message in said for item in _items(message)]


def _spoken(item: dict[str, Any]) -> Message:
    parts, form = _content(item.get("content"))
    message: Message = {"role": str(item.get("role") or "user"), "parts": parts}
    rest = {k: v for k, v in item.items() if k not in ("role", "content")}
    ext = {**form, **({"item": rest} if rest else {})}
    return {**message, "ext": ext} if ext else message


def _output(kind: str, item: dict[str, Any]) -> Message:
    call_id = item.get("call_id") or item.get("approval_request_id")
    response = {"type": "tool_call_response", "id": messages.name(call_id), "response": item.get("output")}
    message: Message = {"role": "tool", "parts": [response]}
    rest = {k: v for k, v in item.items() if k not in ("call_id", "output")}
    return message if rest == {"type": "function_call_output"} else {**message, "ext": {"item": rest}}


def _generated(kind: str, item: dict[str, Any], result: list[Message]) -> None:
    """Add an item of the assistant's to its message."""
    if not result or result[-1]["role"] != "assistant":
        result.append({"role": "assistant", "parts": [], "ext": {"items": []}})
    message = result[-1]
    rest: dict[str, Any]
    match kind:
        case "message":
            parts, form = _content(item.get("content"))
            rest = {**form, **{k: v for k, v in item.items() if k not in ("type", "role", "content")}}
        case "function_call":
            call = {"id": item.get("call_id"), "function": item}
            parts = [messages.call_part(call)]
            rest = {k: v for k, v in item.items() if k not in ("type", "call_id", "name", "arguments")}
        case "reasoning":
            parts = [{"type": "reasoning", "content": {k: v for k, v in item.items() if k not in ("type", "id")}}]
            rest = {"id": item["id"]} if "id" in item else {}
        case _:
            parts, rest = [{"type": messages.OPENAI_PART, "content": item}], {}
    message["parts"].extend(parts)
    message["ext"]["items"].append([kind, len(parts), rest])


def _content(content: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """A message's content as parts, and what they don't tell of its form."""
    if isinstance(content, str):
        return [{"type": "text", "content": content}], {"content": "string"}
    if not isinstance(content, list):
        return [], {"content": content}
    return [part for item in content for part in _content_parts(item)], {}


def _content_parts(item: Any) -> list[dict[str, Any]]:
    if isinstance(item, dict) and item.get("type") in _TEXT_ITEMS and isinstance(item.get("text"), str):
        said = {k: v for k, v in item.items() if k not in ("type", "text") and v not in _EMPTY}
        text = {"type": "text", "content": item["text"]}
        return [text] if not said else [text, {"type": messages.ABOUT_PART, "content": said}]
    return [{"type": messages.OPENAI_PART, "content": item}]


def _items(message: Message) -> list[dict[str, Any]]:
    ext = message.get("ext", {})
    match message["role"]:
        case "assistant":
            return _assistant_items(message, ext)
        case "tool":
            (part,) = message["parts"]
            rest = ext.get("item", {"type": "function_call_output"})
            return [{**rest, "call_id": part.get("id"), "output": part.get("response")}]
    return [
        {"role": message["role"], "content": _raw_content(message["parts"], ext, "input_text"), **ext.get("item", {})}
    ]


def _assistant_items(message: Message, ext: dict[str, Any]) -> list[dict[str, Any]]:
    items, left = [], list(message["parts"])
    for kind, size, rest in ext.get("items") or [["message", len(left), {}]]:
        parts, left = left[:size], left[size:]
        match kind:
            case "message":
                form = {"content": rest["content"]} if "content" in rest else {}
                others = {k: v for k, v in rest.items() if k != "content"}
                content = _raw_content(parts, form, "output_text")
                items.append({"type": "message", "role": "assistant", "content": content, **others})
            case "function_call":
                (part,) = parts
                call = {"call_id": part.get("id"), "name": part["name"], "arguments": messages.arguments_text(part)}
                items.append({"type": "function_call", **call, **rest})
            case "reasoning":
                items.append({"type": "reasoning", **parts[0]["content"], **rest})
            case _:
                items.append(parts[0]["content"])
    return items


def _raw_content(parts: list[dict[str, Any]], form: dict[str, Any], text_type: str) -> Any:
    if form.get("content", UNSET) == "string":
        return parts[0]["content"]
    if "content" in form:
        return form["content"]
    content: list[Any] = []
    for part in parts:
        match part["type"]:
            case "text":
                content.append({"type": text_type, "text": part["content"]})
            case messages.ABOUT_PART:
                content[-1] = {**content[-1], **part["content"]}
            case _:
                content.append(part["content"])
    return content
