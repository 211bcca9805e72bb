"""`/mcp/{server}`: Model Context Protocol's streamable HTTP, passed through.

Bytes are the server's and the client's own, both ways. Each call of a tool, resource or prompt is an
event before its answer reaches the client. A call belongs to the session that the client names
(`x-evoplane-session-id`, or `/s/<tag>` in the path); else to the one whose model has just made exactly
this call and waits for its result; else to the one that its MCP session was bound to before; else to a
session of the tool server's own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from atdp.ids import new_id
from atdp.records import Cause
from evoplane.settings import McpServer
from registry.tenants import Key
from services.gateway.asgi import Request, Send, sendable
from services.gateway.boundary import session_of, store_reports, waiting_session
from services.gateway.core import Gateway
from services.gateway.errors import ApiError
from services.gateway.jsonrpc import UNANSWERED, End, JsonRpc, Refused, Relay, request_messages, respond_jsonrpc_error
from services.gateway.names import peers_id, tell, unknown
from services.gateway.peers import address, own_key, request_headers, session_named
from services.gateway.upstream import called
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
from services.proxy.mcp_memory import owner_of
from services.proxy.reports import Reported, report_id

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
        messages = request_messages(body)
        url = address(settings.url, below, request.query)
        headers = request_headers(request, settings.headers, apart is not None)
        session = _mcp_session(request)
        if session and await unknown(gateway, key.tenant, [_name(key, name, session)]) is not None:
            raise ApiError(404, "Session not found.", code="session_not_found")
        call = _Exchange(gateway, request, key, name, settings, session)
        id = await call.begin(messages)
    except Refused as error:
        await respond_jsonrpc_error(send, error, error.id, error.rpc_code)
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


def _mcp_session(request: Request) -> str | None:
    """The MCP session that a request names; raises 400 when it names two: the server may take the other one."""
    # some servers can't tell `_` from `-` in a header's name
    named = [value for name, value in request.raw_headers if name.lower().replace(b"_", b"-") == _SESSION]
    if len(named) > 1:
        raise ApiError(400, "A request names one MCP session.", code="ambiguous_request")
    return named[0].decode("latin-1").strip() if named else None


def _name(key: Key, server: str, session: str) -> str:
    """What is remembered of an MCP session that a key's agent was told."""
    return peers_id("mcp", server, key.agent, key.purpose, id=session)


class _Exchange:
    """One HTTP request and the messages that come back on it."""

    def __init__(
        self, gateway: Gateway, request: Request, key: Key, name: str, settings: McpServer, session: str | None
    ) -> None:
        self._gateway = gateway
        self._request = request
        self._key = key
        self._server = Server(name, settings.effects, settings.boundary)
        self._memory = gateway.mcp
        self._book = self._memory.book(key, name)
        self._session_id = session_named(request)
        self._calls: dict[MessageId, Call] = {}
        self._owner = owner_of(key)
        self._mcp_session = session
        self._conversation = self._memory.converse(self._owner, name, session) if session else None
        self.headers: list[tuple[bytes, bytes]] = []

    async def begin(self, messages: list[JsonRpc]) -> Any:
        """Take in what the client sends; gives the id that errors of our own are answered under."""
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

    async def opened(self, headers: Mapping[str, str]) -> None:
        """The reply's head is there: it may begin an MCP session, which is noted before the client can name it."""
        raw = headers.get(_SESSION.decode(), "").encode("utf-8", "surrogateescape")
        id = raw.decode("latin-1").strip()
        if not id or id == self._mcp_session or not sendable(raw):
            return
        first = next(iter(self._calls.values()), None)
        event_id = self._event_id(first) if first is not None else new_id("ev")
        await tell(self._gateway, self._key.tenant, [_name(self._key, self._server.name, id)], event_id)
        if self._conversation is None:
            self._conversation = self._memory.converse(self._owner, self._server.name, id)
            for call in self._calls.values():
                self._run(call)

    async def message(self, message: JsonRpc) -> None:
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
            self._memory.end(self._owner, self._server.name, self._mcp_session or "")

    # -- calls

    def _begin(self, call: Call) -> None:
        self._calls[call.id] = call
        if not call.recorded:
            return
        state = call.params.get("requestState")
        before = self._memory.asked_before(self._owner, self._server.name, state) if isinstance(state, str) else None
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
            self._memory.asks(self._owner, self._server.name, state, session.session_id, told["id"])


async def _logged(work: Any) -> None:
    try:
        await work
    except ApiError as error:
        _log.error("a tool call is lost (gateway.capture is async): %s", error)
