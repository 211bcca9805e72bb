"""ATIF, the Agent Trajectory Interchange Format (Harbor, RFC 0001): one JSON object a trajectory.

Written as v1.7: what every reader of 1.5 to 1.8 takes. A step is what one party said; an agent's step holds its calls
and their results. Token ids and metrics have the same names there as here; rewards and events that no step has go to
`extra.atdp`, which ATIF allows on the trajectory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import orjson

from atdp import clock, messages
from atdp.convert.base import (
    ContentOf,
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
from atdp.convert.transcripts import TRANSCRIPT, report_off_line, text_of
from atdp.convert.view import Said, TrajectoryView, trajectories

VERSION = "ATIF-v1.7"
_METRICS = {
    "prompt_tokens": ("m", "usage", "input_tokens"),
    "completion_tokens": ("m", "usage", "output_tokens"),
    "cached_tokens": ("m", "usage", "cache_read_input_tokens"),
    "cost_usd": ("m", "cost_usd"),
    "prompt_token_ids": ("tokens", "prompt_token_ids"),
    "completion_token_ids": ("tokens", "completion_token_ids"),
    "logprobs": ("tokens", "logprobs"),
}
"""ATIF's metric, and where a record has it."""
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


class Atif(Format):
    """A JSON object, or JSON lines of them."""

    name = "atif"
    title = "ATIF trajectories (JSON object, or JSON lines)"
    carries = TRANSCRIPT | {
        "event.time", "event.m.usage.input_tokens", "event.m.usage.output_tokens",
        "event.m.usage.cache_read_input_tokens", "event.m.cost_usd", "event.tokens.prompt_token_ids",
        "event.tokens.completion_token_ids", "event.tokens.logprobs", "event.ext.atif", "event.y.status",
        "trajectory.time", "trajectory.session_id", "trajectory.agent.version", "trajectory.agent.name",
        "trajectory.task", "trajectory.ext.atif", "context.model.name", "context.tools", "annotation.time",
        "annotation.label", "annotation.explanation", "annotation.observed_at", "annotation.confidence",
    }  # fmt: skip

    def detect(self, document: Any) -> bool:
        return isinstance(document, dict) and (
            str(document.get("schema_version", "")).startswith("ATIF-")
            or ({"steps", "agent"} <= document.keys() and all("step_id" in step for step in document["steps"][:1]))
        )

    def has_annotation(self, annotation: Record) -> bool:
        return annotation["kind"] == "reward"

    def items(self, source: Source, options: ReadOptions, loss: LossReport) -> Iterator[Item]:
        for document in _documents(source):
            yield from self._trajectory(document, options, loss)

    def _trajectory(self, document: dict[str, Any], options: ReadOptions, loss: LossReport) -> Iterator[Item]:
        yield from _Run(document, options, loss).drafts()
        for child in document.get("subagent_trajectories") or ():
            loss.note("subagent", child.get("trajectory_id"), "a sub-agent's trajectory is one of its own")
            yield from self._trajectory(child, options, loss)

    def lines(self, records: Iterable[Record], content: ContentOf, loss: LossReport) -> Iterator[bytes]:
        views = list(trajectories(records))
        for view in views:
            document = _document(view, content, loss)
            if document is None:
                loss.lose("trajectory (no step)", view.id, "ATIF needs at least one step")
                continue
            loss.items += 1
            if len(views) == 1:
                yield orjson.dumps(document, option=orjson.OPT_INDENT_2)
            else:
                yield orjson.dumps(document) + b"\n"


class _Run:
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
            time=_time(self._ours.get("time") or (times[0] if times else None), loss),
            context={"model": {"name": model}} if model else {},
            tools=agent.get("tool_definitions"),
            **header,
        )

    def drafts(self) -> list[Item]:
        events: dict[int, str] = {}
        for step in self._document["steps"]:
            self._conversation.now = _time(step.get("timestamp"), self._loss) or self._conversation.now
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
        for name, path in _METRICS.items():
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


def _documents(source: Source) -> Iterator[dict[str, Any]]:
    data = source if isinstance(source, bytes) else b"".join(source)
    try:
        yield orjson.loads(data)
    except ValueError:
        for line in data.splitlines():
            if line.strip():
                yield json_document(line)


def _document(view: TrajectoryView, content: ContentOf, loss: LossReport) -> dict[str, Any] | None:
    kept = view.ext("atif")
    transcript = view.transcript()
    report_off_line(view, transcript, loss)
    steps: list[dict[str, Any]] = []
    places: dict[str, int] = {}
    for said in transcript:
        if said.message["role"] == "tool":
            _observe(steps, said)
            continue
        step = _step(said, loss, view)
        step["step_id"] = len(steps) + 1
        steps.append(step)
        if said.event is not None:
            places[said.event["id"]] = step["step_id"]
    if not steps:
        return None
    model = view.context().get("model", {}).get("name")
    agent = view.header["agent"]
    document: dict[str, Any] = {
        "schema_version": VERSION,
        "session_id": view.header.get("session_id"),
        "trajectory_id": view.id,
        "agent": {
            "name": kept.pop("agent_name", agent["name"]),
            "version": agent.get("version", "unknown"),
            "model_name": model,
            "tool_definitions": view.tools(content) or None,
        },
        "steps": steps,
        "final_metrics": _final(steps),
        **kept,
    }
    ours = {"rewards": _rewards(view, places), "task": view.header.get("task"), "time": view.header["time"]}
    document["extra"] = {**document.get("extra", {}), "atdp": {key: value for key, value in ours.items() if value}}
    document["agent"] = without({**document["agent"], "extra": document.pop("agent_extra", None)})
    return without(document)


