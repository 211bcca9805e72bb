"""tau2-bench results: one JSON object `{timestamp, info, tasks, simulations}` (sierra-research/tau2-bench).

A run's messages have times, usage and cost; arguments are objects here, while the provider's raw answer has them as the
text the model wrote: that text is kept, the rest of the raw answer is a copy and is not.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import orjson

from atdp import clock, messages
from atdp.convert.base import (
    ContentOf,
    ConversionError,
    Format,
    Item,
    ReadOptions,
    Record,
    Source,
    json_document,
    source_key,
    without,
)
from atdp.convert.conversation import Conversation, present
from atdp.convert.loss import LossReport
from atdp.convert.transcripts import TRANSCRIPT, report_off_line, text_of
from atdp.convert.view import Said, TrajectoryView, trajectories

REWARD = "reward"
FORMAT = "tau2-bench"
_CALL_ENDINGS = {"user_stop": "ok", "agent_stop": "ok", "max_steps": "truncated", "timeout": "timeout"}
"""Statuses of how a run ended; every other reason is an error of the agent, the user or the environment."""
_SPOKEN = ("role", "content", "tool_calls", "usage", "raw_data", "cost", "reasoning")


class Tau2(Format):
    """tau2-bench: simulations with times, usage, cost, per-check rewards."""

    name = FORMAT
    title = "tau2-bench results (JSON object with simulations)"
    carries = TRANSCRIPT | {
        "trajectory.task.id", "trajectory.task.trial", "trajectory.ext.tau2", "annotation.ext.tau2",
        "event.time", "event.ext.tau2", "event.m.usage.input_tokens", "event.m.usage.output_tokens", "event.m.cost_usd",
        "event.y.reason", "event.y.error.type", "event.y.status", "event.a.params", "context.model.name",
        "context.env", "trajectory.time", "annotation.time", "event.y.finish_reason",
    }  # fmt: skip

    def detect(self, document: Any) -> bool:
        return isinstance(document, dict) and {"simulations", "tasks", "info"} <= document.keys()

    def items(self, source: Source, options: ReadOptions, loss: LossReport) -> Iterator[Item]:
        document = json_document(source)
        if not self.detect(document):
            raise ConversionError("tau2-bench results are an object with info, tasks and simulations")
        tasks = {str(task["id"]): task for task in document["tasks"]}
        order = {id: index for index, id in enumerate(tasks)}
        for simulation in document["simulations"]:
            task = tasks.pop(str(simulation["task_id"]), None)
            index = order.get(str(simulation["task_id"]))
            yield from _Run(document, simulation, task, index, options, loss).drafts()
        for id in tasks:
            loss.lose("tasks", id, "a task without a run is no trajectory")

    def has_annotation(self, annotation: Record) -> bool:
        return annotation["kind"] == "reward" and (annotation["name"] == REWARD or "tau2" in annotation.get("ext", {}))

    def lines(self, records: Iterable[Record], content: ContentOf, loss: LossReport) -> Iterator[bytes]:
        head: dict[str, Any] = {}
        tasks: dict[int, Any] = {}
        simulations = []
        for view in trajectories(records):
            loss.items += 1
            kept = view.ext("tau2")
            head = head or {key: kept[key] for key in ("timestamp", "info") if key in kept}
            if "task" in kept:
                tasks[kept.get("task_index", len(tasks))] = kept["task"]
            simulations.append(_simulation(view, kept, loss))
        info = head.get("info", {})
        document = {**head, "info": info, "tasks": [tasks[i] for i in sorted(tasks)], "simulations": simulations}
        yield orjson.dumps(document)


class _Run:
    """Reading one simulation."""

    def __init__(
        self,
        document: dict[str, Any],
        simulation: dict[str, Any],
        task: Any,
        task_index: int | None,
        options: ReadOptions,
        loss: LossReport,
    ) -> None:
        self._simulation, self._loss = simulation, loss
        info = document["info"]
        agent, environment = info.get("agent_info") or {}, info.get("environment_info") or {}
        self._params = agent.get("llm_args") or {}
        true_id = self._true_task({str(known["id"]): known for known in document["tasks"]})
        kept: dict[str, Any] = {
            "timestamp": document.get("timestamp"),
            "info": info,
            "task_id": simulation["task_id"],
            "simulation": without(simulation, "messages", "reward_info", "task_id", "trial"),
        }
        if task is not None:
            kept |= {"task": task, "task_index": task_index}
        self._conversation = Conversation(
            FORMAT,
            str(simulation.get("id") or source_key(simulation)),
            options,
            loss,
            time=_time(simulation.get("start_time"), loss),
            context={
                "model": {"name": agent["llm"]} if agent.get("llm") else {},
                "env": {
                    "name": environment.get("domain_name"),
                    "git_commit": info.get("git_commit"),
                    "policy": source_key(environment.get("policy")),
                },
            },
            task=present(id=true_id, trial=simulation.get("trial")),
            ext={"tau2": without(kept)},
        )

    def drafts(self) -> list[Item]:
        conversation = self._conversation
        for raw in self._simulation["messages"]:
            conversation.now = _time(raw.get("timestamp"), self._loss) or conversation.now
            if raw.get("raw_data"):
                self._loss.lose("messages[].raw_data", None, "the provider's answer is a copy of the message")
            match raw["role"]:
                case "assistant" if conversation.turn == 0 and not raw.get("usage"):
                    greeting = _message(raw)
                    kept = without(raw, *(key for key in _SPOKEN if key != "cost"))
                    conversation.given({**greeting, "ext": {**greeting.get("ext", {}), "tau2": kept}})
                    self._loss.note(
                        "scripted_greeting", raw.get("content"), "no model said it: it is part of the prompt"
                    )
                case "assistant":
                    self._answer(raw)
                case "user":
                    conversation.user(_message(raw), ext=_ext(raw, "usage", "cost"))
                case "tool":
                    self._result(raw)
                case role:
                    self._loss.lose(f"messages[].{role}", raw, "no such role is known")
        self._end()
        return conversation.drafts()

    def _answer(self, raw: dict[str, Any]) -> None:
        usage, cost = raw.get("usage") or {}, raw.get("cost")
        tokens = sum(count for count in usage.values() if isinstance(count, int))
        metadata: dict[str, Any] = {}
        believed: tuple[str, ...] = ("cost",)
        if usage:
            metadata["usage"] = {
                "input_tokens": usage.get("prompt_tokens", 0),
                "output_tokens": usage.get("completion_tokens", 0),
            }
        if cost == 0 and tokens:
            self._loss.note(
                "cost_zero", f"{tokens} tokens", "a cost of 0 though tokens were used is not a cost: left out"
            )
            believed = ()
        elif cost is not None:
            metadata["cost_usd"] = cost
        finish = ((raw.get("raw_data") or {}).get("finish_reason")) or None
        ext = _ext(raw, *() if believed else ("cost",))
        if raw.get("content") == "":
            ext = {"tau2": {**ext.get("tau2", {}), "content": ""}}
        self._conversation.assistant(
            _message(raw),
            m=metadata,
            ext=ext,
            a={"params": self._params} if self._params else {},
            y={"finish_reason": finish} if finish else {},
        )

    def _result(self, raw: dict[str, Any]) -> None:
        if raw.get("requestor") == "user":
            self._conversation.operation(
                "tool_call",
                "user_tool",
                actor={"type": "user"},
                y={"status": "error" if raw.get("error") else "ok", "result": raw.get("content")},
                ext={"tau2": without(raw, "content")},
            )
            return
        outcome: dict[str, Any] = {}
        if raw.get("error"):
            outcome = {"status": "error", "error": {"type": "tool_error"}}
        ext = without(raw, "role", "content", "id", "timestamp", *(("error",) if raw.get("error") else ()))
        self._conversation.tool(raw.get("id"), raw.get("content"), y=outcome, ext={"tau2": {**ext, **_clock(raw)}})

    def _end(self) -> None:
        simulation, conversation = self._simulation, self._conversation
        conversation.now = _time(simulation.get("end_time"), self._loss) or conversation.now
        reason = simulation.get("termination_reason")
        if reason:
            conversation.outcome(str(reason), y={"status": _CALL_ENDINGS.get(str(reason), "error")})
        reward = simulation.get("reward_info")
        if reward and reward.get("reward") is not None:
            source = {"kind": "environment", "id": FORMAT}
            scale = {"min": 0, "max": 1, "higher_is_better": True}
            for check, value in (reward.get("reward_breakdown") or {}).items():
                conversation.annotate(
                    "reward", f"check.{check.lower()}", source, value=float(value), scale=scale, optimizable=False,
                    ext={"tau2": {"part_of": REWARD}},
                )  # fmt: skip
            conversation.annotate(
                "reward", REWARD, source, value=float(reward["reward"]), scale=scale, optimizable=True,
                ext={"tau2": without(reward, "reward")},
            )  # fmt: skip

    def _true_task(self, tasks: dict[str, Any]) -> str:
        """The task that was run.

        The actions that were checked are those of one task; when they are not the named task's, the name is wrong.
        (Actions are compared whole: in the retail domain some are numbered after another task.)
        """
        claimed = str(self._simulation["task_id"])
        checks = ((self._simulation.get("reward_info") or {}).get("action_checks")) or []
        checked = {str(check["action"]["action_id"]) for check in checks if "action" in check}
        if not checked or checked == _actions(tasks.get(claimed)):
            return claimed
        true = next((id for id, task in tasks.items() if _actions(task) == checked), None)
        true = true or sorted(checked)[0].rpartition("_")[0] or claimed
        if true != claimed:
            self._loss.note(
                "task_id", f"{claimed} -> {true}", "the checks are of another task than task_id says: theirs is taken"
            )
        return true


def _actions(task: Any) -> set[str]:
    """The ids of the actions a task's checks look for."""
    criteria = (task or {}).get("evaluation_criteria") or {}
    return {str(action["action_id"]) for action in criteria.get("actions") or ()}


