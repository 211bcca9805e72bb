"""OpenAI's chat completions, as most frameworks and vLLM speak them.

Streamed or whole, an answer ends in the same `Completion`, so an event does not depend on how its
answer travelled.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atdp import messages
from services.proxy.completion import Choice, Completion
from services.proxy.dialects.base import Assembler, Message, Path, Place, ToolPlace, WrongRequest, dicts
from services.proxy.dialects.naming import id_of, named, state_in
from services.proxy.dialects.openai import OpenAIDialect
from services.proxy.sse import DONE, ServerSentEvent

_JOINED_FIELDS = ("content", "reasoning_content", "reasoning", "refusal")
"""Text fields of a delta; the pieces of each are concatenated."""


class Chat(OpenAIDialect):
    name = "openai.chat"
    path = "/chat/completions"
    not_params = frozenset({"messages", "tools", "model", "stream", "stream_options"})
    content_field = "messages"

    def check(self, request: dict[str, Any]) -> None:
        if not isinstance(request.get("messages"), list):
            raise WrongRequest("'messages' must be an array of messages.", "messages")

    def conversation(self, request: dict[str, Any]) -> list[Message]:
        return [messages.from_openai(message) for message in dicts(request.get("messages"))]

    def answer(self, choice: Choice) -> Message:
        return messages.from_openai(choice.message, choice.finish_reason)

    def whole(self, body: dict[str, Any]) -> Completion | None:
        if not isinstance(body.get("choices"), list):
            return None
        completion = Completion(done=True)
        _read_head(completion, body)
        for position, raw in enumerate(dicts(body["choices"])):
            choice = _choice(completion, raw, position)
            if isinstance(raw.get("message"), dict):
                choice.message = raw["message"]
                completion.state.extend(id_of(raw["message"].get("audio") or {}))
            _read_tail(choice, raw)
        return completion

    def names(self, request: Mapping[str, Any]) -> list[str]:
        files: list[dict[str, Any]] = []
        audio: list[dict[str, Any]] = []
        for message in dicts(request.get("messages")):
            content = message.get("content")
            if isinstance(content, list):  # most are text
                files += (part for part in dicts(content) if part.get("type") == "file")
            if isinstance(message.get("audio"), dict):
                audio.append(message["audio"])
        return [*state_in(files), *(id for each in audio for id in id_of(each))] if files or audio else []

    def assembler(self) -> ChatAssembler:
        return ChatAssembler()

    def system_end(self, request: dict[str, Any]) -> Place | None:
        """In the first message if that is the system's; else a system message is put first."""
        given = request.get("messages")
        if not isinstance(given, list):
            return None
        first = given[0] if given and isinstance(given[0], dict) else {}
        if first.get("role") not in ("system", "developer"):
            return Place(("messages",), "message")
        content = first.get("content")
        path: Path = ("messages", 0, "content")
        if isinstance(content, list):
            return Place(path, "part")
        if isinstance(content, str):
            return Place(path, "text", len(content))
        return Place(path, "field", before=(content,) if "content" in first else ())

    def tools(self, request: dict[str, Any]) -> dict[str, ToolPlace]:
        found = {}
        given = request.get("tools")
        for position, tool in enumerate(given if isinstance(given, list) else ()):
            function = tool.get("function") if isinstance(tool, dict) else None
            if isinstance(function, dict) and isinstance(function.get("name"), str):
                found[function["name"]] = ToolPlace(("tools", position, "function"), "parameters")
        return found


class ChatAssembler(Assembler):
    """Adds up `chat.completion.chunk`s."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: dict[int, dict[int, dict[str, Any]]] = {}

    def ends(self, event: ServerSentEvent, chunk: dict[str, Any] | None) -> bool:
        return event.data == DONE

    def shows(self, chunk: dict[str, Any]) -> bool:
        return bool(chunk.get("choices"))

    def add(self, chunk: dict[str, Any]) -> None:
        _read_head(self._completion, chunk)
        for position, raw in enumerate(dicts(chunk.get("choices"))):
            choice = _choice(self._completion, raw, position)
            delta = raw.get("delta")
            if isinstance(delta, dict):
                self._add_delta(choice, delta)
            _read_tail(choice, raw)

    def _add_delta(self, choice: Choice, delta: dict[str, Any]) -> None:
        message = choice.message
        for key, value in delta.items():
            if key == "tool_calls":
                for position, piece in enumerate(dicts(value)):
                    self._add_call(choice, piece, position)
            elif key in _JOINED_FIELDS and isinstance(value, str):
                self._texts.add(message, key, value)
            elif value is not None:
                message[key] = value
                if key == "audio":
                    self.completion.state.extend(id_of(value))
            else:
                message.setdefault(key, None)

    def _add_call(self, choice: Choice, piece: dict[str, Any], position: int) -> None:
        """Join a piece of a tool call by its index within its choice.

        A piece with an id other than the call's at that index begins another call: some upstreams
        send whole calls that all carry index 0.
        """
        calls = self._calls.setdefault(choice.index, {})
        index = piece["index"] if isinstance(piece.get("index"), int) else position
        known = calls.get(index)
        if known is not None and piece.get("id") and known["id"] and piece["id"] != known["id"]:
            index = next((i for i, c in calls.items() if c["id"] == piece["id"]), max(calls) + 1)
            known = calls.get(index)
        if known is None:
            known = calls[index] = {"id": None, "type": "function", "function": {"name": "", "arguments": ""}}
            choice.message["tool_calls"] = [calls[i] for i in sorted(calls)]
        if piece.get("id"):
            known["id"] = piece["id"]
        if piece.get("type"):
            known["type"] = piece["type"]
        function = piece.get("function")
        if isinstance(function, dict):
            if function.get("name") and not known["function"]["name"]:
                known["function"]["name"] = function["name"]
            if isinstance(function.get("arguments"), str):
                self._texts.add(known["function"], "arguments", function["arguments"])


def _read_head(completion: Completion, body: dict[str, Any]) -> None:
    completion.id = named(body.get("id")) or completion.id
    completion.model = named(body.get("model")) or completion.model
    if isinstance(body.get("usage"), dict):
        completion.usage = body["usage"]
    if isinstance(body.get("prompt_token_ids"), list):
        completion.prompt_token_ids = body["prompt_token_ids"]
    error = body.get("error")
    if error:
        completion.error = error if isinstance(error, dict) else {"message": str(error)}


def _choice(completion: Completion, raw: dict[str, Any], position: int) -> Choice:
    return completion.choice(raw["index"] if isinstance(raw.get("index"), int) else position)


def _read_tail(choice: Choice, raw: dict[str, Any]) -> None:
    if raw.get("finish_reason") is not None:
        choice.finish_reason = str(raw["finish_reason"])
    if isinstance(raw.get("token_ids"), list):
        choice.token_ids.extend(raw["token_ids"])
    logprobs = raw.get("logprobs")
    if isinstance(logprobs, dict):
        told = [token.get("logprob") for token in dicts(logprobs.get("content"))]
        numbers = [float(each) for each in told if isinstance(each, int | float)]
        if len(numbers) == len(told):  # without some, nobody knows whose the others are
            choice.logprobs.extend(numbers)
