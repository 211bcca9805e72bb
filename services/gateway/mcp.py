"""`/mcp/{server}`: Model Context Protocol's streamable HTTP, passed through.

Bytes are the server's and the client's own, both ways. Each call of a tool, resource or prompt is an
event before its answer reaches the client. A call belongs to the session that the client names
(`x-evoplane-session-id`, or `/s/<tag>` in the path); else to the one whose model has just made exactly
this call and waits for its result; else to the one that its MCP session was bound to before; else to a
session of the tool server's own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from typing import Any

from atdp.records import Cause
from evoplane.settings import McpServer
from registry.tenants import Key
from services.gateway import errors
from services.gateway.asgi import Request, Send
from services.gateway.boundary import session_of, store_reports, waiting_session
from services.gateway.core import Gateway
from services.gateway.errors import ApiError
from services.gateway.jsonrpc import UNANSWERED, End, JsonRpc, Relay, request_messages, respond_jsonrpc_error
from services.gateway.peers import address, own_key, request_headers, session_named
from services.gateway.upstream import called
from services.proxy.drafts import Answer
from services.proxy.engines.base import StorageFailed
from services.proxy.mcp_calls import (
    Call,
    MessageId,
    Server,
    answered,
    call_of,
    cancelled_id,
    is_answer,
    message_id,
    unanswered,
)
from services.proxy.mcp_memory import SessionNotFound, owner_of
from services.proxy.reports import Reported, report_id
from services.proxy.sessions import MAX_ID_LENGTH
from services.proxy.store import StoreUnavailable

_log = logging.getLogger(__name__)

_SESSION = b"mcp-session-id"


async def mcp(gateway: Gateway, request: Request, send: Send, rest: str) -> None:
    """Relay one request to the server that the path names."""
    id: Any = None
    try:
        apart = own_key(gateway.control.picture.keys, request, "infer")
        key = apart or gateway.authenticate(request, "infer")
        name, _, below = rest.partition("/")
        settings = gateway.settings.mcp.get(name)
        if settings is None:
            raise ApiError(404, f"No tool server {name!r}; add [mcp.{name}] to evoplane.toml.", code="unknown_server")
        if request.method not in ("POST", "GET", "DELETE", "HEAD"):
            raise ApiError(405, f"Use POST, GET or DELETE for {request.path}.", code="method_not_allowed")
        gateway.require_recording(key.tenant)
        body = await request.body(gateway.settings.gateway.max_body_bytes)
        await _require_own(gateway, key.tenant, name, request)
        call = _Exchange(gateway, request, key, name, settings)
        id = await call.begin(request_messages(body))
        headers = request_headers(request, settings.headers, apart is not None)
        url = address(settings.url, below, request.query)
    except SessionNotFound:
        await respond_jsonrpc_error(send, ApiError(404, "Session not found.", code="session_not_found"), id)
        return
    except ApiError as error:
        await respond_jsonrpc_error(send, error, id)
        return
    opening = gateway.peers.open(
        request.method,
        url,
        headers,
        body if request.method == "POST" else None,
        endless=request.method == "GET",
    )
    relay = Relay(request, send, call, id)
    relay.headers = call.headers
    try:
        await relay.run(opening, called("tool server", name, settings.url), gateway.peers.timeout_s)
    except asyncio.CancelledError:
        gateway.spawn(call.ended("broken", None, "the gateway stopped"))
        raise


async def _require_own(gateway: Gateway, tenant: str, server: str, request: Request) -> None:
    """Raises `SessionNotFound` for an MCP session that is another tenant's, however long ago it was begun."""
    id = request.header(_SESSION)
    if not id or len(id) > MAX_ID_LENGTH or gateway.mcp.knows(server, id):
        return
    others = [each for each in gateway.control.picture.tenants if each != tenant]
    name = _name(server, id)
    try:
        theirs = await asyncio.to_thread(lambda: any(gateway.reader.answer(each, name) for each in others))
    except StorageFailed as error:
        raise errors.not_recording() from error
    if theirs:
        raise SessionNotFound(id)


def _name(server: str, id: str) -> str:
    """What an MCP session is remembered under in its tenant's log, beside the ids of models' answers."""
    return f"mcp:{server}:{id}"


