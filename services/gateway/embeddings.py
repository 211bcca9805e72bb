"""`POST /v1/embeddings`: passed through, and recorded as a step of its session.

No session can be told from the texts, so one without an id belongs to the key's own trajectory of
embeddings. Vectors go where all large content goes; the event stays small.
"""

from __future__ import annotations

import time
from typing import Any

import aiohttp
import orjson

from registry.tenants import Key
from services.gateway import errors
from services.gateway.asgi import Request, Send, header_value, respond
from services.gateway.boundary import named_session, store_reports
from services.gateway.core import Gateway
from services.gateway.names import foreign
from services.gateway.preparing import asked_model, claimed
from services.gateway.upstream import Upstream, forwarded, passed_on, reason
from services.proxy.dialects import MESSAGES
from services.proxy.reports import Reported

_PATH = "/embeddings"


async def embeddings(gateway: Gateway, request: Request, send: Send) -> None:
    """Serve one request for embeddings."""
    key = gateway.authenticate(request, "infer")
    gateway.require_recording(key.tenant)
    parsed, raw = await request.json(gateway.settings.gateway.max_body_bytes)
    model = asked_model(parsed)
    upstream, outgoing = _addressed(gateway, key, model, parsed, raw)
    said = claimed(request, parsed)
    held = gateway.reserve(key, parsed, len(raw))
    session = named_session(gateway, key, said.session_id or f"embeddings:{key.id}")
    started = time.monotonic()
    answer = None
    try:
        status, body, headers = await relayed(upstream, _PATH, request, outgoing)
        answer = _read(body)
    finally:
        gateway.budgets.settle(held, _tokens(answer), None)
    failed = status >= 400 or answer is None
    told = Reported(
        kind="x.embedding",
        name=model,
        arguments={"input": parsed.get("input")},
        result=None if answer is None else answer.get("data"),
        status="error" if failed else "ok",
        error=errors.beginning(body, 2000) if failed else None,
        error_type=f"http_{status}" if failed else None,
        duration_ms=(time.monotonic() - started) * 1000,
        effect="none",
        boundary="inside",
        ext={"usage": answer["usage"]} if answer is not None and "usage" in answer else {},
    )
    (stored,) = await store_reports(gateway, session, [told])
    marks = [
        (b"x-evoplane-event-id", str(stored["id"]).encode()),
        (b"x-evoplane-session-id", header_value(session.session_id)),
    ]
    await respond(send, status, body, [*headers, *marks])


async def count_tokens(gateway: Gateway, request: Request, send: Send) -> None:
    """`POST /v1/messages/count_tokens`: a question about a request, no step of an agent's; passed through."""
    key = gateway.authenticate(request, "infer")
    parsed, raw = await request.json(gateway.settings.gateway.max_body_bytes)
    upstream, outgoing = _addressed(gateway, key, asked_model(parsed), parsed, raw)
    unknown = await foreign(gateway, key, MESSAGES, parsed)
    if unknown is not None and upstream.tenant != key.tenant:
        raise errors.name_unknown(unknown)
    status, body, headers = await relayed(upstream, "/messages/count_tokens", request, outgoing)
    await respond(send, status, body, headers)


async def relayed(
    upstream: Upstream, path: str, request: Request, body: bytes
) -> tuple[int, bytes, list[tuple[bytes, bytes]]]:
    """Status, body and headers of a whole answer; raises `ApiError` when there is none."""
    try:
        async with await upstream.post(path, body, forwarded(request.text_headers)) as response:
            return response.status, await response.read(), passed_on(response)
    except TimeoutError as error:
        raise errors.upstream_timeout(upstream.whom, upstream.timeout_s) from error
    except aiohttp.ClientConnectorError as error:
        raise errors.upstream_unreachable(upstream.whom, reason(error)) from error
    except aiohttp.ClientError as error:
        raise errors.upstream_broken(upstream.whom, reason(error)) from error


def _addressed(gateway: Gateway, key: Key, model: str, parsed: dict[str, Any], raw: bytes) -> tuple[Upstream, bytes]:
    """Who answers for a model, and the body for it: as it came, or with our worker's own name of the model."""
    upstream = gateway.upstreams.serving(model, key.tenant)
    if upstream is not None:
        return upstream, raw
    if model not in gateway.models(key):
        raise gateway.unknown_model(key, model)
    return gateway.upstreams.worker, orjson.dumps({**parsed, "model": gateway.settings.model.name})


def _tokens(answer: dict[str, Any] | None) -> int | None:
    usage = (answer or {}).get("usage")
    total = usage.get("total_tokens") if isinstance(usage, dict) else None
    return total if isinstance(total, int) else None


def _read(body: bytes) -> dict[str, Any] | None:
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None
