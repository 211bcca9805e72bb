"""From a trajectory to a simulation."""

from __future__ import annotations

from typing import Any

from atdp import messages
from atdp.convert.base import Record
from atdp.convert.loss import LossReport
from atdp.convert.tau2.reading import REWARD
from atdp.convert.transcripts import report_off_line, text_of
from atdp.convert.view import Said, TrajectoryView


def simulation(view: TrajectoryView, kept: dict[str, Any], loss: LossReport) -> dict[str, Any]:
    transcript = view.transcript()
    report_off_line(view, transcript, loss)
    verdict = next((a for a in view.rewards() if a["name"] == REWARD), None)
    made = {
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
        made["reward_info"] = {"reward": verdict["value"], **verdict.get("ext", {}).get("tau2", {})}
    return made


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


def _when(event: Record, kept: dict[str, Any]) -> dict[str, Any]:
    return {} if "timestamp" in kept or not event or kept else {"timestamp": event["time"]}
