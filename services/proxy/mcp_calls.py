"""Model Context Protocol's messages as steps of an agent, in both of its eras (2025-11-25 and 2026-07-28).

`tools/call` is a `tool_call`; `resources/read` and `prompts/get` are `retrieval`; what a server asks of
the client (sampling, elicitation) is an `x.mcp.…` step of its own. Listings are remembered for the
description of the tools called later; the rest of the protocol leaves no event.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from atdp import clock
from atdp.error_class import error_class
from atdp.records import Cause, Status
from services.proxy.reports import Reported
from services.proxy.tools import Boundary, Effect

JsonRpc = dict[str, Any]
MessageId = tuple[str, Any]
"""A message's id with its type: 1 and "1" are two."""

_KINDS = {"tools/call": "tool_call", "resources/read": "retrieval", "prompts/get": "retrieval"}
_ASKED = {"sampling/createMessage": "x.mcp.sampling", "elicitation/create": "x.mcp.elicitation"}
_CODES = {
    -32700: "parse_error",
    -32600: "invalid_request",
    -32601: "method_not_found",
    -32602: "invalid_arguments",
    -32603: "internal_error",
    -32800: "cancelled",
    -32002: "not_found",
}
_CANCELLED = -32800
_SERVER_INFO = "io.modelcontextprotocol/serverInfo"
_MOST_TOOLS = 2000
"""Remembered of one server."""


@dataclass
class ToolBook:
    """A server's tools as it listed them last."""

    tools: dict[str, dict[str, Any]] = field(default_factory=dict)
    info: dict[str, Any] = field(default_factory=dict)
    """The server's name and version, as it says."""

    def read(self, method: str, answer: JsonRpc) -> None:
        """Learn from an answer to `method`, if there is something to learn."""
        result = answer.get("result")
        if not isinstance(result, dict):
            return
        meta = result.get("_meta")
        info = result.get("serverInfo") or (meta.get(_SERVER_INFO) if isinstance(meta, dict) else None)
        if isinstance(info, dict):
            self.info = info
        if method == "tools/list" and isinstance(result.get("tools"), list):
            for tool in result["tools"]:
                if isinstance(tool, dict) and isinstance(tool.get("name"), str) and len(self.tools) < _MOST_TOOLS:
                    self.tools[tool["name"]] = tool


@dataclass
class Call:
    """A request on its way to its answer."""

    id: MessageId
    method: str
    params: dict[str, Any]
    began: float = field(default_factory=time.time)
    clock: float = field(default_factory=time.monotonic)
    report_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    parent_id: str | None = None
    causes: list[Cause] = field(default_factory=list)

    @property
    def recorded(self) -> bool:
        """Will it be an event?"""
        return self.method in _KINDS or self.method in _ASKED


def message_id(message: JsonRpc) -> MessageId:
    return typed_id(message.get("id"))


def typed_id(id: Any) -> MessageId:
    """An id as a key; what is neither text nor number can't be one and is taken by its text."""
    return type(id).__name__, id if isinstance(id, str | int) else repr(id)


def cancelled_id(message: JsonRpc) -> MessageId | None:
    """The id of the call that a notification cancels; None when it is no such notification."""
    params = message.get("params")
    if message.get("method") != "notifications/cancelled" or not isinstance(params, dict):
        return None
    return typed_id(params.get("requestId"))


def call_of(message: JsonRpc) -> Call | None:
    """The call a message begins; None for answers and notifications."""
    method, params = message.get("method"), message.get("params")
    if not isinstance(method, str) or message.get("id") is None:
        return None
    return Call(message_id(message), method, params if isinstance(params, dict) else {})


def is_answer(message: JsonRpc) -> bool:
    return "method" not in message and message.get("id") is not None


@dataclass(frozen=True)
class Server:
    """What is configured about a server."""

    name: str
    effects: Mapping[str, Effect] = field(default_factory=dict)
    boundary: Boundary | None = None


def answered(server: Server, book: ToolBook, call: Call, answer: JsonRpc) -> Reported:
    """The step that an answered call was."""
    result, error = answer.get("result"), answer.get("error")
    if isinstance(error, dict):
        message = str(error.get("message") or "")
        code = error.get("code")
        kind = _CODES.get(code, f"jsonrpc_{code}") if isinstance(code, int) else "jsonrpc_error"
        status: Status = "cancelled" if code == _CANCELLED else "error"
        return _report(server, book, call, status, result=error.get("data"), error=message, error_type=kind)
    if isinstance(result, dict) and result.get("isError") is True:
        message = _text(result)
        return _report(server, book, call, "error", result=result, error=message, error_type=error_class(message))
    reported = _report(server, book, call, "ok", result=result)
    if isinstance(result, dict) and result.get("resultType") == "input_required":
        reported.unfinished = True
    if call.method == "elicitation/create" and isinstance(result, dict):
        reported.decision = str(result.get("action") or "")
    return reported


def unanswered(server: Server, book: ToolBook, call: Call, status: Status, kind: str, message: str) -> Reported:
    """The step that a call was whose answer never came."""
    return _report(server, book, call, status, error=message or None, error_type=kind)


def _report(server: Server, book: ToolBook, call: Call, status: Status, **outcome: Any) -> Reported:
    params = {key: value for key, value in call.params.items() if key not in ("_meta", "requestState")}
    name, arguments = call.method, params
    tool: dict[str, Any] | None = None
    effect: Effect | None = "read" if _KINDS.get(call.method) == "retrieval" else None
    boundary = server.boundary
    if call.method == "tools/call":
        name = str(params.get("name") or "unknown")
        arguments = params["arguments"] if isinstance(params.get("arguments"), dict) else {}
        tool, effect = book.tools.get(name), server.effects.get(name)
    elif call.method in _ASKED:
        effect, boundary = "none", "human"
    mcp: dict[str, Any] = {"server": server.name, "method": call.method}
    if book.info:
        mcp["server_info"] = book.info
    if call.method == "tools/call":
        mcp["tool"] = name
        if "inputResponses" in params:
            mcp["input_responses"] = params["inputResponses"]
    return Reported(
        kind=_KINDS.get(call.method) or _ASKED[call.method],
        id=call.report_id,
        time=clock.from_epoch(call.began),
        duration_ms=round((time.monotonic() - call.clock) * 1000, 3),
        name=name,
        server=server.name,
        tool=tool,
        parent_id=call.parent_id,
        causes=call.causes,
        arguments=arguments,
        status=status,
        effect=effect,
        boundary=boundary,
        ext={"mcp": mcp},
        **outcome,
    )


def _text(result: dict[str, Any]) -> str:
    """What a tool's result says in words."""
    content = result.get("content")
    items = content if isinstance(content, list) else []
    return "\n".join(str(item["text"]) for item in items if isinstance(item, dict) and item.get("type") == "text")
