"""A chat answer as it becomes one of another dialect, event by event.

What the upstream has said so far is added up as ever (`ChatAssembler`); what of it the client has not
been told yet is what the next events say. So pieces that the upstream sends in an order that the
other dialect does not know simply wait until their turn. A whole answer is a stream of one piece.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from atdp import messages
from atdp.ids import new_id
from services.proxy.completion import Completion
from services.proxy.dialects import CHAT
from services.proxy.dialects.base import dicts
from services.proxy.sse import ServerSentEvent
from services.proxy.translate.notes import Notes

Kind = Literal["reasoning", "text", "refusal"]

_TOLD = frozenset({"role", "content", "reasoning_content", "reasoning", "refusal", "tool_calls"})
"""Fields of a message that reach the client."""


@dataclass(eq=False)
class Call:
    """A tool call of the answer."""

    said: dict[str, Any]
    """As the upstream has made it so far."""
    id: str
    told: int = 0
    """Characters of its arguments that the client has."""
    begun: bool = False
    ended: bool = False

    @property
    def name(self) -> str:
        return str(self.said["function"]["name"])

    @property
    def arguments(self) -> str:
        return str(self.said["function"]["arguments"])

    @property
    def complete(self) -> bool:
        """Are its arguments an object, so that nothing can follow?"""
        return isinstance(messages.loads_or_none(self.arguments), dict)


class Answer(ABC):
    """One answer. Blocks follow each other: reasoning, text, refusal, tool calls."""

    def __init__(self, asked: dict[str, Any], notes: Notes, model: str | None) -> None:
        self._asked = asked
        self._notes = notes
        self._model = model
        self._chat = CHAT.assembler()
        self._told: dict[Kind, int] = {"reasoning": 0, "text": 0, "refusal": 0}
        self._calls: list[Call] = []
        self._open: Kind | Call | None = None
        self._out: list[ServerSentEvent] = []
        self._started = self._ended = False
        self._id: str | None = None
        self._created = 0
        self._stopped_at: str | None = None
        """The stop sequence that ended it, from servers that say so (vLLM)."""

    @property
    def said(self) -> Completion:
        """What the upstream has said."""
        return self._chat.completion

    @property
    def id(self) -> str:
        """The upstream's id of the answer; one of ours where it gave none."""
        if self._id is None:
            self._id = self.said.id or new_id(self._id_prefix)
        return self._id

    @property
    def model(self) -> str | None:
        return self._model or self.said.model

    def add(self, chunk: dict[str, Any]) -> list[ServerSentEvent]:
        """The events that a chunk makes."""
        if self._ended:
            return []
        if isinstance(chunk.get("created"), int):
            self._created = chunk["created"]
        for choice in dicts(chunk.get("choices")):
            if isinstance(choice.get("stop_reason"), str):
                self._stopped_at = choice["stop_reason"]
        self._chat.add(chunk)
        if self.said.error is not None:
            self._fail(self.said.error)
        elif 0 in self.said.choices:
            self._tell_news(last=False)
        return self._taken()

    def close(self) -> list[ServerSentEvent]:
        """The last events; none when the upstream has not said that the answer is whole."""
        if self._ended or not self.said.finished:
            return []
        self._tell_news(last=True)
        if not self._ended:
            self._leave()
            for field, value in self.said.choices[0].message.items():
                if field not in _TOLD and value not in (None, [], {}, ""):
                    self._notes.drop(f"answer.{field}")
            self._ended = True
            self._finish()
        return self._taken()

    def whole(self, body: dict[str, Any]) -> dict[str, Any]:
        """The answer as one body, from a chat answer that is one."""
        choices = [{**raw, "delta": _as_delta(raw)} for raw in dicts(body["choices"])]
        self.add({**body, "choices": choices})
        if not self.close():
            # it does not say whether it is whole: what there is
            self._tell_news(last=True)
            self._leave()
        return self.body()

    # -- what a dialect does

    _id_prefix: str

    @abstractmethod
    def body(self) -> dict[str, Any]:
        """What has been told so far, as one body."""

    @abstractmethod
    def _start(self) -> None:
        """The events that open an answer."""

    @abstractmethod
    def _begin(self, block: Kind | Call) -> None: ...

    @abstractmethod
    def _continue(self, block: Kind | Call, piece: str) -> None: ...

    @abstractmethod
    def _end(self, block: Kind | Call) -> None: ...

    @abstractmethod
    def _finish(self) -> None:
        """The events that end a whole answer."""

    @abstractmethod
    def _tell_error(self, error: dict[str, Any]) -> None:
        """The event that ends an answer with an error."""

    def _emit(self, kind: str, data: dict[str, Any]) -> None:
        encoded = orjson.dumps({"type": kind, **data})
        self._out.append(ServerSentEvent(b"event: %s\ndata: %s\n\n" % (kind.encode(), encoded), encoded))

    # -- the order of things

    def _taken(self) -> list[ServerSentEvent]:
        out, self._out = self._out, []
        return out

    def _tell_news(self, *, last: bool) -> None:
        """Tell what has not been told, as far as the block that is open may be left."""
        if not self._started:
            self._started = True
            self._start()
        message = self.said.choices[0].message
        for raw in dicts(message.get("tool_calls")):
            if not any(call.said is raw for call in self._calls):
                self._calls.append(Call(raw, str(raw["id"] or f"call_{self.id}_{len(self._calls)}")))
        if isinstance(self._open, Call):
            self._tell_arguments(self._open)
        kinds: tuple[tuple[Kind, str], ...] = (
            ("reasoning", _text(message.get("reasoning_content") or message.get("reasoning"))),
            ("text", _text(message.get("content"))),
            ("refusal", _text(message.get("refusal"))),
        )
        for kind, text in kinds:
            piece = text[self._told[kind] :]
            if piece and self._enter(kind, last):
                self._told[kind] = len(text)
                self._continue(kind, piece)
        for call in self._calls:
            if call.ended and call.arguments[call.told :].strip():
                self._fail({"message": "the model server went on with a tool call that it had ended"})
            elif not call.begun and (call.name or last) and self._enter(call, last):
                call.begun = True
                self._tell_arguments(call)

    def _tell_arguments(self, call: Call) -> None:
        piece = call.arguments[call.told :]
        if piece:
            call.told += len(piece)
            self._continue(call, piece)

    def _enter(self, block: Kind | Call, last: bool) -> bool:
        """Make this the open block; False while another has to stay open, because more of it may come."""
        if self._open == block:
            return True
        if isinstance(self._open, Call) and not self._open.complete and not last:
            return False
        self._leave()
        self._open = block
        self._begin(block)
        return True

    def _leave(self) -> None:
        if self._open is None:
            return
        block, self._open = self._open, None
        if isinstance(block, Call):
            block.ended = True
        self._end(block)

    def _fail(self, error: dict[str, Any]) -> None:
        if not self._ended:
            self._ended = True
            self.said.error = error
            self._tell_error(error)


def _text(content: Any) -> str:
    """A text, or the texts of a list of parts."""
    if isinstance(content, list):
        return "".join(str(part.get("text") or "") for part in dicts(content))
    return content if isinstance(content, str) else ""


def _as_delta(choice: dict[str, Any]) -> dict[str, Any]:
    """A whole message as the one piece of a stream."""
    message = choice.get("message")
    if not isinstance(message, dict):
        return {}
    calls = [_call(raw) for raw in dicts(message.get("tool_calls"))]
    return {**message, "tool_calls": calls} if calls else {k: v for k, v in message.items() if k != "tool_calls"}


def _call(raw: dict[str, Any]) -> dict[str, Any]:
    """Arguments are a text in this dialect; some servers send the value instead."""
    function = raw.get("function")
    given = function.get("arguments") if isinstance(function, dict) else None
    if not isinstance(function, dict) or given is None or isinstance(given, str):
        return raw
    return {**raw, "function": {**function, "arguments": json.dumps(given, ensure_ascii=False)}}
