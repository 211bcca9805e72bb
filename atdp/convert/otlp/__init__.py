"""OTLP traces: OpenTelemetry's GenAI conventions and OpenInference's, read alike and written either way.

`steps` is for whoever takes spans in as they come (`/v1/traces`): it joins what is in one request and leaves storing
to the caller. The body may be OTLP JSON or protobuf that somebody decoded to JSON: this package knows no protobuf.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

import orjson

from atdp.convert.base import ContentOf, Format, Item, ReadOptions, Record, Source, json_documents
from atdp.convert.loss import LossReport
from atdp.convert.otlp import genai, openinference
from atdp.convert.otlp.reading import SpanStep, convention, drafts, event_id, read, steps
from atdp.convert.otlp.spans import Span, request, spans
from atdp.convert.otlp.writing import Attributes, spans_of
from atdp.convert.view import trajectories

__all__ = ["OpenInference", "Otlp", "Span", "SpanStep", "event_id", "spans", "steps"]

_CARRIED = frozenset(
    {"event.kind", "event.time", "event.duration_ms", "event.span_id", "event.parent_id", "event.causes", "event.actor",
     "event.step", "event.o.messages", "event.a.messages", "event.a.name", "event.a.call_id",
     "event.a.arguments", "event.a.params", "event.y.result", "event.y.status", "event.y.finish_reason",
     "event.y.error", "event.m.usage", "event.ext.otel", "trajectory.session_id", "trajectory.origin.trace_id",
     "trajectory.time", "trajectory.ext.otel", "context.model.name", "context.model.response_name",
     "context.model.provider", "context.tools", "annotation.kind", "annotation.name", "annotation.targets",
     "annotation.value", "annotation.label", "annotation.explanation"}
)  # fmt: skip


class Otlp(Format):
    """OTLP JSON, spans in OpenTelemetry's GenAI conventions."""

    name = "otlp"
    title = "OTLP traces, OpenTelemetry GenAI conventions (JSON; one request, or one a line)"
    carries = _CARRIED | {"event.o.system_instructions", "event.m.ttft_ms"}
    attributes: ClassVar[Attributes] = staticmethod(genai.attributes)

    def detect(self, document: Any) -> bool:
        if not isinstance(document, dict) or not document.keys() & {"resourceSpans", "resource_spans"}:
            return False
        return not any(map(openinference.recognises, spans(document)))

    def has_annotation(self, annotation: Record) -> bool:
        return annotation["kind"] == "reward"

    def items(self, source: Source, options: ReadOptions, loss: LossReport) -> Iterator[Item]:
        found = [span for body in json_documents(source) for span in spans(body)]
        yield from drafts(read(found, options, loss, convention, self.name))

    def lines(self, records: Iterable[Record], content: ContentOf, loss: LossReport) -> Iterator[bytes]:
        found: list[Span] = []
        for view in trajectories(records):
            loss.items += 1
            found += spans_of(view, type(self).attributes, content, loss)
        yield orjson.dumps(request(found))


class OpenInference(Otlp):
    """OTLP JSON, spans in OpenInference's conventions."""

    name = "openinference"
    title = "OTLP traces, OpenInference conventions (JSON; one request, or one a line)"
    carries = _CARRIED | {"event.m.cost_usd", "event.o.system_instructions"}
    attributes: ClassVar[Attributes] = staticmethod(openinference.attributes)

    def detect(self, document: Any) -> bool:
        if not isinstance(document, dict) or not document.keys() & {"resourceSpans", "resource_spans"}:
            return False
        return any(map(openinference.recognises, spans(document)))
