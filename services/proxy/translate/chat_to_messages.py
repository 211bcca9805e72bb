"""Chat answers as Anthropic's: content blocks one after another, the stop reason behind them."""

from __future__ import annotations

from typing import Any

from atdp import messages
from services.proxy.dialects import MESSAGES
from services.proxy.dialects.base import detail
from services.proxy.sse import EventSplitter
from services.proxy.translate.answer import Answer, Call, Kind
from services.proxy.translate.problems import in_stream

_STOP = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}


class MessagesAnswer(Answer):
    _id_prefix = "msg"

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._content: list[dict[str, Any]] = []
        self._text = ""
        """Of the open block."""

    def body(self) -> dict[str, Any]:
        reason, sequence = self._stop()
        return {
            **self._message(), "content": self._content, "stop_reason": reason, "stop_sequence": sequence,
            "usage": self._usage(),
        }  # fmt: skip

    def _message(self) -> dict[str, Any]:
        return {
            "id": self.id, "type": "message", "role": "assistant", "model": self.model, "content": [],
            "stop_reason": None, "stop_sequence": None,
        }  # fmt: skip

    def _start(self) -> None:
        # how many tokens went in is known at the end, and told there
        self._emit("message_start", {"message": {**self._message(), "usage": {"input_tokens": 0, "output_tokens": 0}}})

    def _begin(self, block: Kind | Call) -> None:
        self._text = ""
        if isinstance(block, Call):
            empty = {"type": "tool_use", "id": block.id, "name": block.name, "input": {}}
        elif block == "reasoning":
            empty = {"type": "thinking", "thinking": "", "signature": ""}
        else:
            empty = {"type": "text", "text": ""}
        self._content.append(empty)
        self._emit("content_block_start", {"index": self._at, "content_block": dict(empty)})

    def _continue(self, block: Kind | Call, piece: str) -> None:
        self._text += piece
        if isinstance(block, Call):
            delta = {"type": "input_json_delta", "partial_json": piece}
        elif block == "reasoning":
            delta = {"type": "thinking_delta", "thinking": piece}
        else:
            delta = {"type": "text_delta", "text": piece}
        self._emit("content_block_delta", {"index": self._at, "delta": delta})

    def _end(self, block: Kind | Call) -> None:
        told = self._content[-1]
        if isinstance(block, Call):
            value = messages.object_or_none(self._text)
            # what is no object travels as the text it is; no text at all is how some servers say "no arguments"
            told["input"] = (self._text or {}) if value is None else value
        else:
            told["thinking" if block == "reasoning" else "text"] = self._text
        self._emit("content_block_stop", {"index": self._at})

    def _finish(self) -> None:
        reason, sequence = self._stop()
        delta = {"stop_reason": reason, "stop_sequence": sequence}
        self._emit("message_delta", {"delta": delta, "usage": self._usage()})
        self._emit("message_stop", {})

    def _tell_error(self, error: dict[str, Any]) -> None:
        self._out += EventSplitter().feed(MESSAGES.error_frame(in_stream(error)))

    @property
    def _at(self) -> int:
        return len(self._content) - 1

    def _stop(self) -> tuple[str | None, str | None]:
        """The stop reason, and the stop sequence where the upstream says that it was one."""
        choice = self.said.choices.get(0)
        reason = choice.finish_reason if choice is not None else None
        if choice is None or reason is None:
            return None, None
        if self._calls and reason in ("stop", "function_call"):
            # a forced call ends with "stop"; this dialect's clients run tools only when told so
            return "tool_use", None
        if self._told["refusal"]:
            return "refusal", None
        if reason == "stop" and self._stopped_at in (self._asked.get("stop_sequences") or ()):
            return "stop_sequence", self._stopped_at
        return _STOP.get(reason, reason), None

    def _usage(self) -> dict[str, Any]:
        used = self.said.usage or {}
        cached = detail(used, "prompt_tokens_details").get("cached_tokens")
        told: dict[str, Any] = {"input_tokens": used.get("prompt_tokens") or 0}
        if isinstance(cached, int):
            # here the tokens read from a cache are counted beside the others
            told = {"input_tokens": max(told["input_tokens"] - cached, 0), "cache_read_input_tokens": cached}
        return {**told, "output_tokens": used.get("completion_tokens") or 0}
