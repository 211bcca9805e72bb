"""Building a trajectory's drafts from what happened in a conversation, in order.

Most formats are a list of messages. Each becomes what it is: a user's words a `user_message`, an answer
an `llm_call` that continues the call before it, a result a `tool_call` joined to the call that asked for it. Ids are
derived from the trajectory and the place in it, so that reading a source twice gives the same records.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import orjson

from atdp import messages
from atdp.canonical import digest
from atdp.convert.base import TIME_ABSENT, Content, Item, ReadOptions
from atdp.convert.loss import LossReport
from atdp.ids import derived_id
from atdp.records import AnnotationDraft, Context, EventDraft, TrajectoryDraft

Message = dict[str, Any]
"""An ATDP message."""

PRODUCER = "atdp.convert/1.0"
_SAFE_INTEGER = 2**53 - 1

Actor = Literal["agent", "user", "system", "tool", "reviewer"]


class Conversation:
    """One trajectory in the making."""

    def __init__(
        self,
        format: str,
        key: str,
        options: ReadOptions,
        loss: LossReport,
        time: str | None = None,
        context: dict[str, Any] | None = None,
        tools: list[Any] | None = None,
        **header: Any,
    ) -> None:
        """`key` names the trajectory within the format; `header` are further fields of the trajectory record."""
        self.format = format
        self.loss = loss
        self.trajectory_id = derived_id("tr", format, key)
        self._options = options
        self._contents = [Content("application/json", orjson.dumps(tool)) for tool in tools or ()]
        body: dict[str, Any] = {"harness": {"name": options.agent}, **(context or {})}
        if tools:
            body["tools"] = [
                {"name": tool_name(tool), "schema": content.digest}
                for tool, content in zip(tools, self._contents, strict=True)
            ]
        self._body = within_json(body)
        self.ctx = digest(self._body)
        self._header = header
        self._absent = time is None
        self.now = time or options.time
        self._opened = self.now
        self._events: list[dict[str, Any]] = []
        self._pending: list[Message] = []
        self._held: list[Message | dict[str, str]] = []
        self._inputs: list[str] = []
        self._calls: list[tuple[dict[str, Any], str]] = []
        self._seen_calls: set[str] = set()
        self.last_call: str | None = None
        self.turn = self.step = 0

    # -- what happened

    def given(self, message: Message) -> None:
        """A message that was put before the model and that is no event: instructions, an example, a greeting."""
        self._show(message)

    def user(self, message: Message, **fields: Any) -> str:
        """Words of the user, or of whoever plays it."""
        self.turn += 1
        id = self._event("user_message", actor={"type": "user"}, o={"messages": [message]}, **fields)
        self._show(message, id)
        return id

    def assistant(self, answers: Message | list[Message], **fields: Any) -> str:
        """A model's answer to everything shown so far; `fields` add to the event (`m`, `y`, `ext`, …)."""
        said = answers if isinstance(answers, list) else [answers]
        self.step += 1
        prompt: Any = self._pending
        if self.last_call is not None:
            prompt = {"prefix": self.last_call, "append": self._held}
        outcome: dict[str, Any] = {"status": "ok", **fields.pop("y", {})}
        finish = said[0].get("finish_reason") if said else None
        if finish is not None:
            outcome.setdefault("finish_reason", finish)
        action = {"messages": said, **fields.pop("a", {})}
        id = self._event(
            "llm_call",
            actor={"type": "agent"},
            causes=fields.pop("causes", self.inputs()),
            o={"messages": prompt, **fields.pop("o", {})},
            a=action,
            y=outcome,
            **fields,
        )
        self._asked = {"o": {"messages": prompt}, "causes": self.inputs()}
        self._pending, self._held, self._inputs = [], [], []
        self.last_call = id
        for answer in said[:1]:
            for call in messages.tool_calls(answer):
                self._called(call, id)
        return id

    def instead(self, answer: Message, **fields: Any) -> str:
        """Another answer to the prompt of the last call, from which the conversation goes on."""
        causes = [*self._asked["causes"], {"id": self.last_call, "rel": "branch_of"}]
        self.last_call = self._event(
            "llm_call", actor={"type": "agent"}, o=self._asked["o"], a={"messages": [answer]}, causes=causes, **fields
        )
        return self.last_call

    def waiting(self) -> bool:
        """Is there a call without a result yet?"""
        return bool(self._calls)

    def inputs(self) -> list[dict[str, str]]:
        """Causes of the next answer: what has been shown since the last."""
        return [{"id": id, "rel": "input"} for id in self._inputs]

    def target(self, event_id: str) -> dict[str, str]:
        """One of the trajectory's events, as annotations name it."""
        return {"trajectory_id": self.trajectory_id, "event_id": event_id}

    def tool(self, call_id: str | None, response: Any, name: str | None = None, **fields: Any) -> str:
        """The result of a tool call; the model sees it before its next answer."""
        call, caller = self._take(call_id, name)
        action: dict[str, Any] = {"name": (call or {}).get("name") or name or "unknown"}
        if call_id is not None:
            action["call_id"] = call_id
        if call is not None and "arguments" in call:
            action["arguments"] = call["arguments"]
        kind = fields.pop("kind", "tool_call")
        if caller is not None:
            fields = {"parent_id": caller, "causes": [{"id": caller, "rel": "decided_by"}], **fields}
        outcome = {"status": "ok", "result": response, **fields.pop("y", {})}
        id = self._event(kind, actor={"type": "agent"}, a={**action, **fields.pop("a", {})}, y=outcome, **fields)
        part = {"type": "tool_call_response", "id": call_id, "response": response}
        self._show({"role": "tool", "parts": [part]}, id)
        return id

    def operation(self, kind: str, name: str, **fields: Any) -> str:
        """Something the agent did that no message tells of."""
        action = {"name": name, **fields.pop("a", {})}
        return self._event(kind, actor={"type": "agent"}, a=action, **fields)

    def add_event(self, kind: str, **fields: Any) -> str:
        """An event that is known whole."""
        return self._event(kind, **fields)

    def add_header(self, ext: dict[str, Any]) -> None:
        """More of what the format has for the whole trajectory."""
        self._header["ext"] = {**self._header.get("ext", {}), **ext}

    def outcome(self, reason: str, **fields: Any) -> str:
        """How the task ended."""
        return self._event("outcome", y={"status": "ok", "reason": reason, **fields.pop("y", {})}, **fields)

    def annotate(self, kind: str, name: str, source: dict[str, Any], event_id: str | None = None, **fields: Any) -> str:
        """What was said about the trajectory, or about one of its events."""
        target = {"trajectory_id": self.trajectory_id}
        if event_id is not None:
            target["event_id"] = event_id
        id = derived_id("an", self.trajectory_id, str(len(self._events)))
        self._events.append(
            {
                "record": "annotation",
                "id": id,
                "kind": kind,
                "name": name,
                "targets": [target],
                "source": source,
                "time": self.now,
                **fields,
            }
        )
        return id

    def drafts(self) -> list[Item]:
        """The whole trajectory."""
        self.loss.items += 1
        header: dict[str, Any] = {
            "atdp": "1.0",
            "record": "trajectory",
            "trajectory_id": self.trajectory_id,
            "time": self._opened,
            "agent": {"name": self._options.agent},
            "gov": {"eligibility": {"train": "pending"}},
            **self._header,
        }
        header["origin"] = {"producer": PRODUCER, "format": self.format, **header.get("origin", {})}
        if self._options.imported_from:
            header["origin"]["imported_from"] = self._options.imported_from
        if self._absent:
            header["ext"] = {**header.get("ext", {}), TIME_ABSENT: True}
            self.loss.note("time", why="no times in the source; the records have the file's own")
        items: list[Item] = [*self._contents]
        items.append(msgspec.convert({"atdp": "1.0", "record": "context", "id": self.ctx, "body": self._body}, Context))
        items.append(msgspec.convert(within_json(header), TrajectoryDraft))
        for event in self._events:
            draft = within_json({"atdp": "1.0", "trajectory_id": self.trajectory_id, **event})
            if event["record"] == "annotation":
                items.append(msgspec.convert(draft, AnnotationDraft))
            else:
                items.append(msgspec.convert(draft, EventDraft))
        return items

    # -- inside

    def _event(self, kind: str, **fields: Any) -> str:
        id = fields.pop("id", None) or derived_id("ev", self.trajectory_id, str(len(self._events)))
        event: dict[str, Any] = {
            "record": "event",
            "id": id,
            "kind": kind,
            "time": self.now,
            "ctx": self.ctx,
            "turn": self.turn,
            "step": self.step,
            "y": {"status": "ok"},
            **fields,
        }
        self._events.append({key: value for key, value in event.items() if value not in ({}, [], None)})
        return id

    def _show(self, message: Message, event_id: str | None = None) -> None:
        self._pending.append(message)
        self._held.append(message if event_id is None else {"event": event_id})
        if event_id is not None:
            self._inputs.append(event_id)

    def _called(self, call: dict[str, Any], id: str) -> None:
        call_id = call.get("id")
        if call_id is not None and call_id in self._seen_calls:
            self.loss.note("repeated_call_id", call_id, "a call id is a foreign key here, never an identity")
        if call_id is not None:
            self._seen_calls.add(call_id)
        self._calls.append((call, id))

    def _take(self, call_id: str | None, name: str | None) -> tuple[dict[str, Any] | None, str | None]:
        """The oldest unanswered call with this id, else by its name; (None, None) when nothing asked for it."""
        for wanted in (
            lambda call: call_id is not None and call.get("id") == call_id,
            lambda call: call_id is None and (name is None or call["name"] == name),
        ):
            for index, (call, caller) in enumerate(self._calls):
                if wanted(call):
                    del self._calls[index]
                    return call, caller
        self.loss.note("result_without_call", call_id or name, "no call in the trajectory asked for this result")
        return None, None


def tool_name(tool: Any) -> str:
    """The name in a tool's description, in OpenAI's form or plain."""
    function = tool.get("function") if isinstance(tool, dict) else None
    named = function if isinstance(function, dict) else tool
    return str((named.get("name") if isinstance(named, dict) else None) or "unknown")


def present(**fields: Any) -> dict[str, Any]:
    """The fields that say something."""
    return {key: value for key, value in fields.items() if value is not None and value != {}}


def text_message(role: str, text: str, **fields: Any) -> Message:
    """A message of one text."""
    return {"role": role, "parts": [{"type": "text", "content": text}], **fields}


def within_json(value: Any) -> Any:
    """The value with integers that a JSON number can't hold exactly as text, and infinities and NaN as text."""
    if isinstance(value, dict):
        return {key: within_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [within_json(item) for item in value]
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > _SAFE_INTEGER:
        return str(value)
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    return value
