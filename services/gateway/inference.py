"""`POST /v1/chat/completions`, `/v1/responses`, `/v1/messages`, `/v1/completions`: one request, in order.

Authenticate, find the session, choose the version and the upstream, apply the version's overlays,
forward, relay, record, and only then release the last byte.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import aiohttp
import orjson

from atdp.ids import new_id
from registry.tenants import Key
from services.gateway import errors
from services.gateway.asgi import JSON, ClientGone, Request, Send, header_value, respond, respond_error
from services.gateway.core import Gateway
from services.gateway.errors import ApiError
from services.gateway.names import foreign
from services.gateway.recall import recall
from services.gateway.relay import StreamRelay
from services.gateway.translation import translated
from services.gateway.upstream import Upstream, forwarded, passed_on
from services.proxy.capture import LARGE_BYTES, Exchange
from services.proxy.clients import CONTROL, MAX_ID_LENGTH, Claim, Line, claim
from services.proxy.completion import Completion
from services.proxy.conversation import NOTHING_SAID
from services.proxy.dialects import CHAT, Dialect
from services.proxy.dialects.base import WrongRequest
from services.proxy.ending import Ending
from services.proxy.lines import line_of
from services.proxy.sessions import Session, Step
from services.proxy.store import StoreUnavailable
from services.proxy.tokens import TokenCapture
from services.proxy.translate import Translator
from services.router.assignment import Served, UnknownVersion
from services.router.overlays import apply_overlays

_AHEAD_S = 0.002
"""An upstream that takes longer leaves time to work ahead; one that does not must not wait for that work."""
_MAX_ERROR_TEXT = 20_000
"""Of an upstream's error page this much is kept in the event."""

Headers = list[tuple[bytes, bytes]]
T = TypeVar("T")


@dataclass(frozen=True)
class Prepared:
    """A request on its way to the upstream."""

    exchange: Exchange
    upstream: Upstream
    path: str
    tokens: TokenCapture | None
    """What has to be taken out of the reply again."""
    translator: Translator | None
    body: bytes


async def infer(gateway: Gateway, request: Request, send: Send, dialect: Dialect) -> None:
    """Serve one request; raises `ApiError` for what is refused before there is an exchange."""
    key = gateway.authenticate(request, "infer")
    gateway.require_recording(key.tenant)
    parsed, raw = await request.json(gateway.settings.gateway.max_body_bytes)
    if isinstance(parsed, dict) and (before := dialect.continues(parsed)) is not None:
        if gateway.unconfirmed.any(key) and gateway.sessions.step(key, before) is None:
            await gateway.unconfirmed.wait(key)
        await recall(gateway, key, before)
    exchange = await _begun(gateway, key, dialect, parsed, len(raw))
    if gateway.unconfirmed.any(key):
        await _confirmed_before(gateway, request, key, exchange, parsed)
    unknown = await foreign(gateway, key, dialect, parsed)
    prepared = prepare(gateway, request, key, exchange, parsed, raw, unknown)
    call = Call(gateway, request, send, prepared)
    try:
        await call.run(forwarded(request.text_headers))
    finally:
        request.stop_watching()
        # behind the record, which may be made when the answer has been written, and settles what was counted
        asyncio.get_running_loop().call_soon(gateway.settle, prepared.exchange)


async def _confirmed_before(
    gateway: Gateway, request: Request, key: Key, exchange: Exchange, parsed: dict[str, Any]
) -> None:
    """What the request goes on from is in the log, or it goes on from nothing that was just answered."""
    said, sessions = claimed(request, parsed), gateway.sessions
    above = sessions.by_id(key, said.parent_session_id) if said.parent_session_id else None
    own = sessions.known(key, said, exchange.prints, exchange.body, exchange.dialect.continues(parsed))
    asked = {NOTHING_SAID, *exchange.prints.meanings[:-1]}

    def matters(other: Exchange) -> bool:
        """Is it of the session or the one above, what this conversation has gone on from, or the same that failed?"""
        if other.session is own or other.session is above:
            return True
        if said.session_id is not None or other.session.key.id != key.id:
            return False
        meanings = other.prints.meanings
        return (meanings[-1] if meanings else NOTHING_SAID) in asked or (other.failed and other.body == exchange.body)

    await gateway.unconfirmed.wait(key, matters)


