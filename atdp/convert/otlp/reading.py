"""From spans to trajectories: one a trace, events in the order in which they ended."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from atdp import clock
from atdp.convert.base import Item, ReadOptions
from atdp.convert.conversation import Conversation
from atdp.convert.loss import LossReport
from atdp.convert.otlp import genai, openinference
from atdp.convert.otlp.spans import Span, spans
from atdp.convert.otlp.step import Step
from atdp.ids import derived_id
from atdp.records.event import Relation

Convention = Callable[[Span], Step | None]


class SpanStep(NamedTuple):
    """A span that is a step of an agent, and what it says."""

    span: Span
    step: Step
    parent_id: str | None
    """The nearest span around it that is a step too."""
    causes: list[tuple[str, Relation]]
    """(span id, rel) of what it follows from."""

    @property
    def event_id(self) -> str:
        return event_id(self.span.trace_id, self.span.span_id)


def event_id(trace_id: str, span_id: str) -> str:
    """The event of a span: the same however often, and in whatever batch, the span is sent."""
    return derived_id("ev", "otlp", trace_id, span_id)


def convention(span: Span) -> Step | None:
    """What the span's own convention makes of it; None for a span that is no step of an agent."""
    if genai.recognises(span):
        return genai.step(span)
    if openinference.recognises(span):
        return openinference.step(span)
    return None


def steps(request: dict[str, Any]) -> list[SpanStep]:
    """The agent's steps in an ExportTraceServiceRequest (OTLP JSON, or protobuf decoded to JSON), oldest ending first.

    Spans that follow no convention known here are left out; those inside them count as inside what is around.
    """
    return joined(list(spans(request)), convention)


def joined(found: Iterable[Span], convention: Convention) -> list[SpanStep]:
    """Spans made into steps, with the parents and causes that follow from ids among them."""
    by_id = {span.span_id: span for span in found}
    made = {span.span_id: step for span in by_id.values() if (step := convention(span)) is not None}
    result: list[SpanStep] = []
    asked: dict[str, str] = {}
    ran: dict[str, str] = {}
    for span in sorted((by_id[id] for id in made), key=lambda s: (s.end_ns, s.start_ns)):
        step = made[span.span_id]
        causes: list[tuple[str, Relation]] = [(ran.pop(call), "input") for call in step.answered() if call in ran]
        call_id = step.a.get("call_id")
        if call_id in asked:
            causes.append((asked[call_id], "decided_by"))
        if call_id is not None:
            ran[call_id] = span.span_id
        asked |= dict.fromkeys(step.asked_for(), span.span_id)
        result.append(SpanStep(span, step, _around(span, by_id, made), causes))
    return result


def read(
    found: Iterable[Span], options: ReadOptions, loss: LossReport, convention: Convention, format: str
) -> Iterator[tuple[Conversation, list[SpanStep]]]:
    """A conversation a trace, its events added; the caller adds what else it knows and takes the drafts."""
    traces: dict[str, list[Span]] = {}
    for span in found:
        traces.setdefault(span.trace_id, []).append(span)
    for trace_id, trace in traces.items():
        made = joined(trace, convention)
        known = {step.span.span_id for step in made}
        for span in trace:
            if span.span_id not in known:
                loss.lose("span (no step of an agent)", span.name, "it follows none of the conventions known here")
        if made:
            yield _conversation(trace_id, trace, made, options, loss, format), made


def drafts(conversations: Iterator[tuple[Conversation, list[SpanStep]]]) -> Iterator[Item]:
    for conversation, _ in conversations:
        yield from conversation.drafts()


def _conversation(
    trace_id: str, trace: list[Span], made: list[SpanStep], options: ReadOptions, loss: LossReport, format: str
) -> Conversation:
    first = min(trace, key=lambda span: span.start_ns)
    session = next((step.step.session_id for step in made if step.step.session_id), None)
    tools = next((step.step.tools for step in made if step.step.tools), [])
    model: dict[str, Any] = next((step.step.context["model"] for step in made if "model" in step.step.context), {})
    for step in made:
        if step.step.context.get("model", model) != model or (step.step.tools and step.step.tools != tools):
            loss.lose(
                "context (of a later call)", step.span.name, "a trace is read with the first call's model and tools"
            )
    resource = {key: value for key, value in first.resource.items() if not key.startswith("telemetry.sdk.")}
    conversation = Conversation(
        "otlp",
        trace_id,
        options,
        loss,
        time=_time(first.start_ns),
        context={"model": model} if model else {},
        tools=tools,
        origin={"trace_id": trace_id, "format": format},
        **({"session_id": str(session)} if session else {}),
        **({"ext": {"otel": {"resource": resource}}} if resource else {}),
    )
    for step in made:
        _add(conversation, step)
    return conversation


def _add(conversation: Conversation, made: SpanStep) -> None:
    span, step = made.span, made.step
    conversation.now = _time(span.start_ns)
    if step.kind == "llm_call":
        conversation.step += 1
    outcome = {"status": "error" if span.failed or "error" in step.y else "ok", **step.y}
    if span.failed:
        error = outcome.setdefault("error", {"type": "error"})
        if span.message:
            error.setdefault("message", span.message)
    rest = {key: value for key, value in span.attributes.items() if key not in step.told}
    conversation.add_event(
        step.kind,
        id=made.event_id,
        span_id=span.span_id,
        parent_id=None if made.parent_id is None else event_id(span.trace_id, made.parent_id),
        causes=[{"id": event_id(span.trace_id, id), "rel": rel} for id, rel in made.causes],
        actor={"type": "agent"},
        duration_ms=(span.end_ns - span.start_ns) / 1_000_000,
        o=step.o,
        h=step.h,
        a=step.a,
        m=step.m,
        y=outcome,
        ext={"otel": {"name": span.name, **({"attributes": rest} if rest else {})}},
    )
    for evaluation in step.evaluations:
        fields = {key: value for key, value in evaluation.items() if key not in ("name", "source")}
        source = evaluation.get("source", {"kind": "implicit"})
        conversation.annotate("reward", evaluation["name"], source, event_id=made.event_id, **fields)


def _around(span: Span, by_id: dict[str, Span], made: dict[str, Step]) -> str | None:
    seen: set[str] = set()
    parent = span.parent_id
    while parent is not None and parent in by_id and parent not in seen:
        if parent in made:
            return parent
        seen.add(parent)
        parent = by_id[parent].parent_id
    return None


def _time(nanoseconds: int) -> str:
    return clock.from_epoch(nanoseconds / 1e9)