class _Exchange:
    """One HTTP request and the messages that come back on it."""

    def __init__(self, gateway: Gateway, request: Request, key: Key, name: str, settings: McpServer) -> None:
        self._gateway = gateway
        self._request = request
        self._key = key
        self._server = Server(name, settings.effects, settings.boundary)
        self._memory = gateway.mcp
        self._book = self._memory.book(key, name)
        self._session_id = session_named(request)
        self._calls: dict[MessageId, Call] = {}
        id = request.header(_SESSION)
        self._mcp_id = id if id and len(id) <= MAX_ID_LENGTH else None
        self._conversation = self._memory.converse(owner_of(key), name, self._mcp_id) if self._mcp_id else None
        self.headers: list[tuple[bytes, bytes]] = []

    async def begin(self, messages: list[JsonRpc]) -> Any:
        """Take in what the client sends; gives the id that errors of our own are answered under."""
        await self._keep()
        first = None
        for message in messages:
            call = call_of(message)
            if call is not None:
                first = first or call
                self._begin(call)
            elif is_answer(message):
                await self._client_answered(message)
            elif self._conversation is not None and (cancelled := cancelled_id(message)) is not None:
                self._conversation.cancelled.add(cancelled)
        return None if first is None else first.id[1]

    async def _keep(self) -> None:
        """Have in the log whose MCP session this is, before anything is said in it: a restart forgets it here."""
        known = self._conversation
        if known is None or known.kept or self._mcp_id is None:
            return
        name = _name(self._server.name, self._mcp_id)
        try:
            await self._gateway.store.append(self._key.tenant, [Answer(name, "mcp")])
        except StoreUnavailable as error:
            raise errors.unrecorded(error) from error
        known.kept = True

    def opened(self, headers: Mapping[str, str]) -> None:
        """The reply's head is there: it may begin an MCP session."""
        id = headers.get(_SESSION.decode())
        if id is not None and self._conversation is None and len(id) <= MAX_ID_LENGTH:
            with contextlib.suppress(SessionNotFound):
                self._conversation = self._memory.converse(owner_of(self._key), self._server.name, id)
                self._mcp_id = id
            for call in self._calls.values():
                self._run(call)

    async def message(self, message: JsonRpc) -> None:
        await self._keep()
        asked = call_of(message)
        if asked is not None:
            if self._conversation is not None and asked.recorded:
                running = list(self._conversation.running.values())
                asked.parent_id = running[0] if len(running) == 1 else None
                self._conversation.asked[asked.id] = asked
            return
        call = self._calls.pop(message_id(message), None) if is_answer(message) else None
        if call is None:
            return
        self._done(call)
        self._book.read(call.method, message)
        if call.recorded:
            await self._store(call, answered(self._server, self._book, call, message), message)

    async def ended(self, how: End, status: int | None, detail: str) -> None:
        left, self._calls = list(self._calls.values()), {}
        for call in left:
            outcome, kind = UNANSWERED[how]
            if how == "complete" and status is not None and status >= 400:
                outcome, kind = "error", f"http_{status}"
            elif self._conversation is not None and call.id in self._conversation.cancelled:
                outcome, kind = "cancelled", "cancelled"
            self._done(call)
            if call.recorded:
                await self._store(call, unanswered(self._server, self._book, call, outcome, kind, detail), {})
        if self._request.method == "DELETE" and how == "complete" and status is not None and status < 300:
            id = self._request.header(_SESSION) or ""
            self._memory.end(self._server.name, id)

    # -- calls

    def _begin(self, call: Call) -> None:
        self._calls[call.id] = call
        if not call.recorded:
            return
        state = call.params.get("requestState")
        owner, server = owner_of(self._key), self._server.name
        before = self._memory.asked_before(owner, server, state) if isinstance(state, str) else None
        if before is not None:
            self._session_id = self._session_id or before[0]
            call.causes.append(Cause(id=before[1], rel="input"))
        self._run(call)
        self.headers = [(b"x-evoplane-event-id", self._event_id(call).encode())]

    def _run(self, call: Call) -> None:
        if self._conversation is None or not call.recorded:
            return
        self._conversation.running[call.id] = self._event_id(call)
        # what the server asks while this call runs belongs where the call does
        probe = unanswered(self._server, self._book, call, "unknown", "", "")
        if (session := waiting_session(self._gateway, self._key, probe)) is not None:
            self._conversation.session_id = session.session_id

    def _done(self, call: Call) -> None:
        if self._conversation is not None:
            self._conversation.running.pop(call.id, None)
            self._conversation.cancelled.discard(call.id)

    def _event_id(self, call: Call) -> str:
        return report_id(self._key, Reported(kind="tool_call", id=call.report_id))

    async def _client_answered(self, message: JsonRpc) -> None:
        """The client's answer to what the server had asked, which came on another request."""
        asked = self._conversation.asked.pop(message_id(message), None) if self._conversation is not None else None
        if asked is not None:
            await self._store(asked, answered(self._server, self._book, asked, message), message)

    # -- where it goes

    async def _store(self, call: Call, reported: Reported, answer: JsonRpc) -> None:
        """Durable before the client goes on, unless capture is async."""
        work = self._record(reported, answer)
        if self._gateway.settings.gateway.capture == "durable":
            await work
        else:
            self._gateway.spawn(_logged(work))

    async def _record(self, reported: Reported, answer: JsonRpc) -> None:
        reported.session_id = self._session_id
        reported.session_hint = (
            f"mcp-{self._server.name}-{self._key.id}" if self._conversation is None else self._conversation.session_id
        )
        await self._gateway.confirmed(self._key, None if self._session_id is None else [self._session_id])
        session = session_of(self._gateway, self._key, reported)
        (told,) = await store_reports(self._gateway, session, [reported])
        if self._conversation is not None:
            self._conversation.session_id = session.session_id
        result = answer.get("result")
        if reported.unfinished and isinstance(result, dict) and isinstance(state := result.get("requestState"), str):
            self._memory.asks(owner_of(self._key), self._server.name, state, session.session_id, told["id"])


async def _logged(work: Any) -> None:
    try:
        await work
    except ApiError as error:
        _log.error("a tool call is lost (gateway.capture is async): %s", error)
