"""RLDS-style episodes, JSON lines: `{steps: [{observation, action, reward, is_first, is_last, is_terminal}]}`.

The words are those of google-research/rlds; an episode is one line instead of a TFRecord. Conversations are written
with `{messages}` as observation and action; of any other environment an action is an operation, an observation its
state.
"""

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
    content_key,
    json_line,
    json_lines,
    without,
)
from atdp.convert.conversation import Conversation, present
from atdp.convert.loss import LossReport
from atdp.convert.tau import add_openai
from atdp.convert.transcripts import TRANSCRIPT, report_off_line, show
from atdp.convert.view import TrajectoryView, trajectories

REWARD = "reward"
ACTION = "x.rlds_step"
_TOLD = ("observation", "action", "reward", "is_first", "is_last", "is_terminal")


class Rlds(Format):
    """One episode a line."""

    name = "rlds"
    title = "RLDS-style episodes (JSON lines)"
    carries = TRANSCRIPT | {
        "trajectory.ext.rlds", "event.ext.rlds", "event.o.state", "event.y.reason", "event.y.status",
        "trajectory.task.id", "trajectory.task.group_id", "trajectory.task.trial",
    }  # fmt: skip

    def detect(self, document: Any) -> bool:
        steps = document.get("steps") if isinstance(document, dict) else None
        return isinstance(steps, list) and bool(steps) and {"observation", "action"} <= steps[0].keys()

    def has_annotation(self, annotation: Record) -> bool:
        return annotation["kind"] == "reward" and annotation.get("optimizable", True) is True

    def items(self, source: Source, options: ReadOptions, loss: LossReport) -> Iterator[Item]:
        for _, episode in json_lines(source):
            yield from _read(episode, options, loss)

    def lines(self, records: Iterable[Record], content: ContentOf, loss: LossReport) -> Iterator[bytes]:
        for view in trajectories(records):
            loss.items += 1
            operations = [event for event in view.events if event["kind"] == ACTION]
            steps = _environment_steps(operations) if operations else _spoken_steps(view, loss)
            if not steps:
                loss.lose("trajectory (no step)", view.id, "an episode has steps")
                continue
            _reward(view, steps, operations or view.calls())
            ended = next((e for e in view.events if e["kind"] == "outcome"), None)
            for index, step in enumerate(steps):
                step["is_first"], step["is_last"] = index == 0, index == len(steps) - 1
                step["is_terminal"] = step["is_last"] and ended is not None and ended["y"]["status"] != "truncated"
                step.pop("id")
            task = {f"task_{key}": value for key, value in view.header.get("task", {}).items()}
            yield json_line({**task, **view.ext("rlds"), "steps": steps})


def _read(episode: dict[str, Any], options: ReadOptions, loss: LossReport) -> list[Item]:
    task = {
        key.removeprefix("task_"): episode[key] for key in ("task_id", "task_group_id", "task_trial") if key in episode
    }
    rest = without(episode, "steps", "task_id", "task_group_id", "task_trial")
    conversation = Conversation(
        "rlds",
        content_key(episode, options),
        options,
        loss,
        **present(task=task, ext={"rlds": rest} if rest else None),
    )
    last: dict[str, Any] = {}
    for step in episode["steps"]:
        last = step
        kept = {"rlds": extra} if (extra := without(step, *_TOLD)) else {}
        observation, action = step["observation"], step["action"]
        if _spoken(observation) and _spoken(action):
            for raw in observation["messages"]:
                if raw.get("role") == "assistant":  # observed, so not the agent's action
                    conversation.given(messages.from_openai(raw))
                else:
                    add_openai(conversation, raw)
            for extra_message in action["messages"][1:]:
                loss.lose("action.messages (after the first)", extra_message, "an answer is one message")
            event = conversation.assistant(messages.from_openai(action["messages"][0]), ext=kept)
        else:
            conversation.step += 1
            event = conversation.operation(
                ACTION, "action", a={"arguments": action}, o={"state": observation}, ext=kept
            )
        if step.get("reward") is not None:
            conversation.annotate(
                "reward", REWARD, {"kind": "environment"}, event_id=event, value=float(step["reward"]), optimizable=True
            )
    if last.get("is_terminal"):
        conversation.outcome("terminal")
    elif last.get("is_last"):
        conversation.outcome("truncated", y={"status": "truncated"})
    return conversation.drafts()


def _spoken(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == {"messages"} and isinstance(value["messages"], list)


def _environment_steps(operations: list[Record]) -> list[dict[str, Any]]:
    return [
        {
            "id": event["id"],
            "observation": event.get("o", {}).get("state"),
            "action": event["a"].get("arguments"),
            **event.get("ext", {}).get("rlds", {}),
        }
        for event in operations
    ]


def _spoken_steps(view: TrajectoryView, loss: LossReport) -> list[dict[str, Any]]:
    transcript = view.transcript()
    report_off_line(view, transcript, loss)
    steps: list[dict[str, Any]] = []
    observed: list[dict[str, Any]] = []
    for said in transcript:
        if said.message["role"] == "assistant" and said.event is not None:
            steps.append(
                {
                    "id": said.event["id"],
                    "observation": {"messages": observed},
                    "action": {"messages": [show(said, loss)]},
                    **said.event.get("ext", {}).get("rlds", {}),
                }
            )
            observed = []
        else:
            observed.append(show(said, loss))
    for message in observed:
        loss.lose("message (after the last answer)", message, "a step ends with an action")
    return steps


def _reward(view: TrajectoryView, steps: list[dict[str, Any]], events: list[Record]) -> None:
    """A step's reward is the sum of what was given for it; what was given for the whole goes to the last step."""
    by_id = {step["id"]: step for step in steps}
    for annotation in view.rewards():
        if annotation.get("optimizable", True) is not True or annotation.get("value") is None:
            continue
        step = by_id.get(annotation["targets"][0].get("event_id", ""), steps[-1])
        step["reward"] = step.get("reward", 0.0) + float(annotation["value"])
