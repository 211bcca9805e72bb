"""The bodies of `/v1/traces`, in both encodings."""

from __future__ import annotations

import json

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from atdp.convert import otlp
from services.proxy.otlp import PROTOBUF, decode


def body() -> ExportTraceServiceRequest:
    request = ExportTraceServiceRequest()
    span = request.resource_spans.add().scope_spans.add().spans.add()
    span.trace_id, span.span_id, span.name = bytes(range(16)), bytes(range(8)), "chat m"
    span.start_time_unix_nano, span.end_time_unix_nano = 10**18, 10**18 + 10**9
    for key, value in (("gen_ai.operation.name", "chat"), ("gen_ai.request.model", "m")):
        attribute = span.attributes.add()
        attribute.key, attribute.value.string_value = key, value
    tokens = span.attributes.add()
    tokens.key, tokens.value.int_value = "gen_ai.usage.input_tokens", 3
    return request


def test_a_protobuf_body_and_a_json_body_are_the_same_steps() -> None:
    (binary,) = otlp.steps(decode(body().SerializeToString(), f"{PROTOBUF}; charset=x"))
    span = {
        "traceId": bytes(range(16)).hex(),
        "spanId": bytes(range(8)).hex(),
        "name": "chat m",
        "startTimeUnixNano": str(10**18),
        "endTimeUnixNano": str(10**18 + 10**9),
        "attributes": [
            {"key": "gen_ai.operation.name", "value": {"stringValue": "chat"}},
            {"key": "gen_ai.request.model", "value": {"stringValue": "m"}},
            {"key": "gen_ai.usage.input_tokens", "value": {"intValue": "3"}},
        ],
    }
    text = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}).encode()
    (written,) = otlp.steps(decode(text, "application/json"))
    assert binary == written
    assert binary.step.m["usage"] == {"input_tokens": 3}


@pytest.mark.parametrize(("data", "kind"), [(b"\xff\xff\xff", PROTOBUF), (b"{", "application/json"), (b"[]", "")])
def test_a_body_that_is_none_is_refused(data: bytes, kind: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        decode(data, kind)