def _simulation(view: TrajectoryView, kept: dict[str, Any], loss: LossReport) -> dict[str, Any]:
    transcript = view.transcript()
    report_off_line(view, transcript, loss)
    verdict = next((a for a in view.rewards() if a["name"] == REWARD), None)
    simulation = {
        "id": view.id,
        "task_id": kept.get("task_id", view.header.get("task", {}).get("id")),
        "trial": view.header.get("task", {}).get("trial"),
        "start_time": view.header["time"],
        "end_time": view.events[-1]["time"] if view.events else view.header["time"],
        "termination_reason": next((e["y"].get("reason") for e in view.events if e["kind"] == "outcome"), None),
        "messages": [_raw(said) for said in transcript if said.message["role"] not in ("system", "developer")],
        **kept.get("simulation", {}),
    }
    if any(said.message["role"] in ("system", "developer") for said in transcript):
        loss.lose("message.system", None, "a simulation has no place for instructions beside the policy")
    if verdict is not None:
        simulation["reward_info"] = {"reward": verdict["value"], **verdict.get("ext", {}).get("tau2", {})}
    return simulation


def _raw(said: Said) -> dict[str, Any]:
    """One message in tau2's form."""
    message, event = said.message, said.event or {}
    kept = event.get("ext", {}).get("tau2", {}) or message.get("ext", {}).get("tau2", {})
    if message["role"] == "tool":
        raw: dict[str, Any] = {
            "role": "tool",
            "content": text_of(message["parts"][0].get("response")),
            "requestor": "assistant",
        }
        raw["id"] = message["parts"][0].get("id")
        if event.get("y", {}).get("status") not in (None, "ok"):
            raw["error"] = True
        return {**raw, **_when(event, kept), **kept}
    raw = {"role": message["role"], "content": messages.text(message) or None}
    calls = messages.tool_calls(message)
    if calls:
        raw["tool_calls"] = [
            {"id": call.get("id"), "name": call["name"], "arguments": call["arguments"], "requestor": message["role"]}
            for call in calls
        ]
    reasoning = [part["content"] for part in message["parts"] if part["type"] == "reasoning"]
    if reasoning:
        raw["reasoning"] = "".join(map(str, reasoning))
    metadata = event.get("m", {})
    if "usage" in metadata:
        usage = metadata["usage"]
        raw["usage"] = {
            "completion_tokens": usage.get("output_tokens"), "prompt_tokens": usage.get("input_tokens")
        }  # fmt: skip
    if "cost_usd" in metadata:
        raw["cost"] = metadata["cost_usd"]
    return {**raw, **_when(event, kept), **kept}


