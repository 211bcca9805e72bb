"""`/a2a/{agent}`: Agent2Agent over JSON-RPC, passed through; what is asked of the other agent is a `handoff`.

Bytes pass unchanged, but for the address in an unsigned agent card, which must lead back here. A task
that goes on after its first answer is an event when it is begun, and one more, caused by the first, when
somebody looks and it has settled. Conversations (`contextId`) stay with the session they began in.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import aiohttp
import orjson
from yarl import URL

from atdp.records import Cause, Status
from registry.tenants import Key
from services.gateway import errors
from services.gateway.asgi import JSON, Request, Send, respond
from services.gateway.boundary import session_of, store_reports
from services.gateway.core import Gateway
from services.gateway.errors import ApiError
from services.gateway.jsonrpc import (
    INVALID_REQUEST,
    UNANSWERED,
    End,
    JsonRpc,
    Refused,
    Relay,
    ambiguous,
    request_messages,
    respond_jsonrpc_error,
)
from services.gateway.names import peers_id, tell, unknown
from services.gateway.peers import address, own_key, request_headers, session_named
from services.gateway.upstream import called, reason
from services.proxy.a2a_calls import ASKING, Handoff, handoff_of, reported, unanswered, update
from services.proxy.a2a_names import doubly_spelled, listing, named_by, named_params, told_by
from services.proxy.clients import CONTROL
from services.proxy.mcp_memory import owner_of
from services.proxy.reports import Reported, report_id

_log = logging.getLogger(__name__)

_CARDS = (".well-known/agent-card.json", ".well-known/agent.json")


async def a2a(gateway: Gateway, request: Request, send: Send, rest: str) -> None:
    """Relay one request to the agent that the path names."""
    id: Any = None
    try:
        apart = own_key(gateway.control.picture.keys, request, "infer")
        key = apart or gateway.authenticate(request, "infer")
        name, _, below = rest.partition("/")
        settings = gateway.settings.a2a.get(name)
        if settings is None or settings.tenant not in (None, key.tenant):
            raise ApiError(404, f"No agent {name!r}; add [a2a.{name}] to evoplane.toml.", code="unknown_agent")
        url = address(settings.url, below, request.query)
        headers = request_headers(request, settings.headers, apart is not None)
        if request.method == "GET" and below in _CARDS:
            await _card(gateway, request, send, name, URL(settings.url), below, headers)
            return
        if request.method not in ("POST", "GET"):
            raise ApiError(405, f"Use POST for {request.path}.", code="method_not_allowed")
        gateway.require_recording(key.tenant)
        body = await request.body(gateway.settings.gateway.max_body_bytes)
        messages = request_messages(body)
        wrong = next((each for each in messages if not isinstance(each.get("method", ""), str)), None)
        if wrong is not None:
            error = errors.malformed("A method is a string.")
            await respond_jsonrpc_error(send, error, wrong.get("id"), INVALID_REQUEST)
            return
        call = _Exchange(gateway, request, key, name, messages)
        id = call.id
        if settings.tenant is None:
            await _require_own(gateway, key, name, request.method + below, messages)
    except Refused as error:
        await respond_jsonrpc_error(send, error, error.id, error.rpc_code)
        return
    except ApiError as error:
        await respond_jsonrpc_error(send, error, id)
        return
    opening = gateway.peers.open(request.method, url, headers, body if request.method == "POST" else None)
    relay = Relay(request, send, call, id)
    relay.headers = call.headers
    try:
        await relay.run(opening, called("agent", name, settings.url), gateway.peers.timeout_s)
    except asyncio.CancelledError:
        gateway.spawn(call.ended("broken", None, "the gateway stopped"))
        raise


async def _require_own(gateway: Gateway, key: Key, agent: str, call: str, messages: list[JsonRpc]) -> None:
    """Raises for what could reach other tenants' tasks: the agent knows one client, the gateway, and tells it all."""
    if call != "POST" or not messages:
        raise ApiError(400, "Only JSON-RPC requests pass to an agent that tenants share.", code="not_json_rpc")
    for message in messages:
        if doubly_spelled(message):
            raise ambiguous(message.get("id"))
        if not named_params(message):
            raise Refused(message.get("id"), -32602, "Parameters are an object", "invalid_params")
        if listing(message):
            text = "Tasks are not listed where tenants share an agent"
            raise Refused(message.get("id"), -32004, text, "unsupported_operation")
        if await unknown(gateway, key.tenant, [_name(agent, id) for id in named_by(message)]) is not None:
            raise Refused(message.get("id"), -32001, "Task not found", "task_not_found")


def _name(agent: str, id: str) -> str:
    """What a task's or a context's id is remembered under, beside the ids of models' answers."""
    return peers_id("a2a", agent, id=id)


