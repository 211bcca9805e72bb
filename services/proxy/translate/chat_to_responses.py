"""Chat answers as responses: one output item a block, and the whole response at the end."""

from __future__ import annotations

from typing import Any

from services.proxy.dialects.base import detail
from services.proxy.translate.answer import Answer, Call, Kind
from services.proxy.translate.problems import in_stream

_ENDINGS = {"stop": None, "tool_calls": None, "function_call": None, "length": "max_output_tokens"}
"""Finish reasons as the reason why a response is incomplete; None where it is complete."""

_ITEMS: dict[Kind, tuple[str, str, str]] = {
    "reasoning": ("rs", "reasoning_text", "text"),
    "text": ("msg", "output_text", "text"),
    "refusal": ("msg", "refusal", "refusal"),
}
"""Of a block: its item's id prefix, its part's type, and the field that holds the words."""


class ResponsesAnswer(Answer):
    _id_prefix = "resp"

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._items: list[dict[str, Any]] = []
        self._words = ""
        """Of the open block."""
        self._number = 0

    def body(self) -> dict[str, Any]:
        status, reason = self._outcome()
        details = None if reason is None else {"reason": reason}
        return self._response(status, incomplete_details=details, output=self._items, usage=self._usage())

    def _response(self, status: str, **known: Any) -> dict[str, Any]:
        """What the client asked for comes back with its answer; what nobody knows is null."""
        asked = self._asked
        return {
            "id": self.id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": None,
            "instructions": asked.get("instructions"),
            "max_output_tokens": asked.get("max_output_tokens"),
            "model": self.model,
            "output": [],
            "parallel_tool_calls": asked.get("parallel_tool_calls") is not False,
            "previous_response_id": None,
            "reasoning": {"effort": None, "summary": None, **(asked.get("reasoning") or {})},
            "store": False,
            "temperature": asked.get("temperature"),
            "text": asked.get("text") or {"format": {"type": "text"}},
            "tool_choice": asked.get("tool_choice") or "auto",
            "tools": asked.get("tools") or [],
            "top_p": asked.get("top_p"),
            "truncation": "disabled",
            "usage": None,
            "user": asked.get("user"),
            "metadata": asked.get("metadata") or {},
            **known,
        }

    def _start(self) -> None:
        for kind in ("response.created", "response.in_progress"):
            self._tell(kind, response=self._response("in_progress"))

    def _begin(self, block: Kind | Call) -> None:
        self._words = ""
        at = len(self._items)
        item: dict[str, Any]
        if isinstance(block, Call):
            item = {
                "id": f"fc_{self.id}_{at}", "type": "function_call", "status": "in_progress", "call_id": block.id,
                "name": block.name, "arguments": "",
            }  # fmt: skip
        elif block == "reasoning":
            item = {"id": f"rs_{self.id}_{at}", "type": "reasoning", "summary": [], "content": []}
        else:
            item = {
                "id": f"msg_{self.id}_{at}", "type": "message", "status": "in_progress", "role": "assistant",
                "content": [],
            }  # fmt: skip
        self._items.append(item)
        self._tell("response.output_item.added", output_index=at, item=dict(item))
        if not isinstance(block, Call):
            self._tell("response.content_part.added", **self._place(block), part=_part(block, ""))

    def _continue(self, block: Kind | Call, piece: str) -> None:
        self._words += piece
        if isinstance(block, Call):
            self._tell("response.function_call_arguments.delta", **self._place(block), delta=piece)
        else:
            self._tell(f"response.{_ITEMS[block][1]}.delta", **self._place(block), delta=piece, **_beside(block))

    def _end(self, block: Kind | Call) -> None:
        item = self._items[-1]
        if "status" in item:
            item["status"] = "completed" if self._outcome()[0] != "incomplete" else "incomplete"
        if isinstance(block, Call):
            item["arguments"] = self._words
            done = {"arguments": self._words, "name": item["name"]}
            self._tell("response.function_call_arguments.done", **self._place(block), **done)
        else:
            item["content"] = [_part(block, self._words)]
            _, kind, field = _ITEMS[block]
            self._tell(f"response.{kind}.done", **self._place(block), **{field: self._words}, **_beside(block))
            self._tell("response.content_part.done", **self._place(block), part=item["content"][0])
        self._tell("response.output_item.done", output_index=len(self._items) - 1, item=item)

    def _finish(self) -> None:
        body = self.body()
        self._tell(f"response.{body['status']}", response=body)

    def _tell_error(self, error: dict[str, Any]) -> None:
        said = in_stream(error)
        failed = {"code": said.code or "server_error", "message": said.message}
        self._tell("response.failed", response=self._response("failed", error=failed, output=self._items))

    def _tell(self, kind: str, **data: Any) -> None:
        self._emit(kind, {"sequence_number": self._number, **data})
        self._number += 1

    def _place(self, block: Kind | Call) -> dict[str, Any]:
        """Where in the response an event belongs."""
        at = len(self._items) - 1
        part = {} if isinstance(block, Call) else {"content_index": 0}
        return {"item_id": self._items[at]["id"], "output_index": at, **part}

    def _outcome(self) -> tuple[str, str | None]:
        """The response's status, and why it is incomplete."""
        choice = self.said.choices.get(0)
        reason = choice.finish_reason if choice is not None else None
        if reason is None:
            return "in_progress", None
        why = _ENDINGS.get(reason, reason)
        return ("completed" if why is None else "incomplete"), why

    def _usage(self) -> dict[str, Any] | None:
        used = self.said.usage
        if used is None:
            return None
        read, wrote = detail(used, "prompt_tokens_details"), detail(used, "completion_tokens_details")
        into, out = used.get("prompt_tokens") or 0, used.get("completion_tokens") or 0
        return {
            "input_tokens": into,
            "input_tokens_details": {"cached_tokens": read.get("cached_tokens") or 0},
            "output_tokens": out,
            "output_tokens_details": {"reasoning_tokens": wrote.get("reasoning_tokens") or 0},
            "total_tokens": into + out,
        }


def _part(kind: Kind, words: str) -> dict[str, Any]:
    _, name, field = _ITEMS[kind]
    more: dict[str, Any] = {"annotations": [], "logprobs": []} if kind == "text" else {}
    return {"type": name, field: words, **more}


def _beside(kind: Kind) -> dict[str, Any]:
    return {"logprobs": []} if kind == "text" else {}