def _message(raw: dict[str, Any]) -> dict[str, Any]:
    """A spoken message in ATDP's form, with the arguments' text as the model wrote it where the raw answer has it."""
    spoken: dict[str, Any] = {"role": raw["role"], "content": raw.get("content")}
    if raw.get("reasoning"):
        spoken["reasoning"] = raw["reasoning"]
    written = {
        call.get("id"): call["function"].get("arguments")
        for call in ((raw.get("raw_data") or {}).get("message") or {}).get("tool_calls") or ()
        if isinstance(call.get("function"), dict)
    }
    if raw.get("tool_calls"):
        spoken["tool_calls"] = [
            {
                "id": call.get("id"),
                "function": {"name": call["name"], "arguments": _arguments(call, written.get(call.get("id")))},
            }
            for call in raw["tool_calls"]
        ]
    return messages.from_openai(spoken)


def _arguments(call: dict[str, Any], written: Any) -> str:
    try:
        if isinstance(written, str) and json.loads(written) == call["arguments"]:
            return written
    except ValueError:
        pass
    return json.dumps(call["arguments"], ensure_ascii=False)


def _ext(raw: dict[str, Any], *also: str) -> dict[str, Any]:
    """What has no field: everything but what was said, and the exact time."""
    keys = [key for key in _SPOKEN if key not in also]
    return {"tau2": {**without(raw, *keys, "timestamp"), **_clock(raw)}}


def _clock(raw: dict[str, Any]) -> dict[str, Any]:
    """The time as the file has it: finer than milliseconds, without a zone."""
    return {"timestamp": raw["timestamp"]} if raw.get("timestamp") else {}


def _when(event: Record, kept: dict[str, Any]) -> dict[str, Any]:
    return {} if "timestamp" in kept or not event or kept else {"timestamp": event["time"]}


def _time(text: Any, loss: LossReport) -> str | None:
    if not isinstance(text, str):
        return None
    try:
        return clock.timestamp(clock.parse(text))
    except ValueError:
        pass
    try:
        moment = clock.timestamp(clock.parse(text + "+00:00"))
    except ValueError:
        loss.note("time_unreadable", text, "the record has the time before it")
        return None
    loss.note("time_zone", text, "the source names no time zone: taken as UTC; the text itself is kept")
    return moment
