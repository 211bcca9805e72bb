"""MLflow's traces as `Trace.to_dict` writes them: `{info, data: {spans}}`, one JSON object or one a line.

A span's attributes are JSON texts under `mlflow.*`; spans that carry a convention of OpenTelemetry's or
OpenInference's as well are read by it. Assessments are rewards with their source; an expectation is a label.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from typing import Any

import orjson

from atdp import clock, messages
from atdp.convert.base import ContentOf, Format, Item, ReadOptions, Record, Source, json_documents, parsed
from atdp.convert.conversation import Conversation
from atdp.convert.loss import LossReport
from atdp.convert.otlp.reading import SpanStep, read
from atdp.convert.otlp.reading import convention as otlp_convention
from atdp.convert.otlp.spans import Span, SpanEvent, hex_id
from atdp.convert.otlp.step import Step, Taker
from atdp.convert.otlp.writing import spans_of
from atdp.convert.transcripts import openai
from atdp.convert.view import TrajectoryView, trajectories

_KINDS = {
    "LLM": "llm_call", "CHAT_MODEL": "llm_call", "TOOL": "tool_call", "RETRIEVER": "retrieval", "MEMORY": "memory_read",
    "AGENT": "handoff", "GUARDRAIL": "guardrail",
}  # fmt: skip
_TYPES = {
    "llm_call": "CHAT_MODEL", "retrieval": "RETRIEVER", "memory_read": "MEMORY", "memory_write": "MEMORY",
    "handoff": "AGENT", "guardrail": "GUARDRAIL",
}  # fmt: skip
_SOURCES = {"HUMAN": "human", "LLM_JUDGE": "llm_judge", "AI_JUDGE": "llm_judge", "CODE": "code"}
_SOURCE_TYPES = {"human": "HUMAN", "end_user": "HUMAN", "llm_judge": "LLM_JUDGE"}
_NOT_PARAMS = ("messages", "model", "tools", "stream")


class MlflowTraces(Format):
    """One trace a line, or one object."""

    name = "mlflow"
    title = "MLflow traces (JSON of Trace.to_dict; one, or one a line)"
    carries = frozenset(
        {"event.kind", "event.time", "event.duration_ms", "event.span_id", "event.parent_id", "event.causes",
         "event.actor", "event.step", "event.o.messages", "event.a.messages", "event.a.name", "event.a.arguments",
         "event.a.params", "event.y.result", "event.y.status", "event.m.usage.input_tokens",
         "event.m.usage.output_tokens", "event.ext.otel", "trajectory.time", "trajectory.session_id",
         "trajectory.origin.trace_id", "trajectory.ext.mlflow", "context.model.name", "annotation.kind",
         "annotation.name", "annotation.targets", "annotation.value", "annotation.label", "annotation.explanation",
         "annotation.source", "annotation.time", "annotation.ext.mlflow"}
    )  # fmt: skip

    def detect(self, document: Any) -> bool:
        if not isinstance(document, dict) or "info" not in document or not isinstance(document.get("data"), dict):
            return False
        return "spans" in document["data"]

    def has_annotation(self, annotation: Record) -> bool:
        return annotation["kind"] in ("reward", "label")

    def items(self, source: Source, options: ReadOptions, loss: LossReport) -> Iterator[Item]:
        for trace in json_documents(source):
            found = [_span(span) for span in trace["data"]["spans"]]
            made = list(read(found, options, loss, _convention, self.name))
            for conversation, steps in made[:1]:
                conversation.add_header(ext={"mlflow": _kept(trace["info"])})
                _assess(trace["info"], conversation, steps, loss)
            for conversation, _ in made:
                yield from conversation.drafts()

    def lines(self, records: Iterable[Record], content: ContentOf, loss: LossReport) -> Iterator[bytes]:
        for view in trajectories(records):
            loss.items += 1
            yield orjson.dumps(_trace(view, content, loss)) + b"\n"


def _span(span: dict[str, Any]) -> Span:
    attributes = {key: parsed(value) for key, value in (span.get("attributes") or {}).items()}
    status = span.get("status") or {}
    start = int(span.get("start_time_unix_nano") or 0)
    return Span(
        trace_id=hex_id(span["trace_id"]),
        span_id=hex_id(span["span_id"]),
        parent_id=hex_id(span.get("parent_span_id")) or None,
        name=str(span.get("name", "")),
        start_ns=start,
        end_ns=int(span.get("end_time_unix_nano") or start),
        attributes=attributes,
        failed=status.get("code") in ("STATUS_CODE_ERROR", "ERROR"),
        message=str(status.get("message") or ""),
        events=tuple(
            SpanEvent(str(e.get("name")), int(e.get("time_unix_nano") or 0), e.get("attributes") or {})
            for e in span.get("events") or ()
        ),
    )


def _convention(span: Span) -> Step | None:
    by_standard = otlp_convention(span)
    if by_standard is not None:
        return by_standard
    kind = str(span.attributes.get("mlflow.spanType", "UNKNOWN"))
    made = Step(_KINDS.get(kind, f"x.{kind.lower()}"))
    taker = Taker(span.attributes, made)
    taker.take("mlflow.spanType", "mlflow.traceRequestId")
    given, output = taker.take("mlflow.spanInputs"), taker.take("mlflow.spanOutputs")
    usage = taker.take("mlflow.chat.tokenUsage")
    model = taker.take("mlflow.llm.model")
    if made.kind == "llm_call":
        given = given if isinstance(given, dict) else {"messages": [{"role": "user", "content": given}]}
        made.o["messages"] = [messages.from_openai(m) for m in given.get("messages") or () if isinstance(m, dict)]
        made.a["messages"] = [messages.from_openai(m, reason) for m, reason in _answers(output)]
        params = {key: value for key, value in given.items() if key not in _NOT_PARAMS}
        if params:
            made.a["params"] = params
        made.tools = given.get("tools") or []
        name = model or given.get("model")
        if name:
            made.context["model"] = {"name": str(name)}
    else:
        made.a["name"] = span.name
        if given is not None:
            made.a["arguments"] = given
        if output is not None:
            made.y["result"] = output
    if isinstance(usage, dict):
        made.m["usage"] = {key: usage[key] for key in ("input_tokens", "output_tokens") if key in usage}
    return made


def _answers(output: Any) -> list[tuple[dict[str, Any], str | None]]:
    """The answers of a chat model's output, in OpenAI's form or plain."""
    if isinstance(output, dict) and isinstance(output.get("choices"), list):
        return [(choice.get("message") or {}, choice.get("finish_reason")) for choice in output["choices"]]
    if isinstance(output, dict) and "role" in output:
        return [(output, None)]
    text = output if isinstance(output, str) else orjson.dumps(output).decode()
    return [({"role": "assistant", "content": text}, None)]


def _kept(info: dict[str, Any]) -> dict[str, Any]:
    return {
        key: value for key, value in info.items() if key in ("trace_id", "tags", "trace_metadata", "trace_location")
    }


def _assess(info: dict[str, Any], conversation: Conversation, steps: list[SpanStep], loss: LossReport) -> None:
    events = {step.span.span_id: step.event_id for step in steps}
    for assessment in info.get("assessments") or ():
        source = assessment.get("source") or {}
        conversation.now = _moment(assessment.get("create_time")) or conversation.now
        feedback = assessment.get("feedback")
        value = (feedback or assessment.get("expectation") or {}).get("value")
        said: dict[str, Any] = {"value": value} if isinstance(value, bool | int | float) else {"label": str(value)}
        if assessment.get("rationale"):
            said["explanation"] = assessment["rationale"]
        if assessment.get("valid") is False:
            loss.note("overridden", assessment.get("assessment_id"), "an assessment that MLflow no longer counts")
            said["ext"] = {"mlflow": {"valid": False}}
        conversation.annotate(
            "reward" if feedback is not None else "label",
            str(assessment.get("assessment_name") or assessment.get("name")),
            {
                "kind": _SOURCES.get(str(source.get("source_type")), "implicit"),
                "id": str(source.get("source_id") or ""),
            },
            event_id=events.get(hex_id(assessment.get("span_id"))),
            **said,
        )


def _moment(text: Any) -> str | None:
    return clock.timestamp(clock.parse(text)) if isinstance(text, str) else None


# -- writing


def _trace(view: TrajectoryView, content: ContentOf, loss: LossReport) -> dict[str, Any]:
    kept = view.ext("mlflow")
    spans = [span._replace(events=()) for span in spans_of(view, _attributes, content, LossReport("mlflow", "write"))]
    for event in view.events:
        if event["kind"] == "outcome":
            loss.lose("event.outcome", event["y"].get("reason"), "a trace has no span for how it ended")
    trace_id = kept.get("trace_id") or (f"tr-{spans[0].trace_id}" if spans else view.id)
    ids = {event["id"]: span.span_id for event, span in zip(_spoken(view), spans, strict=True)}
    return {
        "info": {
            "trace_id": trace_id,
            "request_time": view.header["time"],
            "state": "ERROR" if any(span.failed for span in spans) else "OK",
            "assessments": [
                _assessment(a, trace_id, ids) for a in view.annotations if a["kind"] in ("reward", "label")
            ],
            "tags": {},
            "trace_metadata": {"mlflow.trace_schema.version": "3"},
            **kept,
        },
        "data": {"spans": [_span_json(span, trace_id) for span in spans]},
    }


def _spoken(view: TrajectoryView) -> list[Record]:
    return [event for event in view.events if event["kind"] not in ("user_message", "outcome")]


def _attributes(
    event: Record, prompt: list[dict[str, Any]], context: dict[str, Any], tools: list[Any]
) -> dict[str, Any]:
    kind, action = event["kind"], event.get("a", {})
    found: dict[str, Any] = {"mlflow.spanType": _TYPES.get(kind, kind[2:].upper() if kind.startswith("x.") else "TOOL")}
    if kind != "llm_call":
        if "arguments" in action:
            found["mlflow.spanInputs"] = action["arguments"]
        if "result" in event["y"]:
            found["mlflow.spanOutputs"] = event["y"]["result"]
        return found
    model = context.get("model", {}).get("name")
    found["mlflow.spanInputs"] = {
        "messages": [openai(message) for message in prompt],
        **({"model": model} if model else {}),
        **({"tools": tools} if tools else {}),
        **action.get("params", {}),
    }
    found["mlflow.spanOutputs"] = {
        "choices": [
            {"index": i, "message": openai(m), "finish_reason": m.get("finish_reason")}
            for i, m in enumerate(action.get("messages", []))
        ]
    }
    usage = event.get("m", {}).get("usage")
    if usage:
        total = sum(usage.get(key, 0) for key in ("input_tokens", "output_tokens"))
        found["mlflow.chat.tokenUsage"] = {**usage, "total_tokens": total}
    return found


def _span_json(span: Span, trace_id: str) -> dict[str, Any]:
    attributes = {**span.attributes, "mlflow.traceRequestId": trace_id}
    return {
        "trace_id": _base64(span.trace_id),
        "span_id": _base64(span.span_id),
        "parent_span_id": _base64(span.parent_id) if span.parent_id else None,
        "name": span.name,
        "start_time_unix_nano": span.start_ns,
        "end_time_unix_nano": span.end_ns,
        "events": [],
        "status": {"code": "STATUS_CODE_ERROR" if span.failed else "STATUS_CODE_OK", "message": span.message},
        "attributes": {key: orjson.dumps(value).decode() for key, value in attributes.items()},
        "links": [],
    }


def _assessment(annotation: Record, trace_id: str, ids: dict[str, str]) -> dict[str, Any]:
    value = annotation.get("value", annotation.get("label"))
    kind = "feedback" if annotation["kind"] == "reward" else "expectation"
    made = {
        "assessment_id": f"a-{annotation['id'].removeprefix('an_')}",
        "assessment_name": annotation["name"],
        "trace_id": trace_id,
        "source": {
            "source_type": _SOURCE_TYPES.get(annotation["source"]["kind"], "CODE"),
            "source_id": annotation["source"].get("id") or "default",
        },
        "create_time": annotation["time"],
        "last_update_time": annotation["time"],
        kind: {"value": value},
        "valid": annotation.get("ext", {}).get("mlflow", {}).get("valid", True),
    }
    if "explanation" in annotation:
        made["rationale"] = annotation["explanation"]
    target = ids.get(annotation["targets"][0].get("event_id", ""))
    if target:
        made["span_id"] = target
    return made


def _base64(id: str) -> str:
    return base64.b64encode(bytes.fromhex(id)).decode()
