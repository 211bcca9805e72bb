"""Writing what is a list of messages: shared by all formats that are one."""

from __future__ import annotations

import json
from typing import Any

from atdp import messages
from atdp.convert.loss import LossReport
from atdp.convert.view import Said, TrajectoryView

TRANSCRIPT = frozenset(
    {"event.kind", "event.turn", "event.step", "event.causes", "event.parent_id", "event.actor", "event.o.messages",
     "event.o.system_instructions", "event.a.messages", "event.a.name", "event.a.call_id", "event.a.arguments",
     "event.y.result", "annotation.kind", "annotation.name", "annotation.targets", "annotation.source",
     "annotation.value", "annotation.scale", "annotation.optimizable", "trajectory.ext.time_absent"}
)  # fmt: skip
"""What a list of messages (and a reward beside it) says of a record; kind, turn, step and causes follow from it."""

_PLAIN_KINDS = ("llm_call", "tool_call", "user_message")
_TEXT_PARTS = frozenset({"text", "tool_call", "tool_call_response", "reasoning"})


def openai(message: dict[str, Any], loss: LossReport | None = None) -> dict[str, Any]:
    """A message as OpenAI's chat API has it; parts it has no form for are left out, and counted."""
    parts = [part for part in message["parts"] if _openai_part(part)]
    if loss is not None:
        for part in message["parts"]:
            if not _openai_part(part):
                loss.lose(f"part.{part['type']}", part.get("content"), "the format has no such part")
    ext = message.get("ext", {})
    if any(part["type"] not in _TEXT_PARTS for part in parts):
        ext = {**ext, "content": "array"}
    return messages.to_openai({**message, "parts": parts, "ext": ext})


def show(said: Said, loss: LossReport, named_results: bool = False) -> dict[str, Any]:
    """A message of a transcript as OpenAI's chat API has it."""
    message = openai(said.message, loss)
    name = (said.event or {}).get("a", {}).get("name")
    if named_results and message["role"] == "tool" and name is not None:
        message["name"] = name
    return message


def text_of(value: Any) -> str:
    """A result as the text a model reads."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def report_off_line(view: TrajectoryView, transcript: list[Said], loss: LossReport) -> None:
    """Count the events that a single line of messages has no place for."""
    told = {said.event["id"] for said in transcript if said.event is not None}
    for event in view.events:
        if event["id"] in told and event["kind"] not in _PLAIN_KINDS:
            loss.lose("event.kind", event["kind"], "every operation is a tool call there")
        if event["id"] not in told and event["kind"] not in ("outcome",):
            what = "off the main line" if event["kind"] in ("llm_call", "user_message") else "not shown to the model"
            loss.lose(f"event.{event['kind']} ({what})", event["id"], "the format is one line of messages")


def _openai_part(part: dict[str, Any]) -> bool:
    return part["type"] in _TEXT_PARTS or part["type"].startswith("x.openai")
