"""A recorded trajectory as spans in OpenTelemetry's GenAI conventions, and the protobuf of an OTLP request.

Only the stored view travels: what is redacted stays redacted, what is sealed does not leave.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from atdp.convert.loss import LossReport
from atdp.convert.otlp import genai
from atdp.convert.otlp.spans import Span
from atdp.convert.otlp.writing import spans_of
from atdp.convert.view import trajectories
from services.proxy import parts
from services.proxy.reader import StoreReader

MOST_SPANS = 50
"""Steps in one trace: a longer trajectory becomes several, of one session."""
_PREVIEW = 2000
"""Characters of a trace's request and answer."""
_SEALED = ("sealed", "commit", "redacted")


def traces(reader: StoreReader, tenant: str, trajectory_id: str, most: int = MOST_SPANS) -> list[list[Span]]:
    """The trajectory's traces, each with a root span of its own before its steps; empty without a step."""

    def content(digest: str) -> bytes | None:
        try:
            return reader.part(tenant, digest)
        except KeyError:
            return None

    chain = [parts.internalize(record, content) for record in reader.records(tenant, trajectory_id)]
    contexts = [reader.contexts(tenant, id) for id in dict.fromkeys(r["ctx"] for r in chain if "ctx" in r)]
    records = [*(context for context in contexts if context is not None), *chain]
    view = next(trajectories(records), None)
    if view is None:
        return []
    steps = [_open(span) for span in spans_of(view, genai.attributes, content, LossReport("otlp", "write"))]
    tags: dict[str, Any] = next((t for e in view.events if (t := (e.get("m") or {}).get("tags"))), {})
    about = {
        "evoplane.tenant": tenant,
        "evoplane.trajectory_id": trajectory_id,
        "evoplane.agent_version": str(tags.get("agent_version", "")),
        "evoplane.role": str(tags.get("role", "")),
        "session.id": view.header.get("session_id") or trajectory_id,
    }
    groups = [steps[start : start + most] for start in range(0, len(steps), most)]
    return [_trace(group, view.header["agent"]["name"], about, k, len(groups)) for k, group in enumerate(groups)]


def trace_id(trajectory_id: str, part: int = 0) -> str:
    """32 hex digits, the same whenever the trajectory is told."""
    return hashlib.sha256(f"{trajectory_id}/{part}".encode()).hexdigest()[:32]


def request(spans: Sequence[Span]) -> bytes:
    """An ExportTraceServiceRequest, serialised."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    message = ExportTraceServiceRequest()
    by_resource: dict[str, list[Span]] = {}
    for span in spans:
        by_resource.setdefault(repr(sorted(span.resource.items())), []).append(span)
    for group in by_resource.values():
        resource = message.resource_spans.add()
        _attributes(resource.resource.attributes, group[0].resource)
        scope = resource.scope_spans.add()
        scope.scope.name = "evoplane"
        for span in group:
            _fill(scope.spans.add(), span)
    data: bytes = message.SerializeToString()
    return data


def _trace(steps: list[Span], agent: str, about: dict[str, str], part: int, of: int) -> list[Span]:
    id = trace_id(about["evoplane.trajectory_id"], part)
    root_id = id[:16]
    within = {span.span_id for span in steps}
    asked = next((a for s in steps if (a := s.attributes.get("gen_ai.input.messages"))), "")
    answered = next((a for s in reversed(steps) if (a := s.attributes.get("gen_ai.output.messages"))), "")
    root = Span(
        trace_id=id,
        span_id=root_id,
        parent_id=None,
        name=agent if of == 1 else f"{agent} ({part + 1} of {of})",
        start_ns=min(span.start_ns for span in steps),
        end_ns=max(span.end_ns for span in steps),
        attributes={
            **about,
            "mlflow.spanType": "AGENT",
            "mlflow.spanInputs": _preview(asked),
            "mlflow.spanOutputs": _preview(answered),
        },
        failed=any(span.failed for span in steps),
        message=next((span.message for span in steps if span.failed), ""),
        resource=steps[0].resource,
    )
    return [root, *(_under(span, id, root_id, within) for span in steps)]


def _under(span: Span, trace: str, root: str, within: set[str]) -> Span:
    parent = span.parent_id if span.parent_id in within else root
    return span._replace(trace_id=trace, parent_id=parent)


def _open(span: Span) -> Span:
    """The span without what is sealed: a commitment means nothing to whoever reads traces."""
    return span._replace(attributes={k: _unsealed(v) for k, v in span.attributes.items()})


def _unsealed(value: Any) -> Any:
    if isinstance(value, dict):
        if any(name in value for name in _SEALED) and "labels" in value:
            labels = value["labels"]  # anything, where a tool's answer only looks like a sealed leaf
            return f"[{', '.join(map(str, labels)) if isinstance(labels, list | tuple) else ''}]"
        return {key: _unsealed(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_unsealed(item) for item in value]
    return value


def _preview(value: Any) -> str:
    text = value if isinstance(value, str) else orjson.dumps(value).decode()
    return orjson.dumps(text[:_PREVIEW]).decode()


def _fill(target: Any, span: Span) -> None:
    target.trace_id, target.span_id = bytes.fromhex(span.trace_id), bytes.fromhex(span.span_id)
    if span.parent_id:
        target.parent_span_id = bytes.fromhex(span.parent_id)
    target.name = span.name
    target.start_time_unix_nano, target.end_time_unix_nano = span.start_ns, span.end_ns
    target.status.code = 2 if span.failed else 1
    target.status.message = span.message if span.failed else ""
    _attributes(target.attributes, span.attributes)
    for event in span.events:
        told = target.events.add()
        told.name, told.time_unix_nano = event.name, event.time_ns
        _attributes(told.attributes, event.attributes)


def _attributes(target: Any, values: Mapping[str, Any]) -> None:
    for key, value in values.items():
        pair = target.add()
        pair.key = key
        _set(pair.value, value)


def _set(target: Any, value: Any) -> None:
    if isinstance(value, bool):
        target.bool_value = value
    elif isinstance(value, int) and -(2**63) <= value < 2**63:
        target.int_value = value
    elif isinstance(value, float):
        target.double_value = value
    elif isinstance(value, dict):
        # collectors search flat attributes: an object travels as JSON text
        target.string_value = orjson.dumps(value, default=str).decode()
    elif isinstance(value, list) and all(isinstance(item, str | int | float | bool) for item in value):
        for item in value:
            _set(target.array_value.values.add(), item)
    elif isinstance(value, list):
        target.string_value = orjson.dumps(value, default=str).decode()
    else:
        target.string_value = "" if value is None else str(value)
