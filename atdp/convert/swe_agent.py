"""SWE-agent's `.traj` files: `{environment, trajectory, history, info}` (SWE-agent/SWE-agent).

`history` is what the model saw and said; `trajectory` what its actions did. With a parsed command the observation comes
back as a user message, with function calling as a tool message: both are kept as they were.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import orjson

from atdp import messages
from atdp.convert.base import (
    ContentOf,
    ConversionError,
    Format,
    Item,
    ReadOptions,
    Record,
    Source,
    content_key,
    json_document,
    without,
)
from atdp.convert.conversation import Conversation
from atdp.convert.loss import LossReport
from atdp.convert.transcripts import TRANSCRIPT, show, text_of
from atdp.convert.view import Said, TrajectoryView, trajectories

_FILE_COMMANDS = frozenset(
    {"open", "goto", "scroll_up", "scroll_down", "create", "edit", "insert", "cat", "ls", "find", "grep", "search_dir",
     "search_file", "find_file", "str_replace_editor", "filemap"}
)  # fmt: skip
_COPIED = ("messages", "query")
"""Fields of a step that repeat the prompt."""
_SPOKEN = ("role", "content", "tool_calls")


class SweAgent(Format):
    """One run a file."""

    name = "swe-agent"
    title = "SWE-agent trajectory (.traj)"
    carries = TRANSCRIPT | {
        "trajectory.ext.swe_agent", "event.ext.swe_agent", "event.duration_ms", "event.y.reason", "event.y.status",
        "context.env",
    }  # fmt: skip

    def detect(self, document: Any) -> bool:
        if not isinstance(document, dict) or not isinstance(document.get("history"), list):
            return False
        return all(isinstance(message, dict) and "role" in message for message in document["history"][:1])

    def items(self, source: Source, options: ReadOptions, loss: LossReport) -> Iterator[Item]:
        document = json_document(source)
        if not self.detect(document):
            raise ConversionError("a .traj file has a history of messages")
        yield from _Run(document, options, loss).drafts()

    def lines(self, records: Iterable[Record], content: ContentOf, loss: LossReport) -> Iterator[bytes]:
        for view in trajectories(records):
            loss.items += 1
            if loss.items > 1:
                loss.lose("trajectory (after the first)", view.id, "a .traj file holds one run")
                continue
            yield orjson.dumps(_document(view, loss), option=orjson.OPT_INDENT_2)


class _Run:
    """Reading one file."""

    def __init__(self, document: dict[str, Any], options: ReadOptions, loss: LossReport) -> None:
        self._document, self._loss = document, loss
        self._steps = list(document.get("trajectory") or ())
        info = document.get("info") or {}
        stats = info.get("model_stats") or {}
        if stats and not stats.get("instance_cost"):
            loss.note("cost_zero", stats, "the file counts no cost: no event says that it was free")
        rest = without(document, "history", "trajectory", "info")
        self._conversation = Conversation(
            "swe-agent",
            content_key(document, options),
            options,
            loss,
            context={"env": {"name": document["environment"]}} if document.get("environment") else {},
            ext={
                "swe_agent": {
                    **rest,
                    "steps": "trajectory" in document,
                    "info": without(info, "exit_status", "submission"),
                }
            },
        )

    def drafts(self) -> list[Item]:
        conversation, steps = self._conversation, iter(self._steps)
        acted: dict[str, Any] = {}
        for raw in self._document["history"]:
            kept = {"swe_agent": without(raw, *_SPOKEN)}
            spoken = messages.from_openai({key: raw[key] for key in _SPOKEN if key in raw})
            match raw["role"]:
                case "assistant":
                    call = conversation.assistant(spoken, ext=kept)
                    acted = next(steps, {})
                    if not raw.get("tool_calls") and acted:
                        self._command(call, acted)
                case "tool":
                    self._result(raw, acted)
                case "user" if conversation.step == 0 and not raw.get("is_demo"):
                    conversation.user(spoken, ext=kept)
                case _:
                    conversation.given({**spoken, "ext": {**spoken.get("ext", {}), **kept}})
        for step in steps:
            self._loss.lose(
                "trajectory[] (without an answer)", step.get("action"), "the history has no answer that did it"
            )
        self._end()
        return conversation.drafts()

    def _command(self, call: str, step: dict[str, Any]) -> None:
        """A command written in the answer's text; its observation comes back as the next message."""
        action = str(step.get("action", ""))
        self._conversation.operation(
            _kind(action),
            (action.split() or ["none"])[0],
            parent_id=call,
            causes=[{"id": call, "rel": "decided_by"}],
            a={"arguments": {"command": action}},
            y={"status": "ok", "result": step.get("observation")},
            **self._details(step, "action", "observation"),
        )

    def _result(self, raw: dict[str, Any], step: dict[str, Any]) -> None:
        ids = raw.get("tool_call_ids") or [raw.get("tool_call_id")]
        details = self._details(step)
        details["ext"]["swe_agent"]["message"] = without(raw, "role", "content")
        self._conversation.tool(ids[0], raw["content"], kind=_kind(str(step.get("action", ""))), **details)

    def _details(self, step: dict[str, Any], *told: str) -> dict[str, Any]:
        for key in _COPIED:
            if key in step:
                self._loss.lose(f"trajectory[].{key}", None, "a copy of the prompt, which the call's record has")
        fields: dict[str, Any] = {"ext": {"swe_agent": {"step": without(step, *_COPIED, *told)}}}
        if isinstance(step.get("execution_time"), int | float):
            fields["duration_ms"] = step["execution_time"] * 1000
        return fields

    def _end(self) -> None:
        info = self._document.get("info") or {}
        if info.get("exit_status"):
            submitted = str(info["exit_status"]).startswith("submitted")
            result = {"submission": info["submission"]} if info.get("submission") is not None else {}
            self._conversation.outcome(
                str(info["exit_status"]),
                y={"status": "ok" if submitted else "error", **({"result": result} if result else {})},
            )


