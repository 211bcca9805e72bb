"""OTLP's wire form: an ExportTraceServiceRequest as JSON (or as protobuf decoded to JSON) to plain spans, and back."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any, NamedTuple

from atdp.convert.base import parsed


class SpanEvent(NamedTuple):
    name: str
    time_ns: int
    attributes: dict[str, Any]


class Span(NamedTuple):
    """One span, its attributes plain JSON values, its ids in hex, its times in nanoseconds since 1970."""

    trace_id: str
    span_id: str
    parent_id: str | None
    name: str
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    failed: bool = False
    message: str = ""
    events: tuple[SpanEvent, ...] = ()
    resource: dict[str, Any] = {}  # noqa: RUF012


def spans(request: dict[str, Any]) -> Iterator[Span]:
    """The spans of a request, whichever of OTLP's two spellings its keys have."""
    for resource_spans in _get(request, "resourceSpans", "resource_spans", []):
        resource = attributes((resource_spans.get("resource") or {}).get("attributes"))
        for scope_spans in _get(resource_spans, "scopeSpans", "scope_spans", []):
            for span in scope_spans.get("spans") or ():
                yield _span(span, resource)


def request(found: list[Span]) -> dict[str, Any]:
    """OTLP JSON of spans; those of one resource are together."""
    groups: dict[str, list[Span]] = {}
    for span in found:
        groups.setdefault(repr(sorted(span.resource.items())), []).append(span)
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": key_values(group[0].resource)},
                "scopeSpans": [{"scope": {"name": "atdp.convert"}, "spans": [_json(span) for span in group]}],
            }
            for group in groups.values()
        ]
    }


def attributes(pairs: Any) -> dict[str, Any]:
    """OTLP's list of keys and typed values as one object."""
    return {pair["key"]: _value(pair.get("value") or {}) for pair in pairs or ()}


def key_values(found: dict[str, Any]) -> list[dict[str, Any]]:
    """An object as OTLP's list of keys and typed values."""
    return [{"key": key, "value": _any_value(value)} for key, value in found.items()]


def structured(value: Any) -> Any:
    """An attribute that may be JSON text or already structured."""
    return parsed(value)


def hex_id(text: Any) -> str:
    """An id in hex: OTLP JSON writes hex, protobuf's own JSON base64, MLflow base64 or `0x` and hex."""
    if not isinstance(text, str) or not text:
        return ""
    plain = text.removeprefix("0x")
    if len(plain) in (16, 32):
        try:
            return bytes.fromhex(plain).hex()
        except ValueError:
            pass
    try:
        return base64.b64decode(text, validate=True).hex()
    except ValueError:
        return text


def _span(span: dict[str, Any], resource: dict[str, Any]) -> Span:
    status = span.get("status") or {}
    start = int(_get(span, "startTimeUnixNano", "start_time_unix_nano", 0))
    return Span(
        trace_id=hex_id(_get(span, "traceId", "trace_id", "")),
        span_id=hex_id(_get(span, "spanId", "span_id", "")),
        parent_id=hex_id(_get(span, "parentSpanId", "parent_span_id", "")) or None,
        name=str(span.get("name", "")),
        start_ns=start,
        end_ns=int(_get(span, "endTimeUnixNano", "end_time_unix_nano", 0)) or start,
        attributes=attributes(span.get("attributes")),
        failed=status.get("code") in (2, "STATUS_CODE_ERROR", "ERROR"),
        message=str(status.get("message") or ""),
        events=tuple(
            SpanEvent(
                str(event.get("name", "")),
                int(_get(event, "timeUnixNano", "time_unix_nano", 0)),
                attributes(event.get("attributes")),
            )
            for event in span.get("events") or ()
        ),
        resource=resource,
    )


def _json(span: Span) -> dict[str, Any]:
    body: dict[str, Any] = {
        "traceId": span.trace_id,
        "spanId": span.span_id,
        "name": span.name,
        "kind": 1,
        "startTimeUnixNano": str(span.start_ns),
        "endTimeUnixNano": str(span.end_ns),
        "attributes": key_values(span.attributes),
        "status": {"code": 2, "message": span.message} if span.failed else {},
        "events": [
            {"name": e.name, "timeUnixNano": str(e.time_ns), "attributes": key_values(e.attributes)}
            for e in span.events
        ],
    }
    if span.parent_id:
        body["parentSpanId"] = span.parent_id
    return body


def _get(value: dict[str, Any], camel: str, snake: str, default: Any) -> Any:
    found = value.get(camel, value.get(snake))
    return default if found is None else found


def _value(value: dict[str, Any]) -> Any:
    """One AnyValue; a 64-bit integer comes as text in JSON."""
    for key, item in value.items():
        match key.replace("_v", "V"):
            case "intValue":
                return int(item)
            case "arrayValue":
                return [_value(v) for v in item.get("values") or ()]
            case "kvlistValue":
                return attributes(item.get("values"))
            case _:
                return item
    return None


def _any_value(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, list):
        return {"arrayValue": {"values": [_any_value(item) for item in value]}}
    if isinstance(value, dict):
        return {"kvlistValue": {"values": key_values(value)}}
    return {"stringValue": "" if value is None else str(value)}