def _step(said: Said, loss: LossReport, view: TrajectoryView) -> dict[str, Any]:
    message, event = said.message, said.event or {}
    role = message["role"]
    step: dict[str, Any] = {"source": {"assistant": "agent", "user": "user"}.get(role, "system")}
    step["message"] = _text(message, loss)
    if event:
        step["timestamp"] = event["time"]
    if role == "assistant":
        if not event:
            step["llm_call_count"] = 0
        reasoning = "".join(str(p["content"]) for p in message["parts"] if p["type"] == "reasoning")
        if reasoning and event:
            step["reasoning_content"] = reasoning
        calls = [_call(part, loss) for part in messages.tool_calls(message)]
        if calls:
            step["tool_calls"] = calls
        metrics = _metrics(event, view, loss)
        if metrics:
            step["metrics"] = metrics
    kept = dict(event.get("ext", {}).get("atif", {}))
    if "metrics_extra" in kept:
        step.setdefault("metrics", {})["extra"] = kept.pop("metrics_extra")
    return {**step, **kept}


def _call(part: dict[str, Any], loss: LossReport) -> dict[str, Any]:
    arguments = part.get("arguments")
    if not isinstance(arguments, dict):
        loss.note("arguments", arguments, "ATIF's arguments are an object: the text is under `raw`")
        arguments = {"raw": arguments}
    elif "raw" in part:
        loss.lose("part.raw", part["raw"], "the arguments' own spelling")
    return {"tool_call_id": str(part.get("id") or ""), "function_name": part["name"], "arguments": arguments}


def _observe(steps: list[dict[str, Any]], said: Said) -> None:
    """Add a result to the step that asked for it."""
    part = said.message["parts"][0]
    id = part.get("id")
    asked = next((s for s in reversed(steps) if any(c["tool_call_id"] == id for c in s.get("tool_calls", ()))), None)
    step = asked or (steps[-1] if steps else None)
    if step is None:
        return
    result: dict[str, Any] = {"content": text_of(part.get("response"))}
    if asked is not None:
        result["source_call_id"] = id
    result |= (said.event or {}).get("ext", {}).get("atif", {})
    step.setdefault("observation", {"results": []})["results"].append(result)


def _metrics(event: Record, view: TrajectoryView, loss: LossReport) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, path in _METRICS.items():
        value: Any = event
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        if value is not None and path[0] != "tokens":
            found[name] = value
    if "tokens" in event:
        columns = view.token_columns(event, loss)
        names = {"prompt_ids": "prompt_token_ids", "completion_ids": "completion_token_ids", "logprobs": "logprobs"}
        found |= {names[name]: value for name, value in columns.items()}
    return found


def _final(steps: list[dict[str, Any]]) -> dict[str, Any]:
    metrics = [step["metrics"] for step in steps if "metrics" in step]
    totals = {
        "total_prompt_tokens": [m["prompt_tokens"] for m in metrics if "prompt_tokens" in m],
        "total_completion_tokens": [m["completion_tokens"] for m in metrics if "completion_tokens" in m],
        "total_cost_usd": [m["cost_usd"] for m in metrics if "cost_usd" in m],
    }
    return {"total_steps": len(steps), **{name: sum(values) for name, values in totals.items() if values}}


def _rewards(view: TrajectoryView, places: dict[str, int]) -> list[dict[str, Any]]:
    found = []
    for annotation in view.rewards():
        keys = ("name", "source", "value", "label", "explanation", "scale", "optimizable", "confidence", "observed_at")
        reward = {key: annotation[key] for key in keys if key in annotation}
        step = places.get(annotation["targets"][0].get("event_id", ""))
        found.append({**reward, **({"step_id": step} if step else {})})
    return found


def _text(message: dict[str, Any], loss: LossReport) -> str:
    for part in message["parts"]:
        if part["type"] not in ("text", "tool_call", "reasoning"):
            loss.lose(f"part.{part['type']}", part.get("content"), "ATIF's images are files by path")
    return messages.text(message)


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


def _time(text: Any, loss: LossReport) -> str | None:
    if not isinstance(text, str):
        return None
    try:
        return clock.timestamp(clock.parse(text.replace("Z", "+00:00")))
    except ValueError:
        loss.note("time_zone", text, "the source names no time zone: taken as UTC")
    try:
        return clock.timestamp(clock.parse(text + "+00:00"))
    except ValueError:
        return None
