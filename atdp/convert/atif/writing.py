"""From a trajectory to an ATIF document."""

from __future__ import annotations

from typing import Any

from atdp import messages
from atdp.convert.atif.metrics import METRICS
from atdp.convert.base import ContentOf, Record, without
from atdp.convert.loss import LossReport
from atdp.convert.transcripts import report_off_line, text_of
from atdp.convert.view import Said, TrajectoryView

VERSION = "ATIF-v1.7"


def document_of(view: TrajectoryView, content: ContentOf, loss: LossReport) -> dict[str, Any] | None:
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
    for name, path in METRICS.items():
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
