"""A trajectory as a writer wants it: header, contexts, events, annotations, and the transcript."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from atdp.annotations import in_force
from atdp.convert.base import ContentOf, Record, parsed
from atdp.convert.loss import LossReport

Message = dict[str, Any]


class Said(NamedTuple):
    """One message of a transcript and the event it belongs to, if one does."""

    message: Message
    event: Record | None


@dataclass
class TrajectoryView:
    """The records of one trajectory, sorted out."""

    header: Record
    contexts: dict[str, Record]
    events: list[Record] = field(default_factory=list)
    annotations: list[Record] = field(default_factory=list)

    @property
    def id(self) -> str:
        return str(self.header["trajectory_id"])

    def __post_init__(self) -> None:
        self._by_id: dict[str, Record] = {}

    def add(self, record: Record) -> None:
        self._by_id[record["id"]] = record
        (self.events if record["record"] == "event" else self.annotations).append(record)

    def ext(self, format: str) -> dict[str, Any]:
        """What the header keeps for a format."""
        return dict(self.header.get("ext", {}).get(format, {}))

    def context(self) -> dict[str, Any]:
        """The body of the context of the last call, or of the first event; empty when it is not at hand."""
        named = [e["ctx"] for e in self.events if e["kind"] == "llm_call"] or [e["ctx"] for e in self.events]
        return dict(self.contexts.get(named[-1], {"body": {}})["body"]) if named else {}

    def tools(self, content: ContentOf) -> list[Any]:
        """The tools of the context as they were described; those whose text is not at hand are left out."""
        found = [content(tool["schema"]) for tool in self.context().get("tools", ())]
        return [parsed(data.decode()) for data in found if data is not None]

    def calls(self) -> list[Record]:
        return [event for event in self.events if event["kind"] == "llm_call"]

    def rewards(self) -> list[Record]:
        """The rewards in force."""
        return [a for a in in_force(self.annotations) if a["kind"] == "reward"]

    def prompt(self, call: Record) -> list[Said]:
        """Everything the model saw, in order."""
        forms: list[tuple[dict[str, Any], Record | None]] = []
        current: Record | None = call
        form: Any = None
        while current is not None:
            form = current.get("o", {}).get("messages", [])
            if isinstance(form, list):
                break
            current = self._by_id.get(form["prefix"])
            forms.append((form, current))
        shown: list[Said] = []
        if current is not None and isinstance(form, list):
            shown += _instructions(current.get("o", {}).get("system_instructions"))
            shown += [Said(message, None) for message in form]
        for form, before in reversed(forms):
            if before is not None and before.get("a", {}).get("messages"):
                shown.append(Said(_plain(before["a"]["messages"][0]), before))
            for change in form.get("changed", ()):
                if change["at"] < len(shown):
                    shown[change["at"]] = Said(change["message"], shown[change["at"]].event)
            shown += self._appended(form["append"])
        return shown

    def _appended(self, items: list[dict[str, Any]]) -> Iterator[Said]:
        for item in items:
            event = self._by_id.get(item["event"]) if "event" in item and "parts" not in item else None
            if event is not None:
                yield Said(message_of(event), event)
            elif "parts" in item:
                yield Said(item, None)

    def token_columns(self, call: Record, loss: LossReport) -> dict[str, Any]:
        """Token ids and log-probabilities of a call by TRL's names; what is sealed or kept apart is lost."""
        tokens = call.get("tokens", {})
        found = {
            "prompt_ids": self._prompt_ids(tokens.get("prompt_token_ids")),
            "completion_ids": tokens.get("completion_token_ids"),
            "logprobs": tokens.get("logprobs"),
        }
        for name, value in found.items():
            if value is not None and not isinstance(value, list):
                loss.lose(name, value, "sealed or kept apart")
        return {name: value for name, value in found.items() if isinstance(value, list)}

    def _prompt_ids(self, ids: Any) -> Any:
        if not isinstance(ids, dict) or "prefix" not in ids:
            return ids
        before = self._by_id.get(ids["prefix"], {}).get("tokens", {})
        start, completion = self._prompt_ids(before.get("prompt_token_ids")), before.get("completion_token_ids")
        if isinstance(start, list) and isinstance(completion, list):
            return [*start, *completion, *ids["append"]]
        return ids

    def transcript(self) -> list[Said]:
        """The main line: what the last call saw, its answer, and what came after it.

        Messages that are written out are matched with the events that hold the same.
        """
        calls = [call for call in self.calls() if call.get("a", {}).get("messages")]
        shown: list[Said] = []
        position = -1
        if calls:
            last = calls[-1]
            shown = [*self.prompt(last), Said(_plain(last["a"]["messages"][0]), last)]
            position = self.events.index(last)
        shown += [Said(message_of(e), e) for e in self.events[position + 1 :] if is_message(e)]
        return self._matched(shown)

    def _matched(self, shown: list[Said]) -> list[Said]:
        used = {said.event["id"] for said in shown if said.event is not None}
        free = [event for event in self.events if event["id"] not in used and (is_message(event) or _answers(event))]
        result = []
        for said in shown:
            event = said.event
            if event is None and said.message["role"] not in ("system", "developer"):
                event = next((e for e in free if _plain(message_of(e)) == _plain(said.message)), None)
                if event is not None:
                    free.remove(event)
            result.append(Said(said.message, event))
        return result


def trajectories(records: Iterable[Record]) -> Iterator[TrajectoryView]:
    """Views of the trajectories in the order of their headers.

    A trajectory is given when the next begins: all its records follow its header, up to the next one's.
    """
    contexts: dict[str, Record] = {}
    view: TrajectoryView | None = None
    for record in records:
        match record["record"]:
            case "context":
                contexts[record["id"]] = record
            case "trajectory":
                if view is not None:
                    yield view
                view = TrajectoryView(record, contexts)
            case _ if view is not None:
                view.add(record)
    if view is not None:
        yield view


def is_message(event: Record) -> bool:
    """Does the event hold something that can be shown to a model?"""
    return event["kind"] == "user_message" or (event["kind"] != "llm_call" and "call_id" in event.get("a", {}))


def message_of(event: Record) -> Message:
    """The message an event stands for in a prompt."""
    if event["kind"] == "user_message":
        return dict(event["o"]["messages"][0])
    if event["kind"] == "llm_call":
        return dict(event["a"]["messages"][0])
    action = event.get("a", {})
    response = {"type": "tool_call_response", "id": action.get("call_id"), "response": event["y"].get("result")}
    return {"role": "tool", "parts": [response]}


def _instructions(system: Any) -> list[Said]:
    """Instructions that a provider takes beside the messages, as the message they are elsewhere."""
    if system is None:
        return []
    parts = instruction_parts(system)
    return [Said({"role": "system", "parts": parts, "ext": {"system_instructions": True}}, None)]


def instruction_parts(system: Any) -> list[dict[str, Any]]:
    """Instructions as parts: they may be a text, parts, or the blocks of a provider's own API."""
    parts = []
    for item in system if isinstance(system, list) else [system]:
        if isinstance(item, dict) and "type" in item and "content" in item:
            parts.append(item)
        elif isinstance(item, dict) and item.get("type") == "text" and isinstance(item.get("text"), str):
            parts.append({"type": "text", "content": item["text"]})
        else:
            parts.append({"type": "text", "content": item})
    return parts


def _answers(event: Record) -> bool:
    return event["kind"] == "llm_call" and bool(event.get("a", {}).get("messages"))


def _plain(message: Message) -> Message:
    return {key: value for key, value in message.items() if key != "finish_reason"}
