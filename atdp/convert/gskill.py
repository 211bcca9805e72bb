"""Coding runs judged by their tests, JSON lines: outcome only, no steps (gepa-ai/gepa, gskill evaluation)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

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
from atdp.convert.conversation import Conversation
from atdp.convert.loss import LossReport
from atdp.convert.view import trajectories

_PASSED = "test_passed"
_TOLD = ("instance_id", "test_passed", "patch", "claude_output", "duration_seconds", "error", "test_output_tail")


class GSkill(Format):
    """`{instance_id, claude_success, test_passed, patch, claude_output, duration_seconds, error, test_output_tail}`."""

    name = "gskill"
    title = "gskill coding evaluation (JSON lines, outcome only)"
    carries = frozenset(
        {"trajectory.task.id", "trajectory.ext", "event.kind", "event.y", "event.duration_ms", "event.ext.gskill",
         "event.turn", "event.step", "annotation.kind", "annotation.name", "annotation.targets", "annotation.source",
         "annotation.value", "annotation.explanation", "annotation.scale", "annotation.optimizable"}
    )  # fmt: skip

    def detect(self, document: Any) -> bool:
        return isinstance(document, dict) and {"instance_id", "test_passed", "patch"} <= document.keys()

    def has_annotation(self, annotation: Record) -> bool:
        return annotation["kind"] == "reward" and annotation["name"] == _PASSED

    def items(self, source: Source, options: ReadOptions, loss: LossReport) -> Iterator[Item]:
        for _, line in json_lines(source):
            loss.note("steps", line["instance_id"], "the run's steps were not recorded, only how it ended")
            claimed = line.get("claude_success")
            if claimed is not None and claimed != line["test_passed"]:
                loss.note("claimed_success", line["instance_id"], "the agent's own word is no reward: the tests' is")
            conversation = Conversation(
                self.name, source_key([options.agent, line]), options, loss, task={"id": line["instance_id"]}
            )
            failed = line.get("error")
            outcome: dict[str, Any] = {
                "status": "error" if failed else "ok",
                "result": without({"patch": line["patch"], "summary": line.get("claude_output")}),
            }
            if failed:
                outcome["error"] = {"type": "agent_error", "message": failed}
            conversation.outcome(
                "error" if failed else "completed",
                y=outcome,
                duration_ms=line["duration_seconds"] * 1000,
                ext={"gskill": {**without(line, *_TOLD), "duration_seconds": line["duration_seconds"]}},
            )
            conversation.annotate(
                "reward", _PASSED, {"kind": "environment", "id": "tests"}, value=float(line["test_passed"]),
                scale={"min": 0, "max": 1, "higher_is_better": True}, optimizable=True,
                **({"explanation": line["test_output_tail"]} if line.get("test_output_tail") else {}),
            )  # fmt: skip
            yield from conversation.drafts()

    def lines(self, records: Iterable[Record], content: ContentOf, loss: LossReport) -> Iterator[bytes]:
        for view in trajectories(records):
            ended = next((e for e in view.events if e["kind"] == "outcome"), None)
            for event in view.events:
                if event is not ended:
                    loss.lose(f"event.{event['kind']}", event["id"], "only how a run ended has a place")
            if ended is None:
                loss.lose("trajectory (no outcome)", view.id, "a line is an outcome")
                continue
            loss.items += 1
            passed = next((a for a in view.rewards() if a["name"] == _PASSED), {})
            result = ended["y"].get("result")
            result = result if isinstance(result, dict) else {"summary": result}
            yield json_line(
                {
                    "instance_id": view.header.get("task", {}).get("id"),
                    "test_passed": passed.get("value") == 1,
                    "patch": result.get("patch", ""),
                    "claude_output": result.get("summary"),
                    "duration_seconds": ended.get("duration_ms", 0) / 1000,
                    "error": ended["y"].get("error", {}).get("message"),
                    "test_output_tail": passed.get("explanation"),
                    **ended.get("ext", {}).get("gskill", {}),
                }
            )
