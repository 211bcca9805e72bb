"""OTLP over HTTP: reading an ExportTraceServiceRequest, and answering as exporters read it."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import orjson

from services.gateway import errors
from services.gateway.asgi import Request, require_shallow
from services.gateway.errors import ApiError

PROTOBUF = "application/x-protobuf"
JSON = "application/json"
_EXPANSION = 20
"""A compressed body may grow to this many times the largest body."""
_GRPC_CODES = {400: 3, 401: 16, 403: 7, 404: 5, 413: 8, 415: 3, 503: 14}
"""google.rpc.Code of an HTTP status."""


@dataclass
class Refused:
    """Spans that were not taken."""

    count: int = 0
    reason: str = ""

    def add(self, reason: str, count: int = 1) -> None:
        self.count += count
        self.reason = self.reason or reason


def decode(request: Request, body: bytes, limit: int) -> dict[str, Any]:
    """The request as OTLP JSON; raises 400, 413 or 415."""
    encoding = (request.header(b"content-encoding") or "identity").lower()
    if encoding in ("gzip", "deflate"):
        inflate = zlib.decompressobj(47)
        try:
            body = inflate.decompress(body, limit * _EXPANSION)
        except zlib.error as error:
            raise errors.malformed(f"The body is not {encoding}: {error}.") from error
        if inflate.unconsumed_tail:
            raise errors.too_large(limit * _EXPANSION)
    elif encoding != "identity":
        raise ApiError(415, f"Content-Encoding {encoding} is not known; use gzip.", code="unsupported_encoding")
    if (request.header(b"content-type") or "").startswith(PROTOBUF):
        return _from_protobuf(body)
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise errors.malformed(f"The body is not valid JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise errors.malformed("An ExportTraceServiceRequest is a JSON object.")
    require_shallow(parsed, body)
    return parsed


def _from_protobuf(body: bytes) -> dict[str, Any]:
    from google.protobuf.json_format import MessageToDict
    from google.protobuf.message import DecodeError
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    message = ExportTraceServiceRequest()
    try:
        message.ParseFromString(body)
    except DecodeError as error:
        raise errors.malformed(f"The body is no ExportTraceServiceRequest: {error}.") from error
    return MessageToDict(message)


def answer(refused: Refused, kind: str) -> bytes:
    """ExportTraceServiceResponse."""
    if kind == JSON:
        partial = {"rejectedSpans": str(refused.count), "errorMessage": refused.reason}
        return orjson.dumps({"partialSuccess": partial} if refused.count else {})
    if not refused.count:
        return b""
    message = _field(2, refused.reason.encode())
    return _field(1, b"\x08" + _varint(refused.count) + message)


def status(error: ApiError, kind: str) -> bytes:
    """google.rpc.Status."""
    code = _GRPC_CODES.get(error.status, 13)
    if kind == JSON:
        return orjson.dumps({"code": code, "message": str(error)})
    return b"\x08" + _varint(code) + _field(2, str(error).encode())


def _field(number: int, data: bytes) -> bytes:
    """A length-delimited protobuf field."""
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def content_type(kind: str) -> tuple[bytes, bytes]:
    return b"content-type", kind.encode()
