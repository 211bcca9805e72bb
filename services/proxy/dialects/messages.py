"""Anthropic's Messages: content blocks, system instructions and tool results as they come.

A user message that carries tool results becomes one `tool` message a result and one for the rest, so
that a conversation reads alike in every dialect; `ext` says how to put them together again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from atdp import messages
from services.proxy.completion import Choice, Completion
from services.proxy.dialects.base import (
    Assembler,
    Dialect,
    Message,
    Path,
    Place,
    Problem,
    ToolPlace,
    WrongRequest,
    dicts,
    field_end,
    flat_tools,
    text_paths,
)
from services.proxy.dialects.naming import id_of, named, state_in
from services.proxy.sse import ServerSentEvent

BLOCK_PART = "x.anthropic"
"""Part type that carries a content block as it is (images, documents, server tools, redacted thinking)."""

_FINISH = {"end_turn": "stop", "stop_sequence": "stop", "tool_use": "tool_calls", "max_tokens": "length"}
"""Stop reasons in the words of the other dialects; unknown ones stay as they are."""

_FROM_FILES = frozenset({"image", "document", "container_upload"})
"""Blocks that may name a file at the provider."""

_ERROR_TYPES = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    413: "request_too_large", 429: "rate_limit_error", 504: "timeout_error", 529: "overloaded_error",
}  # fmt: skip


class AnthropicMessages(Dialect):
    name = "anthropic.messages"
    path = "/messages"
    not_params = frozenset({"messages", "system", "tools", "model", "stream"})
    content_field = "messages"

    def check(self, request: dict[str, Any]) -> None:
        if not isinstance(request.get("messages"), list):
            raise WrongRequest("messages: Input should be a valid list", "messages")

    def conversation(self, request: dict[str, Any]) -> list[Message]:
        return [m for raw in dicts(request.get("messages")) for m in from_anthropic(raw)]

    def instructions(self, request: dict[str, Any]) -> Any:
        return request.get("system")

    def answer(self, choice: Choice) -> Message:
        (message,) = from_anthropic({"role": "assistant", "content": choice.message.get("content") or []})
        if choice.finish_reason is not None:
            message["finish_reason"] = choice.finish_reason
        return message

    def whole(self, body: dict[str, Any]) -> Completion | None:
        if body.get("type") == "error":
            return None
        if not isinstance(body.get("content"), list):
            return None
        completion = Completion(done=True)
        _read_head(completion, body)
        choice = completion.choice(0)
        choice.message = {"role": "assistant", "content": body["content"]}
        _read_stop(choice, body)
        return completion

    def assembler(self) -> MessagesAssembler:
        return MessagesAssembler()

    def system_end(self, request: dict[str, Any]) -> Place:
        if isinstance(request.get("system"), list):
            return Place(("system",), "part")
        return field_end(request, "system")

    def system_texts(self, request: dict[str, Any]) -> Iterator[Path]:
        yield from text_paths(request.get("system"), ("system",))
        yield from super().system_texts(request)

    def tools(self, request: dict[str, Any]) -> dict[str, ToolPlace]:
        return flat_tools(request, "input_schema")

    def error_body(self, problem: Problem) -> dict[str, Any]:
        kind = _ERROR_TYPES.get(problem.status, "invalid_request_error" if problem.status < 500 else "api_error")
        error: dict[str, Any] = {"type": kind, "message": problem.message}
        if problem.code is not None and problem.code.startswith("thread_"):
            # by this the SDK knows that it may send the whole conversation instead
            error["details"] = {"error_code": problem.code}
        return {"type": "error", "error": error}

    def error_frame(self, problem: Problem) -> bytes:
        return b"event: error\ndata: " + orjson.dumps(self.error_body(problem)) + b"\n\n"

    def keeps(self, request: Mapping[str, Any]) -> bool:
        return isinstance(request.get("thread"), dict)

    def continues(self, request: Mapping[str, Any]) -> str | None:
        thread = request.get("thread")
        id = thread.get("previous_message_id") if isinstance(thread, dict) else None
        return id if isinstance(id, str) and id else None

    def names(self, request: Mapping[str, Any]) -> list[str]:
        container = request.get("container")
        skills = container.get("skills") if isinstance(container, dict) else None
        said = [block for message in dicts(request.get("messages")) for block in dicts(message.get("content"))]
        within = [block for result in said if _is_result(result) for block in dicts(result.get("content"))]
        given = [block for block in [*said, *within] if block.get("type") in _FROM_FILES]
        return [*id_of(container), *state_in(skills), *state_in(given)]

    def kept(self, request: Mapping[str, Any], completion: Completion) -> list[str]:
        blocks = dicts(completion.choice(0).message.get("content"))
        made = [block for block in blocks if str(block.get("type")).endswith("code_execution_tool_result")]
        return [*super().kept(request, completion), *state_in(made)]


class MessagesAssembler(Assembler):
    """Adds up the events of a streamed message."""

    def __init__(self) -> None:
        super().__init__()
        self._blocks: dict[int, dict[str, Any]] = {}
        self._inputs: dict[int, dict[str, Any]] = {}
        """Inputs that have not ended, as text."""

    @property
    def completion(self) -> Completion:
        completion = super().completion
        for index, given in self._inputs.items():
            # a truncated input stays the text it was
            self._blocks[index]["input"] = given["text"]
        return completion

    def ends(self, event: ServerSentEvent, chunk: dict[str, Any] | None) -> bool:
        return chunk is not None and chunk.get("type") == "message_stop"

    def shows(self, chunk: dict[str, Any]) -> bool:
        return str(chunk.get("type")).startswith("content_block")

    def add(self, chunk: dict[str, Any]) -> None:
        completion = self._completion
        match chunk.get("type"):
            case "message_start" if isinstance(chunk.get("message"), dict):
                _read_head(completion, chunk["message"])
                completion.choice(0).message = {"role": "assistant", "content": []}
            case "content_block_start" if isinstance(chunk.get("content_block"), dict):
                self._block(chunk, dict(chunk["content_block"]))
            case "content_block_delta" if isinstance(chunk.get("delta"), dict):
                self._delta(chunk, chunk["delta"])
            case "content_block_stop":
                self._stop(chunk)
            case "message_delta":
                if isinstance(chunk.get("usage"), dict):
                    completion.usage = {**(completion.usage or {}), **chunk["usage"]}
                if isinstance(chunk.get("delta"), dict):
                    _read_stop(completion.choice(0), chunk["delta"])
                    completion.state.extend(id_of(chunk["delta"].get("container") or {}))
            case "error":
                error = chunk.get("error")
                completion.error = error if isinstance(error, dict) else {"message": str(error)}

    def _block(self, chunk: dict[str, Any], block: dict[str, Any]) -> None:
        index = chunk.get("index")
        self._blocks[index if isinstance(index, int) else len(self._blocks)] = block
        content = [self._blocks[i] for i in sorted(self._blocks)]
        self._completion.choice(0).message = {"role": "assistant", "content": content}

    def _delta(self, chunk: dict[str, Any], delta: dict[str, Any]) -> None:
        index = chunk.get("index")
        index = index if isinstance(index, int) else len(self._blocks) - 1
        if index not in self._blocks:
            self._block({"index": index}, {"type": "text", "text": ""})
        block = self._blocks[index]
        match delta.get("type"):
            case "input_json_delta":
                piece = str(delta.get("partial_json") or "")
                if piece:
                    self._texts.add(self._inputs.setdefault(index, {}), "text", piece)
            case "citations_delta":
                block["citations"] = [*(block.get("citations") or []), delta.get("citation")]
            case _:
                for key, value in delta.items():
                    if key != "type" and isinstance(value, str):
                        self._texts.add(block, key, value)

    def _stop(self, chunk: dict[str, Any]) -> None:
        index = chunk.get("index")
        given = self._inputs.pop(index, None) if isinstance(index, int) else None
        if given is not None and isinstance(index, int):
            self._texts.join()
            value = messages.object_or_none(given["text"])
            self._blocks[index]["input"] = given["text"] if value is None else value


def _read_head(completion: Completion, body: dict[str, Any]) -> None:
    completion.state.extend(id_of(body.get("container") or {}))
    completion.id = named(body.get("id")) or completion.id
    completion.model = named(body.get("model")) or completion.model
    if isinstance(body.get("usage"), dict):
        completion.usage = body["usage"]


def _read_stop(choice: Choice, body: dict[str, Any]) -> None:
    if body.get("stop_reason") is not None:
        reason = str(body["stop_reason"])
        choice.finish_reason = _FINISH.get(reason, reason)


# -- messages


def from_anthropic(raw: dict[str, Any]) -> list[Message]:
    """One message as ATDP has it: several when it carries tool results."""
    role, content = messages.name(raw.get("role")) or "unknown", raw.get("content")
    fields = {k: v for k, v in raw.items() if k not in ("role", "content")}
    ext: dict[str, Any] = {"fields": fields} if fields else {}
    if isinstance(content, str):
        return [_message(role, [{"type": "text", "content": content}], {**ext, "content": "string"})]
    if not isinstance(content, list):
        return [_message(role, [], {**ext, "content": content})]
    results = [item for item in content if _is_result(item)]
    if role != "user" or not results:
        return [_of_blocks(role, content, ext)]
    # the blocks' places say how the messages made of them become one again
    places = [position for position, item in enumerate(content) if _is_result(item)]
    said = [_result(item) for item in results]
    rest = [item for item in content if not _is_result(item)]
    said[0].setdefault("ext", {}).update({**ext, "places": places, "of": len(content)})
    return [*said, _of_blocks(role, rest, {"joined": True})] if rest else said


def to_anthropic(said: list[Message]) -> list[dict[str, Any]]:
    """The messages that ATDP messages came from."""
    result: list[dict[str, Any]] = []
    waiting: list[Message] = []
    for message in said:
        if message["role"] == "tool":
            if waiting and "places" in message.get("ext", {}):
                result.append(_joined(waiting, None))
                waiting = []
            waiting.append(message)
        elif waiting:
            joined = message.get("ext", {}).get("joined") is True
            result.append(_joined(waiting, message if joined else None))
            waiting = []
            if not joined:
                result.append(_raw(message))
        else:
            result.append(_raw(message))
    return [*result, _joined(waiting, None)] if waiting else result


def _is_result(item: Any) -> bool:
    return isinstance(item, dict) and item.get("type") == "tool_result"


def _message(role: str, parts: list[dict[str, Any]], ext: dict[str, Any]) -> Message:
    return {"role": role, "parts": parts, "ext": ext} if ext else {"role": role, "parts": parts}


def _of_blocks(role: str, blocks: list[Any], ext: dict[str, Any]) -> Message:
    parts, about = [], []
    for position, block in enumerate(blocks):
        part, rest = _part(block)
        parts.append(part)
        if rest:
            about.append([position, rest])
    return _message(role, parts, {**ext, "blocks": about} if about else ext)


def _part(block: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """A content block as a part, and the fields of it that a part has no place for."""
    kind = block.get("type") if isinstance(block, dict) else None
    match kind:
        case "text" if isinstance(block.get("text"), str):
            return {"type": "text", "content": block["text"]}, _rest(block, "text")
        case "thinking":
            return {"type": "reasoning", "content": block.get("thinking")}, _rest(block, "thinking")
        case "tool_use":
            given = block.get("input")
            part: dict[str, Any] = {
                "type": "tool_call",
                "id": messages.name(block.get("id")),
                "name": str(block.get("name") or ""),
                "arguments": given,
            }
            if not isinstance(given, dict):
                part["malformed"] = True
            return part, _rest(block, "id", "name", "input")
    return {"type": BLOCK_PART, "content": block}, {}


def _rest(block: dict[str, Any], *known: str) -> dict[str, Any]:
    return {k: v for k, v in block.items() if k not in ("type", *known) and v is not None}


def _result(block: dict[str, Any]) -> Message:
    response = {
        "type": "tool_call_response",
        "id": messages.name(block.get("tool_use_id")),
        "response": block.get("content"),
    }
    rest = {k: v for k, v in block.items() if k not in ("type", "tool_use_id", "content")}
    if "content" not in block:
        rest["content"] = "absent"
    return _message("tool", [response], {"block": rest} if rest else {})


def _raw(message: Message) -> dict[str, Any]:
    ext = message.get("ext", {})
    return {"role": message["role"], "content": _raw_content(message), **ext.get("fields", {})}


def _raw_content(message: Message) -> Any:
    ext = message.get("ext", {})
    if ext.get("content") == "string":
        return message["parts"][0]["content"]
    if "content" in ext:
        return ext["content"]
    about = dict(ext.get("blocks", ()))
    return [_block(part, about.get(position, {})) for position, part in enumerate(message["parts"])]


def _block(part: dict[str, Any], rest: dict[str, Any]) -> Any:
    match part["type"]:
        case "text":
            return {"type": "text", "text": part["content"], **rest}
        case "reasoning":
            return {"type": "thinking", "thinking": part["content"], **rest}
        case "tool_call":
            return {
                "type": "tool_use", "id": part.get("id"), "name": part["name"], "input": part["arguments"], **rest,
            }  # fmt: skip
    return part["content"]


def _joined(results: list[Message], rest: Message | None) -> dict[str, Any]:
    """One user message out of tool results and what stood beside them."""
    ext = results[0].get("ext", {})
    blocks = [_raw_result(message) for message in results]
    others = _raw_content(rest) if rest is not None else []
    places = set(ext.get("places", range(len(blocks))))
    content = [
        blocks.pop(0) if position in places and blocks else others.pop(0)
        for position in range(len(blocks) + len(others))
    ]
    return {"role": "user", "content": content, **ext.get("fields", {})}


def _raw_result(message: Message) -> dict[str, Any]:
    (part,) = message["parts"]
    rest = dict(message.get("ext", {}).get("block", {}))
    content = {} if rest.pop("content", None) == "absent" else {"content": part.get("response")}
    return {"type": "tool_result", "tool_use_id": part.get("id"), **content, **rest}