async def _begun(gateway: Gateway, key: Key, dialect: Dialect, parsed: Any, size: int) -> Exchange:
    """The exchange of a request of `size` bytes: read on a thread when it is large, for others must not wait."""
    asked_model(parsed)
    try:
        dialect.check(parsed)
    except WrongRequest as error:
        raise errors.malformed(str(error), error.param) from error
    said, limit = parsed.get(dialect.content_field), gateway.settings.gateway.max_messages
    if isinstance(said, list) and len(said) > limit:
        raise errors.malformed(
            f"More than {limit} messages in one request (setting gateway.max_messages).", dialect.content_field
        )
    before = _before(gateway, key, dialect, parsed)
    if size <= LARGE_BYTES:
        return Exchange(dialect, parsed, gateway.hash_key(key.tenant), before)
    exchange = await asyncio.to_thread(Exchange, dialect, parsed, gateway.hash_key(key.tenant), before)
    exchange.large = True
    return exchange


def prepare(
    gateway: Gateway,
    request: Request,
    key: Key,
    exchange: Exchange,
    parsed: dict[str, Any],
    raw: bytes,
    unknown: str | None,
) -> Prepared:
    """The exchange bound to its session and version, and the bytes for the upstream.

    `unknown` is what the request names and its tenant was never told: only the tenant's own provider sees that.
    """
    dialect, model = exchange.dialect, parsed["model"]
    exchange.retried = (request.header(b"x-stainless-retry-count") or "0") != "0"
    pinned = _pinned(request, key)
    said = claimed(request, parsed)
    if pinned and said.session_id is None:
        # a probe of one version must not go on where another version's answer happened to be the same
        said = Claim(new_id("se"))
    session = gateway.sessions.find(
        key,
        gateway.train_policy(key.tenant),
        said,
        exchange.prints,
        exchange.body,
        continues=dialect.continues(parsed),
        retried=exchange.retried,
        origin=dialect.name,
    )
    served = _served(gateway, session, pinned)
    upstream, served_name = _upstream(gateway, key, dialect, model, served)
    overlaid, overlays = _overlaid(gateway, key, dialect, parsed, served)
    translator = translated(upstream, dialect, parsed, overlaid)
    if unknown is not None and upstream.tenant != key.tenant:
        raise errors.name_unknown(unknown)
    spoken, asked = (dialect, parsed) if translator is None else (translator.target, translator.request)
    exchange.bind(session, served.version, served.role, overlays, upstream.name)
    _admit(gateway, request, key, exchange)
    exchange.model = None if upstream.own else model
    exchange.line = said.line or _line(exchange, session)
    tokens = TokenCapture(asked) if upstream.own and gateway.token_capture and spoken is CHAT else None
    outgoing = overlaid if translator is None else asked
    if served_name != model:
        outgoing = {**outgoing, "model": served_name}
    if tokens is not None:
        outgoing = tokens.request(outgoing)
    exchange.held = gateway.reserve(key, parsed, len(raw))
    # what nothing was changed in travels as it came, byte for byte
    try:
        body = raw if outgoing is parsed else orjson.dumps(outgoing)
    except TypeError as error:  # read, but nested too deeply to be written again
        raise errors.malformed(f"The request cannot be passed on: {error}") from error
    if translator is not None:
        exchange.translation = translator.record
        tokens = None  # what was asked for does not get past the translation
    return Prepared(exchange, upstream, spoken.path, tokens, translator, body)


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
        ahead = asyncio.get_running_loop().call_later(_AHEAD_S, self._read_ahead)
        try:
            try:
                response = await self._unless_gone(upstream.post(self._prepared.path, self._prepared.body, headers))
            finally:
                ahead.cancel()
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
            await self._failed("timeout", errors.upstream_timeout(upstream.timeout_s))
        except aiohttp.ClientConnectorError as error:
            await self._failed("error", errors.upstream_unreachable(str(error)))
        except aiohttp.ClientError as error:
            await self._failed("error", errors.upstream_broken(str(error) or type(error).__name__))

    def _read_ahead(self) -> None:
        """The upstream has the request: what can be done before its answer is done now."""
        exchange = self._exchange
        if not exchange.large:
            self._gateway.governor.read_ahead(exchange.session.key.tenant, exchange.conversation)

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
        completion = self._exchange.dialect.whole(parsed)
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
        except StoreUnavailable:
            await respond_error(self._send, errors.not_recording(), self._headers(), self._exchange.dialect)
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


