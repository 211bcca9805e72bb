"""tau-bench results: one JSON array of runs `{task_id, reward, info, traj, trial}` (sierra-research/tau-bench)."""

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
from atdp.convert.conversation import Conversation, present
from atdp.convert.loss import LossReport
from atdp.convert.transcripts import TRANSCRIPT, report_off_line, show
from atdp.convert.view import trajectories

REWARD = "reward"
"""The environment's verdict on a run, in tau-bench's word."""


class Tau(Format):
    """tau-bench: messages as OpenAI's API has them, arguments as text, no times, no usage."""

    name = "tau-bench"
    title = "tau-bench results (JSON array of runs)"
    carries = TRANSCRIPT | {"trajectory.task.id", "trajectory.task.trial", "trajectory.ext.tau", "annotation.ext.tau"}

    def detect(self, document: Any) -> bool:
        first = document[0] if isinstance(document, list) and document else None
        return isinstance(first, dict) and {"traj", "reward", "task_id"} <= first.keys()

    def items(self, source: Source, options: ReadOptions, loss: LossReport) -> Iterator[Item]:
        runs = json_document(source)
        if not isinstance(runs, list):
            raise ConversionError("tau-bench results are a JSON array of runs")
        for run in runs:
            yield from _read(run, options, loss).drafts()

    def lines(self, records: Iterable[Record], content: ContentOf, loss: LossReport) -> Iterator[bytes]:
        runs = []
        for view in trajectories(records):
            loss.items += 1
            kept = view.ext("tau")
            transcript = view.transcript()
            report_off_line(view, transcript, loss)
            verdict = next((a for a in view.rewards() if self.has_annotation(a)), {})
            task = view.header.get("task", {})
            info = {**kept.get("info", {})}
            if (reward_info := verdict.get("ext", {}).get("tau")) is not None:
                info["reward_info"] = reward_info
            runs.append(
                {
                    "task_id": kept.get("task_id", task.get("id")),
                    "reward": verdict.get("value"),
                    "info": info,
                    "traj": [show(said, loss, named_results=True) for said in transcript],
                    "trial": task.get("trial"),
                }
            )
        yield orjson.dumps(runs)

    def has_annotation(self, annotation: Record) -> bool:
        return annotation["kind"] == "reward" and annotation["name"] == REWARD


def _read(run: dict[str, Any], options: ReadOptions, loss: LossReport) -> Conversation:
    info = run.get("info") or {}
    kept = without(info, "reward_info")
    conversation = Conversation(
        "tau-bench",
        content_key(run, options),
        options,
        loss,
        task=present(id=str(run["task_id"]), trial=run.get("trial")),
        ext={"tau": {"task_id": run["task_id"], "info": kept}},
    )
    for raw in run["traj"]:
        add_openai(conversation, raw)
    if run.get("reward") is not None:
        reward_info = info.get("reward_info")
        conversation.annotate(
            "reward",
            REWARD,
            {"kind": "environment", "id": "tau-bench"},
            value=float(run["reward"]),
            scale={"min": 0, "max": 1, "higher_is_better": True},
            optimizable=True,
            **present(ext={"tau": reward_info} if reward_info else None),
        )
    return conversation


def add_openai(conversation: Conversation, raw: dict[str, Any]) -> str | None:
    """Take one chat message, in OpenAI's form, into a conversation; gives its event's id."""
    match raw.get("role"):
        case "assistant" if raw.get("weight") == 0:
            conversation.given(messages.from_openai(raw))  # OpenAI's mark for what is not to be learnt from
            return None
        case "assistant":
            return conversation.assistant(messages.from_openai(raw))
        case "tool":
            rest = without(raw, "role", "content", "tool_call_id", "name")
            for key, value in rest.items():
                conversation.loss.lose(f"tool message.{key}", value, "a result is its text")
            return conversation.tool(raw.get("tool_call_id"), raw.get("content"), raw.get("name"))
        case "user":
            return conversation.user(messages.from_openai(raw))
        case _:
            conversation.given(messages.from_openai(raw))
            return None
