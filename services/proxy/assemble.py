"""The complete chat completion out of what an upstream sent, streamed or whole.

Both ways end in the same `Completion`, so an event does not depend on how its answer travelled.
Nothing is invented: no finish reason, no usage, no arguments that were not there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

_JOINED_FIELDS = ("content", "reasoning_content", "reasoning", "refusal")
"""Text fields of a delta; the pieces of each are concatenated."""


@dataclass
class Choice:
    """One of the `n` answers."""

    index: int
    message: dict[str, Any] = field(default_factory=lambda: {"role": "assistant"})
    finish_reason: str | None = None
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


@dataclass
class Completion:
    """An answer as far as it came."""

    choices: dict[int, Choice] = field(default_factory=dict)
    id: str | None = None
    model: str | None = None
    usage: dict[str, Any] | None = None
    """As the upstream reported it; None when it did not."""
    prompt_token_ids: list[int] = field(default_factory=list)
    error: dict[str, Any] | None = None
    """An error the upstream put into the stream or into a 200."""
    done: bool = False
    """Did a terminal event arrive?"""

    @property
    def finished(self) -> bool:
        """Did the upstream say that the answer is whole?"""
        ended = bool(self.choices) and all(c.finish_reason is not None for c in self.choices.values())
        return self.error is None and ended

    def ordered(self) -> list[Choice]:
        return [self.choices[index] for index in sorted(self.choices)]


def from_body(body: dict[str, Any]) -> Completion:
    """A completion that came as one JSON object."""
    completion = Completion(done=True)
    _read_head(completion, body)
    for position, raw in enumerate(_dicts(body.get("choices"))):
        choice = _choice(completion, raw, position)
        if isinstance(raw.get("message"), dict):
            choice.message = raw["message"]
        _read_tail(choice, raw)
    return completion


class StreamAssembler:
    """Adds up the chunks of a streamed completion."""

    def __init__(self) -> None:
        self.completion = Completion()
        self._calls: dict[int, dict[int, dict[str, Any]]] = {}

    def add(self, chunk: dict[str, Any]) -> None:
        """Take in one `chat.completion.chunk`."""
        _read_head(self.completion, chunk)
        for position, raw in enumerate(_dicts(chunk.get("choices"))):
            choice = _choice(self.completion, raw, position)
            delta = raw.get("delta")
            if isinstance(delta, dict):
                self._add_delta(choice, delta)
            _read_tail(choice, raw)

    def _add_delta(self, choice: Choice, delta: dict[str, Any]) -> None:
        message = choice.message
        for key, value in delta.items():
            if key == "tool_calls":
                for position, piece in enumerate(_dicts(value)):
                    self._add_call(choice, piece, position)
            elif key in _JOINED_FIELDS and isinstance(value, str):
                message[key] = (message.get(key) or "") + value
            elif value is not None:
                message[key] = value
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
                known["function"]["arguments"] += function["arguments"]


def _read_head(completion: Completion, body: dict[str, Any]) -> None:
    completion.id = body.get("id") or completion.id
    completion.model = body.get("model") or completion.model
    if isinstance(body.get("usage"), dict):
        completion.usage = body["usage"]
    if isinstance(body.get("prompt_token_ids"), list):
        completion.prompt_token_ids = body["prompt_token_ids"]
    error = body.get("error")
    if error:
        completion.error = error if isinstance(error, dict) else {"message": str(error)}


def _choice(completion: Completion, raw: dict[str, Any], position: int) -> Choice:
    index = raw["index"] if isinstance(raw.get("index"), int) else position
    return completion.choices.setdefault(index, Choice(index))


def _read_tail(choice: Choice, raw: dict[str, Any]) -> None:
    if raw.get("finish_reason") is not None:
        choice.finish_reason = str(raw["finish_reason"])
    if isinstance(raw.get("token_ids"), list):
        choice.token_ids.extend(raw["token_ids"])
    logprobs = raw.get("logprobs")
    if isinstance(logprobs, dict):
        choice.logprobs.extend(float(token["logprob"]) for token in _dicts(logprobs.get("content")))


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
