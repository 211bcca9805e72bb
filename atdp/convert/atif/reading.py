"""From an ATIF document to a trajectory."""

from __future__ import annotations

from typing import Any

from atdp.convert.atif.metrics import METRICS
from atdp.convert.base import Item, ReadOptions, content_key, without
from atdp.convert.conversation import Conversation, present
from atdp.convert.loss import LossReport
from atdp.convert.times import utc

_STEP = ("step_id", "timestamp", "source", "message", "reasoning_content", "tool_calls", "observation", "metrics")
_TRAJECTORY = (
    "schema_version",
    "session_id",
    "trajectory_id",
    "agent",
    "steps",
    "final_metrics",
    "subagent_trajectories",
)


class Run:
    """Reading one trajectory."""

    def __init__(self, document: dict[str, Any], options: ReadOptions, loss: LossReport) -> None:
        self._document, self._loss = document, loss
        agent = document.get("agent") or {}
        self._ours = (document.get("extra") or {}).get("atdp") or {}
        extra = without(document.get("extra") or {}, "atdp")
        kept = {**without(document, *_TRAJECTORY, "extra"), **({"extra": extra} if extra else {})}
        if agent.get("extra"):
            kept["agent_extra"] = agent["extra"]
        times = [step["timestamp"] for step in document["steps"] if step.get("timestamp")]
        header: dict[str, Any] = {"agent": {"name": options.agent, **_some("version", agent.get("version"))}}
        if agent.get("name") and agent["name"] != options.agent:
            kept["agent_name"] = agent["name"]
        if document.get("session_id"):
            header["session_id"] = document["session_id"]
        if document.get("trajectory_id"):
            kept["trajectory_id"] = document["trajectory_id"]
        if self._ours.get("task"):
            header["task"] = self._ours["task"]
        if kept:
            header["ext"] = {"atif": kept}
        model = agent.get("model_name")
        self._conversation = Conversation(
            "atif",
            content_key(document, options),
            options,
            loss,
            time=utc(self._ours.get("time") or (times[0] if times else None), loss),
            context={"model": {"name": model}} if model else {},
            tools=agent.get("tool_definitions"),
            **header,
        )

    def drafts(self) -> list[Item]:
        events: dict[int, str] = {}
        for step in self._document["steps"]:
            self._conversation.now = utc(step.get("timestamp"), self._loss) or self._conversation.now
            kept = without(step, *_STEP)
            ext = {"ext": {"atif": kept}} if kept else {}
            match step["source"]:
                case "agent" if step.get("llm_call_count") == 0 and not step.get("tool_calls"):
                    self._conversation.given(_message("assistant", step["message"]))
                case "agent":
                    events[step["step_id"]] = self._agent(step, ext)
                case "user":
                    events[step["step_id"]] = self._conversation.user(_message("user", step["message"]), **ext)
                case _:
                    self._conversation.given(_message("system", step["message"]))
        for reward in self._ours.get("rewards", ()):
            self._reward(reward, events)
        return self._conversation.drafts()

    def _agent(self, step: dict[str, Any], ext: dict[str, Any]) -> str:
        spoken = _message("assistant", step["message"])
        if step.get("reasoning_content"):
            reasoning = {"type": "reasoning", "content": step["reasoning_content"], "name": "reasoning_content"}
            spoken["parts"].insert(0, reasoning)
        for call in step.get("tool_calls") or ():
            part = {"type": "tool_call", "id": call["tool_call_id"], "name": call["function_name"]}
            spoken["parts"].append({**part, "arguments": call["arguments"]})
        fields: dict[str, Any] = {}
        metrics = step.get("metrics") or {}
        for name, path in METRICS.items():
            if metrics.get(name) is not None:
                at = fields
                for key in path[:-1]:
                    at = at.setdefault(key, {})
                at[path[-1]] = metrics[name]
        tokens = sum(metrics.get(key) or 0 for key in ("prompt_tokens", "completion_tokens"))
        if metrics.get("cost_usd") == 0 and tokens:
            self._loss.note(
                "cost_zero", f"{tokens} tokens", "a cost of 0 though tokens were used is not a cost: left out"
            )
            del fields["m"]["cost_usd"]
        if metrics.get("extra"):
            ext = {"ext": {"atif": {**ext.get("ext", {}).get("atif", {}), "metrics_extra": metrics["extra"]}}}
        event = self._conversation.assistant(spoken, **fields, **ext)
        for result in ((step.get("observation") or {}).get("results")) or ():
            kept = without(result, "source_call_id", "content")
            self._conversation.tool(
                result.get("source_call_id"),
                result.get("content"),
                **present(ext={"atif": kept} if kept else None),
            )
        return event

    def _reward(self, reward: dict[str, Any], events: dict[int, str]) -> None:
        fields = without(reward, "name", "source", "step_id")
        self._conversation.annotate(
            "reward", reward["name"], reward["source"], event_id=events.get(reward.get("step_id", 0)), **fields
        )


def _message(role: str, content: Any) -> dict[str, Any]:
    if isinstance(content, str):
        return {"role": role, "parts": [{"type": "text", "content": content}] if content or role != "assistant" else []}
    parts = [
        {"type": "text", "content": part["text"]} if part.get("type") == "text" else {"type": "x.atif", "content": part}
        for part in content or ()
    ]
    return {"role": role, "parts": parts}


def _some(key: str, value: Any) -> dict[str, Any]:
    return {} if value is None else {key: value}
