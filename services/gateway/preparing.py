"""From a request to what is asked of an upstream: its session, what it goes on from, which version answers, where."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import orjson

from atdp.ids import new_id
from registry.tenants import Key
from services.gateway import errors
from services.gateway.asgi import Request
from services.gateway.core import Gateway
from services.gateway.errors import ApiError
from services.gateway.translation import translated
from services.gateway.upstream import Upstream
from services.proxy.capture import LARGE_BYTES, Exchange
from services.proxy.clients import CONTROL, MAX_ID_LENGTH, Claim, Line, claim
from services.proxy.conversation import NOTHING_SAID
from services.proxy.dialects import CHAT, Dialect
from services.proxy.dialects.base import WrongRequest
from services.proxy.lines import line_of
from services.proxy.sessions import Session, Step
from services.proxy.tokens import TokenCapture
from services.proxy.translate import Translator
from services.router.assignment import Served, UnknownVersion
from services.router.overlays import apply_overlays


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


async def begun(gateway: Gateway, key: Key, dialect: Dialect, parsed: Any, size: int) -> Exchange:
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


async def confirmed_before(gateway: Gateway, key: Key, exchange: Exchange, parsed: dict[str, Any], said: Claim) -> None:
    """What the request goes on from is in the log, or it goes on from nothing that was just answered."""
    sessions = gateway.sessions
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

    await gateway.caught_up(key, matters)


def prepare(
    gateway: Gateway,
    request: Request,
    key: Key,
    exchange: Exchange,
    parsed: dict[str, Any],
    raw: bytes,
    said: Claim,
    unknown: str | None,
) -> Prepared:
    """The exchange bound to its session and version, and the bytes for the upstream.

    `said` is what the request says of its session. `unknown` is what it names and its tenant was never told: only the
    tenant's own provider sees that.
    """
    dialect, model = exchange.dialect, parsed["model"]
    exchange.retried = (request.header(b"x-stainless-retry-count") or "0") != "0"
    pinned = _pinned(request, key)
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


def asked_model(parsed: Any) -> str:
    """The model asked for. Only what the gateway itself needs is checked; the rest is the upstream's to judge."""
    if not isinstance(parsed, dict):
        raise errors.malformed("The request body must be a JSON object.")
    model = parsed.get("model")
    if not isinstance(model, str):
        raise errors.malformed("You must provide a model parameter.", "model")
    return model


def claimed(request: Request, parsed: dict[str, Any]) -> Claim:
    """What a request says about its session; raises a 400 `ApiError` for an id that can't be one."""
    said = claim({name: value.strip() for name, value in request.text_headers}, parsed, request.tag)
    if said.session_id is not None and len(said.session_id) > MAX_ID_LENGTH:
        raise errors.malformed(f"A session id is longer than {MAX_ID_LENGTH} characters.")
    if any(id is not None and CONTROL.search(id) for id in (said.session_id, said.parent_session_id)):
        raise errors.malformed("A session id has no control characters.")
    return said


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
        raise gateway.unknown_model(key, model)
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