def asked_model(parsed: Any) -> str:
    """The model asked for. Only what the gateway itself needs is checked; the rest is the upstream's to judge."""
    if not isinstance(parsed, dict):
        raise errors.malformed("The request body must be a JSON object.")
    model = parsed.get("model")
    if not isinstance(model, str):
        raise errors.malformed("You must provide a model parameter.", "model")
    return model


def _before(gateway: Gateway, key: Key, dialect: Dialect, parsed: dict[str, Any]) -> Step | None:
    """The answer that a request goes on from. What this key's tenant was never told does not exist."""
    id = dialect.continues(parsed)
    if id is None:
        return None
    step = gateway.sessions.step(key, id)
    if step is None:
        code = "previous_response_not_found" if dialect.content_field == "input" else "thread_not_found"
        raise errors.previous_unknown(id, code)
    return step


def claimed(request: Request, parsed: dict[str, Any]) -> Claim:
    """What a request says about its session; raises a 400 `ApiError` for an id that can't be one."""
    said = claim({name: value.strip() for name, value in request.text_headers}, parsed, request.tag)
    if said.session_id is not None and len(said.session_id) > MAX_ID_LENGTH:
        raise errors.malformed(f"A session id is longer than {MAX_ID_LENGTH} characters.")
    if any(id is not None and CONTROL.search(id) for id in (said.session_id, said.parent_session_id)):
        raise errors.malformed("A session id has no control characters.")
    return said


def _served(gateway: Gateway, session: Session, pinned: str | None) -> Served:
    try:
        return gateway.router.serve(session, pinned)
    except UnknownVersion as error:
        raise ApiError(404, f"{error}.", code="version_not_found") from error


def _upstream(gateway: Gateway, key: Key, dialect: Dialect, model: str, served: Served) -> tuple[Upstream, str]:
    """Who answers, and under which model name.

    A name that means the agent's served version is answered by our worker; while no version is registered, and
    for every other name, by the provider whose models it belongs to.
    """
    known = gateway.models(key)
    provider = gateway.upstreams.serving(model, key.tenant)
    if provider is not None and (model not in known or served.unregistered):
        upstream, name = provider, model
    elif model in known:
        upstream, name = gateway.upstreams.worker, served.version.manifest.policy.served_name
    else:
        raise errors.unknown_model(model, known)
    if not upstream.speaks(dialect):
        raise errors.not_spoken(dialect.name, upstream.name)
    return upstream, name


def _admit(gateway: Gateway, request: Request, key: Key, exchange: Exchange) -> None:
    """Raises 429 when training wants no new rollout, to a client whose requests serve training only (its header says
    so). Users are never refused for training's sake, nor is a rollout that has begun."""
    wait = gateway.control.picture.closed.get(key.agent)
    if wait is not None and request.header(b"x-evoplane-training") == "only" and not exchange.extends:
        raise errors.rollouts_wait(wait.why, wait.retry_after_s)


def _overlaid(
    gateway: Gateway, key: Key, dialect: Dialect, parsed: dict[str, Any], served: Served
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    limits = gateway.settings.gateway
    return apply_overlays(
        parsed,
        served.version.manifest,
        key.tenant,
        max_items=limits.memory_items,
        max_bytes=limits.memory_bytes,
        max_total=limits.overlay_bytes,
        dialect=dialect,
    )


def _line(exchange: Exchange, session: Session) -> Line:
    return line_of(
        extends=exchange.extends,
        tools=bool(exchange.request.get("tools")),
        system=exchange.prints.system,
        main_tools=session.tools,
        main_system=session.system,
        main_known=session.tip is not None,
        subagent=session.header.parent is not None and getattr(session.header.parent, "rel", None) == "subagent",
    )


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
