"""From a simulation to a trajectory."""

from __future__ import annotations

import json
from typing import Any

from atdp import messages
from atdp.convert.base import Item, ReadOptions, source_key, without
from atdp.convert.conversation import Conversation, present
from atdp.convert.loss import LossReport
from atdp.convert.times import utc

REWARD = "reward"
FORMAT = "tau2-bench"
_CALL_ENDINGS = {"user_stop": "ok", "agent_stop": "ok", "max_steps": "truncated", "timeout": "timeout"}
"""Statuses of how a run ended; every other reason is an error of the agent, the user or the environment."""
_SPOKEN = ("role", "content", "tool_calls", "usage", "raw_data", "cost", "reasoning")


class Run:
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
            time=utc(simulation.get("start_time"), loss),
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
            conversation.now = utc(raw.get("timestamp"), self._loss) or conversation.now
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
        conversation.now = utc(simulation.get("end_time"), self._loss) or conversation.now
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
