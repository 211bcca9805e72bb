"""From trajectories to spans: one a step, in one trace a trajectory."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any

from atdp import clock
from atdp.convert.base import ContentOf, Record
from atdp.convert.loss import LossReport
from atdp.convert.otlp.genai import EVALUATION
from atdp.convert.otlp.spans import Span, SpanEvent
from atdp.convert.view import TrajectoryView

Attributes = Callable[[Record, list[dict[str, Any]], dict[str, Any], list[Any]], dict[str, Any]]
"""(event, prompt, context, tools) → a span's attributes."""


def spans_of(view: TrajectoryView, attributes: Attributes, content: ContentOf, loss: LossReport) -> Iterator[Span]:
    """A span for every event but the user's messages and the outcome, which are in the prompts or nowhere."""
    trace = view.header.get("origin", {}).get("trace_id") or _hash(view.id, 16)
    resource = {"service.name": view.header["agent"]["name"], **view.ext("otel").get("resource", {})}
    session = view.header.get("session_id")
    ids = {event["id"]: event.get("span_id") or _hash(event["id"], 8) for event in view.events}
    spoken = [event for event in view.events if event["kind"] not in ("user_message", "outcome")]
    rewards = _rewards(view, spoken, loss)
    for event in view.events:
        if event["kind"] == "outcome":
            loss.lose("event.outcome", event["y"].get("reason"), "a trace has no span for how it ended")
    for event in spoken:
        context = view.contexts.get(event["ctx"], {"body": {}})["body"]
        prompt = [said.message for said in view.prompt(event)] if event["kind"] == "llm_call" else []
        tools = view.tools(content) if event["kind"] == "llm_call" else []
        found = attributes(event, prompt, context, tools)
        if session and event["kind"] == "llm_call":
            found.setdefault("gen_ai.conversation.id" if "gen_ai.operation.name" in found else "session.id", session)
        kept = event.get("ext", {}).get("otel", {})
        start = round(clock.parse(event["time"]).timestamp() * 1000) * 1_000_000
        error = event["y"].get("error", {})
        yield Span(
            trace_id=trace,
            span_id=ids[event["id"]],
            parent_id=ids.get(event.get("parent_id", "")),
            name=kept.get("name") or _name(event),
            start_ns=start,
            end_ns=start + round(event.get("duration_ms", 0) * 1_000_000),
            attributes={**found, **kept.get("attributes", {})},
            failed=event["y"]["status"] != "ok",
            message=str(error.get("message", "")),
            events=tuple(rewards.get(event["id"], ())),
            resource=resource,
        )


def _rewards(view: TrajectoryView, spoken: list[Record], loss: LossReport) -> dict[str, list[SpanEvent]]:
    """Rewards as evaluation events of the span they are about; of the last, when they are about the whole."""
    found: dict[str, list[SpanEvent]] = {}
    for annotation in view.rewards():
        target = annotation["targets"][0].get("event_id") or (spoken[-1]["id"] if spoken else "")
        names = {"score.value": "value", "score.label": "label", "explanation": "explanation", "name": "name"}
        attributes = {f"gen_ai.evaluation.{key}": annotation[name] for key, name in names.items() if name in annotation}
        moment = round(clock.parse(annotation["time"]).timestamp() * 1000) * 1_000_000
        found.setdefault(target, []).append(SpanEvent(EVALUATION, moment, attributes))
    return found


def _name(event: Record) -> str:
    name = event.get("a", {}).get("name")
    return f"{event['kind']} {name}" if name else event["kind"]


def _hash(id: str, size: int) -> str:
    return hashlib.sha256(id.encode()).digest()[:size].hex()
