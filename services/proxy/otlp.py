"""The bodies of OTLP's `/v1/traces`, JSON or protobuf, as the JSON that `atdp.convert.otlp` reads."""

from __future__ import annotations

from typing import Any

import orjson

PROTOBUF = "application/x-protobuf"


def decode(body: bytes, content_type: str) -> dict[str, Any]:
    """An ExportTraceServiceRequest as JSON; raises `ValueError` for a body that is none.

    Protobuf's own JSON has ids in base64, OTLP's in hex: the reader takes both.
    """
    if content_type.partition(";")[0].strip() == PROTOBUF:
        # imported here: a gateway without OTLP traffic need not load protobuf
        from google.protobuf.json_format import MessageToDict
        from google.protobuf.message import DecodeError
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        request = ExportTraceServiceRequest()
        try:
            request.ParseFromString(body)
        except DecodeError as error:
            raise ValueError(f"the body is no ExportTraceServiceRequest: {error}") from error
        found: dict[str, Any] = MessageToDict(request)
        return found
    document = orjson.loads(body)
    if not isinstance(document, dict):
        raise ValueError("the body is no ExportTraceServiceRequest: a JSON object is expected")
    return document
