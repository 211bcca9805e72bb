"""`POST /v1/chat/completions`: one request, in order.

Authenticate, find the session, choose the version, apply its overlays, forward, relay, record, and
only then release the last byte.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

import aiohttp
import orjson

from atdp.ids import new_id
from registry.tenants import Key
from services.gateway import errors
from services.gateway.asgi import Request, Send, respond, respond_error
from services.gateway.core import Gateway
from services.gateway.errors import ApiError
from services.gateway.relay import StreamRelay
from services.gateway.upstream import passed_on
from services.proxy.assemble import from_body
from services.proxy.capture import Exchange
from services.proxy.ending import Ending
from services.proxy.sessions import MAX_ID_LENGTH
from services.proxy.store import StoreUnavailable
from services.proxy.tokens import TokenCapture
from services.router.assignment import UnknownVersion
from services.router.overlays import apply_overlays

_PATH = "/v1/chat/completions"
_FORWARDED = (b"x-request-id", b"traceparent", b"accept")
_MAX_ERROR_TEXT = 20_000
"""Of an upstream's error page this much is kept in the event."""

Headers = list[tuple[bytes, bytes]]


async def chat_completions(gateway: Gateway, request: Request, send: Send) -> None:
    """Serve one chat completion; raises `ApiError` for what is refused before there is an exchange."""
    key = gateway.authenticate(request, "infer")
    gateway.require_recording()
    exchange, tokens, body = await _prepare(gateway, request, key)
    call = _Call(gateway, request, send, exchange, tokens)
    try:
        await call.run(body)
    finally:
        request.stop_watching()


async def _prepare(gateway: Gateway, request: Request, key: Key) -> tuple[Exchange, TokenCapture, bytes]:
    """The exchange bound to its session and version, and the bytes for the upstream."""
    parsed, raw = await request.json(gateway.settings.gateway.max_body_bytes)
    _check(gateway, key, parsed)
    exchange = Exchange(parsed, raw)
    exchange.retried = (request.header(b"x-stainless-retry-count") or "0") != "0"
    pinned = _pinned(request, key)
    # a probe of one version must not go on where another version's answer happened to be the same
    session_id = _session_id(request) or (new_id("se") if pinned else None)
    session = gateway.sessions.find(
        key,
        gateway.train_policy(key.tenant),
        session_id,
        exchange.meanings,
        exchange.body,
        exchange.retried,
    )
    try:
        served = gateway.router.serve(session, pinned)
    except UnknownVersion as error:
        raise ApiError(404, f"{error}.", code="version_not_found") from error
    manifest = served.version.manifest
    limits = gateway.settings.gateway
    overlaid, overlays = apply_overlays(
        parsed, manifest, key.tenant, max_items=limits.memory_items, max_bytes=limits.memory_bytes
    )
    exchange.bind(session, served.version, served.role, overlays, gateway.upstream.name)
    tokens = TokenCapture(parsed)
    forwarded = {**overlaid, "model": manifest.policy.served_name}
    if gateway.token_capture:
        forwarded = tokens.request(forwarded)
    return exchange, tokens, orjson.dumps(forwarded)


