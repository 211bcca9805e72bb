"""`POST /v1/chat/completions`, `/v1/responses`, `/v1/messages`, `/v1/completions`: one request, in order.

Authenticate, find the session, choose the version and the upstream, apply the version's overlays,
forward, relay, record, and only then release the last byte.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import aiohttp

from services.gateway import errors
from services.gateway.asgi import JSON, ClientGone, Request, Send, header_value, respond, respond_error
from services.gateway.core import Gateway
from services.gateway.errors import ApiError, beginning
from services.gateway.names import foreign
from services.gateway.preparing import Prepared, begun, claimed, confirmed_before, prepare
from services.gateway.recall import recall
from services.gateway.relay import StreamRelay
from services.gateway.upstream import forwarded, passed_on, reason
from services.proxy.capture import LARGE_BYTES
from services.proxy.completion import Completion
from services.proxy.dialects import Dialect
from services.proxy.ending import Ending
from services.proxy.lenient import mended, read_json
from services.proxy.redaction.failure import described
from services.proxy.store import StoreUnavailable

_log = logging.getLogger(__name__)

_AHEAD_S = 0.002
"""An upstream that takes longer leaves time to work ahead; one that does not must not wait for that work."""
Headers = list[tuple[bytes, bytes]]
T = TypeVar("T")


async def infer(gateway: Gateway, request: Request, send: Send, dialect: Dialect) -> None:
    """Serve one request; raises `ApiError` for what is refused before there is an exchange."""
    key = gateway.authenticate(request, "infer")
    gateway.require_recording(key.tenant)
    parsed, raw = await request.json(gateway.settings.gateway.max_body_bytes)
    if isinstance(parsed, dict) and (before := dialect.continues(parsed)) is not None:
        if gateway.unconfirmed.any(key) and gateway.sessions.step(key, before) is None:
            await gateway.caught_up(key)
        await recall(gateway, key, before)
    exchange = await begun(gateway, key, dialect, parsed, len(raw))
    said = claimed(request, parsed)
    if gateway.unconfirmed.any(key):
        await confirmed_before(gateway, key, exchange, parsed, said)
    unknown = await foreign(gateway, key, dialect, parsed)
    prepared = prepare(gateway, request, key, exchange, parsed, raw, said, unknown)
    call = Call(gateway, request, send, prepared)
    try:
        await call.run(forwarded(request.text_headers))
    finally:
        request.stop_watching()
        # behind the record, which may be made when the answer has been written, and settles what was counted
        asyncio.get_running_loop().call_soon(gateway.settle, prepared.exchange)


class Call:
    """One exchange on its way."""

    def __init__(self, gateway: Gateway, request: Request, send: Send, prepared: Prepared) -> None:
        self._gateway = gateway
        self._request = request
        self._send = send
        self._prepared = prepared
        self._exchange = prepared.exchange
        self._upstream_s = 0.0

    async def run(self, headers: list[tuple[str, str]]) -> None:
        upstream = self._prepared.upstream
        started = time.monotonic()
        prepare = asyncio.get_running_loop().call_later(_AHEAD_S, self._gateway.prepare, self._exchange)
        try:
            try:
                response = await self._unless_gone(upstream.post(self._prepared.path, self._prepared.body, headers))
            finally:
                prepare.cancel()
            if response is None:
                return
            self._upstream_s = time.monotonic() - started
            if upstream.own:
                self._exchange.weights = response.headers.get("x-evoplane-weights", "")
            async with response:
                streaming = response.content_type == "text/event-stream" and response.status == 200
                if streaming:
                    await self._relay().run(response, self._headers())
                else:
                    await self._whole(response, started)
        except TimeoutError:
            await self._failed("timeout", errors.upstream_timeout(upstream.whom, upstream.timeout_s))
        except aiohttp.ClientConnectorError as error:
            await self._failed("error", errors.upstream_unreachable(upstream.whom, reason(error)))
        except aiohttp.ClientError as error:
            await self._failed("error", errors.upstream_broken(upstream.whom, reason(error)))

    def _relay(self) -> StreamRelay:
        prepared = self._prepared
        return StreamRelay(
            self._gateway, self._request, self._send, self._exchange, prepared.tokens, prepared.translator
        )

    async def _whole(self, response: aiohttp.ClientResponse, started: float) -> None:
        """A reply that is one body."""
        raw = await self._unless_gone(response.read())
        if raw is None:
            return
        self._upstream_s = time.monotonic() - started
        self._exchange.large = self._exchange.large or len(raw) > LARGE_BYTES
        parsed = _json(raw)
        read = None if parsed is None or response.status >= 400 else self._read(raw, parsed)
        status, headers, body = response.status, passed_on(response), raw
        if read is None:
            ending = _refused(status, raw, parsed, None if status >= 400 else "invalid_response")
            if self._prepared.translator is not None:
                status = status if status >= 400 else 502
                body = self._prepared.translator.error(status, raw, parsed)
        else:
            body, completion = read
            ending = Ending("ok" if completion.finished else "unknown", completion)
            if completion.error is not None:
                ending.status, ending.error_type = "error", str(completion.error.get("code") or "upstream_error")
                ending.error_message = str(completion.error.get("message") or "")
        if self._prepared.translator is not None:
            headers = [JSON, *(header for header in headers if header[0] != b"content-type")]
        go_on = await self._recorded(ending)
        if go_on is None:
            return
        try:
            await respond(self._send, status, body, [*headers, *self._headers()])
        finally:
            go_on()
        if ending.status == "ok":
            self._gateway.shadow.offer(self._exchange)

    def _read(self, raw: bytes, parsed: dict[str, Any]) -> tuple[bytes, Completion] | None:
        """A whole answer as the client gets it, and what it says; None when it is none."""
        prepared = self._prepared
        if prepared.translator is not None:
            return prepared.translator.whole(parsed)
        try:
            completion = self._exchange.dialect.whole(parsed)
        except Exception as error:  # it may say anything; the client gets it, and the event its text
            _log.error("event %s: the answer can't be read: %s", self._exchange.event_id, described(error))
            return None
        if completion is None:
            return None
        return (raw if prepared.tokens is None else prepared.tokens.body(parsed)), completion

    async def _failed(self, status: Any, error: ApiError) -> None:
        """No reply: record that, and say it."""
        ending = Ending(status, error_type=error.code, error_message=str(error))
        go_on = await self._recorded(ending)
        if go_on is not None:
            go_on()
            await respond_error(self._send, error, self._headers(), self._exchange.dialect)

    async def _recorded(self, ending: Ending) -> Callable[[], None] | None:
        """Make it durable; on failure tell the client instead. Gives what to call behind the answer."""
        try:
            return await self._gateway.record(self._exchange, ending)
        except StoreUnavailable as error:
            # without the name of an event that nobody will find
            headers = [header for header in self._headers() if header[0] != b"x-evoplane-event-id"]
            await respond_error(self._send, errors.unrecorded(error), headers, self._exchange.dialect)
            return None

    async def _unless_gone(self, work: Awaitable[T]) -> T | None:
        """The result of `work`, or None when the client left first: then that is recorded."""
        try:
            return await self._request.unless_gone(work)
        except ClientGone:
            with contextlib.suppress(StoreUnavailable):  # counted where it was refused; nobody is left to tell
                gone = Ending("cancelled", ext={"client_disconnected": True})
                (await self._gateway.record(self._exchange, gone))()
            return None

    def _headers(self) -> Headers:
        """What every reply carries about itself."""
        exchange = self._exchange
        overhead = max(0.0, time.monotonic() - exchange.clock - self._upstream_s)
        self._gateway.metrics.took(overhead)
        return [
            (b"x-evoplane-event-id", exchange.event_id.encode()),
            (b"x-evoplane-session-id", header_value(exchange.session.session_id)),
            (b"x-evoplane-agent-version", exchange.version.version.encode()),
            (b"x-evoplane-overhead-ms", b"%.2f" % (overhead * 1000)),
        ]


def _refused(status: int, raw: bytes, parsed: dict[str, Any] | None, kind: str | None = None) -> Ending:
    """An upstream's error, as the event has it; the client gets the upstream's own bytes."""
    error = (parsed or {}).get("error")
    if kind is None:
        named = error.get("type") or error.get("code") if isinstance(error, dict) else None
        kind = str(named or f"http_{status}")
    return Ending("error", error_type=kind, error_message=beginning(raw), ext={"http_status": status})


def _json(raw: bytes) -> dict[str, Any] | None:
    read = read_json(raw)
    value = mended(read.value) if read.odd else read.value
    return value if isinstance(value, dict) else None
