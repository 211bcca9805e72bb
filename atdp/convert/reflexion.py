"""Reflexion's programming runs (noahshinn/reflexion), JSON lines: a task, what was remembered, the solution."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from atdp import messages
from atdp.convert.base import (
    ContentOf,
    Format,
    Item,
    ReadOptions,
    Record,
    Source,
    json_line,
    json_lines,
    source_key,
    without,
)
from atdp.convert.conversation import Conversation, text_message
from atdp.convert.loss import LossReport
from atdp.convert.transcripts import TRANSCRIPT
from atdp.convert.view import trajectories

_SOLVED = "is_solved"
_MEMORY = "reflection"
_TOLD = ("prompt", "solution", "is_solved", "reflections", "task_id")


class Reflexion(Format):
    """`{task_id, prompt, solution, is_solved, reflections?}`; a reflection is a memory write after a failed attempt."""

    name = "reflexion"
    title = "Reflexion programming runs (JSON lines)"
    carries = TRANSCRIPT | {"trajectory.task.id", "trajectory.ext.reflexion"}

    def detect(self, document: Any) -> bool:
        return isinstance(document, dict) and {"prompt", "solution", "is_solved", "task_id"} <= document.keys()

    def has_annotation(self, annotation: Record) -> bool:
        return annotation["kind"] == "reward" and annotation["name"] == _SOLVED

    def items(self, source: Source, options: ReadOptions, loss: LossReport) -> Iterator[Item]:
        for _, line in json_lines(source):
            kept = {**without(line, *_TOLD), "reflected": "reflections" in line}
            conversation = Conversation(
                self.name,
                source_key([options.agent, line]),
                options,
                loss,
                task={"id": str(line["task_id"])},
                ext={"reflexion": kept},
            )
            conversation.user(text_message("user", line["prompt"]))
            causes = []
            for text in line.get("reflections") or ():
                conversation.loss.note(
                    "attempts", line["task_id"], "the failed attempts reflected on were not recorded"
                )
                write = conversation.operation("memory_write", _MEMORY, a={"arguments": {"text": text}})
                causes.append({"id": write, "rel": "input"})
            conversation.assistant(
                text_message("assistant", line["solution"]),
                **({"causes": [*conversation.inputs(), *causes]} if causes else {}),
            )
            conversation.annotate(
                "reward", _SOLVED, {"kind": "environment", "id": "tests"}, value=float(line["is_solved"]),
                scale={"min": 0, "max": 1, "higher_is_better": True}, optimizable=True,
            )  # fmt: skip
            yield from conversation.drafts()

    def lines(self, records: Iterable[Record], content: ContentOf, loss: LossReport) -> Iterator[bytes]:
        for view in trajectories(records):
            kept = view.ext("reflexion")
            asked = [e for e in view.events if e["kind"] == "user_message"]
            calls = [call for call in view.calls() if call.get("a", {}).get("messages")]
            if not asked or not calls:
                loss.lose("trajectory (no task and solution)", view.id, "a run is a prompt and a solution")
                continue
            loss.items += 1
            for event in [*asked[1:], *calls[:-1]]:
                loss.lose(f"event.{event['kind']} (in between)", event["id"], "a run is a prompt and a solution")
            line = {
                "task_id": view.header.get("task", {}).get("id"),
                "prompt": messages.text(asked[0]["o"]["messages"][0]),
                "solution": messages.text(calls[-1]["a"]["messages"][0]),
                "is_solved": any(a["value"] == 1 for a in view.rewards() if a["name"] == _SOLVED),
            }
            reflections = [e["a"]["arguments"]["text"] for e in view.events if e.get("a", {}).get("name") == _MEMORY]
            if kept.pop("reflected", bool(reflections)):
                line["reflections"] = reflections
            yield json_line({**line, **kept})