class _Call:
    """One exchange on its way."""

    def __init__(
        self, gateway: Gateway, request: Request, send: Send, exchange: Exchange, tokens: TokenCapture
    ) -> None:
        self._gateway = gateway
        self._request = request
        self._send = send
        self._exchange = exchange
        self._tokens = tokens
        self._upstream_s = 0.0

    async def run(self, body: bytes) -> None:
        headers = {name.decode(): value for name in _FORWARDED if (value := self._request.header(name)) is not None}
        started = time.monotonic()
        try:
            response = await self._unless_gone(self._gateway.upstream.post(_PATH, body, headers))
            if response is None:
                return
            self._upstream_s = time.monotonic() - started
            async with response:
                streaming = response.content_type == "text/event-stream" and response.status == 200
                if streaming:
                    relay = StreamRelay(self._gateway, self._request, self._send, self._exchange, self._tokens)
                    await relay.run(response, self._headers())
                else:
                    await self._whole(response, started)
        except TimeoutError:
            await self._failed("timeout", errors.upstream_timeout(self._gateway.upstream.timeout_s))
        except aiohttp.ClientConnectorError as error:
            await self._failed("error", errors.upstream_unreachable(str(error)))
        except aiohttp.ClientError as error:
            await self._failed("error", errors.upstream_broken(str(error) or type(error).__name__))

    async def _whole(self, response: aiohttp.ClientResponse, started: float) -> None:
        """A reply that is one body."""
        raw = await self._unless_gone(response.read())
        if raw is None:
            return
        self._upstream_s = time.monotonic() - started
        body = raw
        parsed = _json(raw)
        if response.status >= 400:
            ending = _refused(response.status, raw, parsed)
        elif parsed is None or not isinstance(parsed.get("choices"), list):
            ending = _refused(response.status, raw, parsed, "invalid_response")
        else:
            completion = from_body(parsed)
            ending = Ending("ok" if completion.finished else "unknown", completion)
            if self._gateway.token_capture:
                body = self._tokens.body(parsed)
        if await self._recorded(ending):
            await respond(self._send, response.status, body, [*passed_on(response), *self._headers()])
            self._mirror(ending)

    async def _failed(self, status: Any, error: ApiError) -> None:
        """No reply: record that, and say it."""
        ending = Ending(status, error_type=error.code, error_message=str(error))
        if await self._recorded(ending):
            await respond_error(self._send, error, self._headers())

    async def _recorded(self, ending: Ending) -> bool:
        """Make it durable; on failure tell the client instead of acknowledging."""
        try:
            await self._gateway.record(self._exchange, ending)
        except StoreUnavailable:
            await respond_error(self._send, errors.not_recording(), self._headers())
            return False
        return True

    async def _unless_gone(self, work: Any) -> Any:
        """The result of `work`, or None when the client left first: then that is recorded."""
        task = asyncio.ensure_future(work)
        gone = self._request.watch()
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        with contextlib.suppress(StoreUnavailable):  # counted where it was refused; nobody is left to tell
            await self._gateway.record(self._exchange, Ending("cancelled", ext={"client_disconnected": True}))
        return None

    def _headers(self) -> Headers:
        """What every reply carries about itself."""
        exchange = self._exchange
        overhead = max(0.0, time.monotonic() - exchange.clock - self._upstream_s)
        self._gateway.metrics.overhead_seconds += overhead
        self._gateway.metrics.overhead_count += 1
        return [
            (b"x-evoplane-event-id", exchange.event_id.encode()),
            (b"x-evoplane-session-id", exchange.session.session_id.encode("latin-1", "replace")),
            (b"x-evoplane-agent-version", exchange.version.version.encode()),
            (b"x-evoplane-overhead-ms", b"%.2f" % (overhead * 1000)),
        ]

    def _mirror(self, ending: Ending) -> None:
        if ending.status == "ok":
            self._gateway.shadow.offer(self._exchange)


def _check(gateway: Gateway, key: Key, parsed: Any) -> None:
    """Only what the gateway itself needs; the rest is the upstream's to judge."""
    if not isinstance(parsed, dict):
        raise errors.malformed("The request body must be a JSON object.")
    model = parsed.get("model")
    if not isinstance(model, str):
        raise errors.malformed("You must provide a model parameter.", "model")
    if model not in (known := gateway.models(key)):
        raise errors.unknown_model(model, known)
    if not isinstance(parsed.get("messages"), list):
        raise errors.malformed("'messages' must be an array of messages.", "messages")


def _session_id(request: Request) -> str | None:
    value = request.header(b"x-evoplane-session-id")
    if value is not None and len(value) > MAX_ID_LENGTH:
        raise errors.malformed(f"x-evoplane-session-id is longer than {MAX_ID_LENGTH} characters.")
    return value or None


def _pinned(request: Request, key: Key) -> str | None:
    label = request.header(b"x-evoplane-pin-version")
    if label is not None and key.purpose == "serve":
        raise ApiError(
            403,
            "x-evoplane-pin-version needs a key made for evaluating or operating.",
            type="permission_error",
            code="pin_not_allowed",
        )
    return label or None


def _refused(status: int, raw: bytes, parsed: dict[str, Any] | None, kind: str | None = None) -> Ending:
    """An upstream's error, as the event has it; the client gets the upstream's own bytes."""
    error = (parsed or {}).get("error")
    if kind is None:
        named = error.get("type") or error.get("code") if isinstance(error, dict) else None
        kind = str(named or f"http_{status}")
    text = raw[:_MAX_ERROR_TEXT].decode(errors="replace")
    return Ending("error", error_type=kind, error_message=text, ext={"http_status": status})


def _json(raw: bytes) -> dict[str, Any] | None:
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None