def _kind(action: str) -> str:
    return "file_op" if action.split()[:1] and action.split()[0] in _FILE_COMMANDS else "code_exec"


def _document(view: TrajectoryView, loss: LossReport) -> dict[str, Any]:
    kept = view.ext("swe_agent")
    transcript = view.transcript()
    steps: dict[str, Record] = {}
    for event in view.events:
        if event.get("parent_id") and "name" in event.get("a", {}):
            if event["parent_id"] in steps:
                loss.lose(f"event.{event['kind']} (after an answer's first)", event["id"], "a step is one action")
            steps.setdefault(event["parent_id"], event)
    told = {said.event["id"] for said in transcript if said.event is not None} | {step["id"] for step in steps.values()}
    info = dict(kept.pop("info", {}))
    told_steps = kept.pop("steps", True)
    for event in view.events:
        if event["kind"] == "outcome":
            result = event["y"].get("result")
            info |= {"exit_status": event["y"].get("reason"), **(result if isinstance(result, dict) else {})}
        elif event["id"] not in told:
            loss.lose(f"event.{event['kind']}", event["id"], "the history is one line of messages")
    calls = [said.event for said in transcript if said.event is not None and said.event["kind"] == "llm_call"]
    document = {
        "history": [_message(said, loss) for said in transcript],
        "trajectory": [_step(call, steps[call["id"]]) for call in calls if told_steps and call["id"] in steps],
        "info": info,
        **kept,
    }
    return {key: value for key, value in document.items() if value or key == "history"}


def _message(said: Said, loss: LossReport) -> dict[str, Any]:
    message = show(said, loss)
    if message["role"] == "tool":
        kept = (said.event or {}).get("ext", {}).get("swe_agent", {}).get("message", {})
        return {"role": "tool", "content": message["content"], "tool_call_ids": [message["tool_call_id"]], **kept}
    kept = said.message.get("ext", {}).get("swe_agent") or (said.event or {}).get("ext", {}).get("swe_agent", {})
    message.pop("swe_agent", None)
    return {**message, **kept}


def _step(call: Record, event: Record) -> dict[str, Any]:
    answer = messages.text(call["a"]["messages"][0])
    arguments = event["a"].get("arguments")
    command = arguments.get("command") if isinstance(arguments, dict) else None
    return {
        "action": command if isinstance(command, str) else f"{event['a']['name']} {text_of(arguments)}",
        "observation": event["y"].get("result"),
        "response": answer,
        "thought": answer,
        **event.get("ext", {}).get("swe_agent", {}).get("step", {}),
    }
