"""InterCode results (princeton-nlp/intercode): one JSON object of runs, each actions, observations and rewards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import orjson

from atdp import messages
from atdp.convert.base import ContentOf, Format, Item, ReadOptions, Record, Source, json_document, source_key
from atdp.convert.conversation import Conversation, text_message
from atdp.convert.loss import LossReport
from atdp.convert.transcripts import TRANSCRIPT
from atdp.convert.view import TrajectoryView, trajectories

_STEP = "step_reward"
_BEST = "max_reward"
_LANGUAGES = {"ic_python": "python", "ic_bash": "bash", "ic_sql": "sql", "ic_ctf": "bash"}


class InterCode(Format):
    """A query, then code after code, each with what it printed and a reward of its own: process rewards."""

    name = "intercode"
    title = "InterCode results (JSON object of runs)"
    carries = TRANSCRIPT | {"trajectory.task.id", "trajectory.ext.intercode", "event.ext.intercode", "context.env"}

    def detect(self, document: Any) -> bool:
        first = next(iter(document.values()), None) if isinstance(document, dict) else None
        return isinstance(first, dict) and {"query", "turn_history", "summary"} <= first.keys()

    def has_annotation(self, annotation: Record) -> bool:
        return annotation["kind"] == "reward" and annotation["name"] in (_STEP, _BEST)

    def items(self, source: Source, options: ReadOptions, loss: LossReport) -> Iterator[Item]:
        document = json_document(source)
        # runs do not say which model made them: those of two files must not become one
        file = source_key(document)
        for key, run in document.items():
            yield from _read(key, run, file, options, loss)

    def lines(self, records: Iterable[Record], content: ContentOf, loss: LossReport) -> Iterator[bytes]:
        runs = {}
        for view in trajectories(records):
            loss.items += 1
            kept = view.ext("intercode")
            runs[str(kept.get("key", view.id))] = _written(view, kept)
        yield orjson.dumps(runs)


def _read(key: str, run: dict[str, Any], file: str, options: ReadOptions, loss: LossReport) -> list[Item]:
    history = run["turn_history"]
    conversation = Conversation(
        "intercode",
        source_key([options.agent, file, key, run]),
        options,
        loss,
        context={"env": {"name": run.get("environment"), "dataset": run.get("dataset")}},
        task={"id": str(run["task_id"])},
        ext={
            "intercode": {
                "key": key,
                **{k: run[k] for k in ("environment", "dataset", "task_id", "summary") if k in run},
            }
        },
    )
    loss.note("answers", key, "the model's words were not recorded, only the code in them")
    conversation.user(text_message("user", run["query"]))
    language = _LANGUAGES.get(str(run.get("environment")), "code")
    steps = zip(history["actions"], history["observations"], history["rewards"], history["valid_action"], strict=True)
    for step, (action, observation, reward, valid) in enumerate(steps, start=1):
        conversation.step = step
        failed = isinstance(observation, str) and observation.startswith("Error executing action")
        event = conversation.operation(
            "code_exec",
            language,
            a={"arguments": {"code": action}},
            y={"status": "error" if failed else "ok", "result": observation},
            ext={"intercode": {"valid_action": valid}} if valid is not None else {},
        )
        conversation.annotate(
            "reward", _STEP, {"kind": "environment", "id": "intercode"}, event_id=event, value=float(reward),
            scale={"min": 0, "max": 1, "higher_is_better": True}, optimizable=True,
        )  # fmt: skip
    conversation.annotate(
        "reward", _BEST, {"kind": "environment", "id": "intercode"}, value=float(run["summary"]["max_reward"]),
        scale={"min": 0, "max": 1, "higher_is_better": True}, optimizable=True,
    )  # fmt: skip
    return conversation.drafts()


def _written(view: TrajectoryView, kept: dict[str, Any]) -> dict[str, Any]:
    steps = [event for event in view.events if event["kind"] == "code_exec"]
    rewards = {a["targets"][0].get("event_id"): a["value"] for a in view.rewards() if a["name"] == _STEP}
    asked = next((messages.text(e["o"]["messages"][0]) for e in view.events if e["kind"] == "user_message"), "")
    return {
        "task_id": view.header.get("task", {}).get("id"),
        "query": asked,
        "turn_history": {
            "actions": [step["a"]["arguments"]["code"] for step in steps],
            "observations": [step["y"].get("result") for step in steps],
            "rewards": [rewards.get(step["id"], 0.0) for step in steps],
            "valid_action": [step.get("ext", {}).get("intercode", {}).get("valid_action") for step in steps],
        },
        "summary": {},
        **{key: value for key, value in kept.items() if key != "key"},
    }