class _Exchange:
    """One HTTP request and the answers that come back on it."""

    def __init__(self, gateway: Gateway, request: Request, key: Key, agent: str, messages: list[JsonRpc]) -> None:
        self._gateway = gateway
        self._key = key
        self._agent = agent
        self._session_id = session_named(request)
        self._memory = gateway.traces
        self._owner = owner_of(key)
        self._handoff = next((found for message in messages if (found := handoff_of(message)) is not None), None)
        self.id = self._handoff.id if self._handoff is not None else None
        self.headers: list[tuple[bytes, bytes]] = []
        if self._handoff is not None and self._handoff.method in ASKING:
            self.headers = [(b"x-evoplane-event-id", self._event_id(self._handoff).encode())]

    async def opened(self, headers: Mapping[str, str]) -> None:
        """Nothing in an A2A reply's head tells more."""

    async def message(self, message: JsonRpc) -> None:
        handoff = self._handoff
        if handoff is None or message.get("id") != handoff.id:
            return
        update(handoff, message)
        # before the client can name them
        names = [_name(self._agent, id) for id in told_by(message)]
        await tell(self._gateway, self._key.tenant, names, self._event_id(handoff))
        if handoff.settled:
            self._handoff = None
            await self._store(handoff, None)

    async def ended(self, how: End, status: int | None, detail: str) -> None:
        handoff, self._handoff = self._handoff, None
        if handoff is None:
            return
        if how == "complete" and handoff.task:  # the task goes on without this request
            await self._store(handoff, None)
            return
        outcome, kind = UNANSWERED[how]
        if how == "complete" and status is not None and status >= 400:
            outcome, kind = "error", f"http_{status}"
        await self._store(handoff, (outcome, kind, detail))

    async def _store(self, handoff: Handoff, broken: tuple[Status, str, str] | None) -> None:
        """A hand-off is stored when it was asked, and when a look finds it settled; a look that finds less is none."""
        asked = handoff.method in ASKING
        task = f"a2a:{self._agent}:{handoff.task_id}"
        before = self._memory.event(self._owner, task, "") if handoff.task_id is not None else None
        if not asked and (broken is not None or not handoff.settled or before is None):
            return
        causes = [Cause(id=before, rel="input")] if before is not None else []
        event = (
            reported(self._agent, handoff, causes)
            if broken is None
            else unanswered(self._agent, handoff, causes, *broken)
        )
        work = self._record(handoff, event)
        if self._gateway.settings.gateway.capture == "durable":
            await work
        else:
            self._gateway.spawn(_logged(work))
        if handoff.task_id is not None:
            if handoff.settled:
                self._memory.forget(self._owner, task)
            else:
                self._memory.is_event(self._owner, task, "", self._event_id(handoff))

    async def _record(self, handoff: Handoff, event: Reported) -> None:
        context = handoff.context_id or handoff.task_id or handoff.report_id
        conversation = f"a2a:{self._agent}:{context}"
        event.session_id = self._session_id or self._memory.session(self._owner, conversation)
        event.session_hint = CONTROL.sub("?", f"a2a-{self._agent}-{context}"[:200])
        session = session_of(self._gateway, self._key, event)
        await store_reports(self._gateway, session, [event])
        self._memory.belongs(self._owner, conversation, session.session_id)

    def _event_id(self, handoff: Handoff) -> str:
        return report_id(self._key, Reported(kind="handoff", id=handoff.report_id))


async def _card(gateway: Gateway, request: Request, send: Send, agent: str, url: URL, path: str, headers: Any) -> None:
    """The agent's card; unless it is signed, its addresses lead to this gateway."""
    whom = called("agent", agent, str(url))
    try:
        async with await gateway.peers.open("GET", url.origin().joinpath(*path.split("/")), headers, None) as response:
            body = await response.read()
            status = response.status
    except TimeoutError as error:
        raise errors.upstream_timeout(whom, gateway.peers.timeout_s) from error
    except aiohttp.ClientError as error:
        raise errors.upstream_unreachable(whom, reason(error)) from error
    try:
        card = orjson.loads(body)
    except orjson.JSONDecodeError:
        card = None
    if status == 200 and isinstance(card, dict) and not card.get("signatures"):
        body = orjson.dumps(_led_here(card, f"{_base(request)}/a2a/{agent}"))
    await respond(send, status, body, [JSON])


def _led_here(card: dict[str, Any], url: str) -> dict[str, Any]:
    """The card with this address; of its transports only the one that is passed through is left."""
    found = {**card, **({"url": url} if "url" in card else {})}
    for name, kind in (("additionalInterfaces", "transport"), ("supportedInterfaces", "protocolBinding")):
        if isinstance(card.get(name), list):
            spoken = [each for each in card[name] if isinstance(each, dict) and each.get(kind, "JSONRPC") == "JSONRPC"]
            found[name] = [{**each, "url": url} for each in spoken]
    return found


def _base(request: Request) -> str:
    """The gateway's address as the client wrote it, with its session's tag."""
    host = request.header(b"host") or "127.0.0.1"
    scheme = request.header(b"x-forwarded-proto") or "http"
    return f"{scheme}://{host}" + (f"/s/{request.tag}" if request.tag else "")


async def _logged(work: Any) -> None:
    try:
        await work
    except ApiError as error:
        _log.error("a hand-off is lost (gateway.capture is async): %s", error)
