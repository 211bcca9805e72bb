"""What has to be known of tool servers from one request to the next: tools, MCP sessions, calls that want input."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TypeVar

from registry.tenants import Key
from services.proxy.clients import CONTROL
from services.proxy.mcp_calls import Call, MessageId, ToolBook

_REMEMBERED = 4096
"""MCP sessions, and calls that wait for input, kept in memory at most."""

_K = TypeVar("_K")
_V = TypeVar("_V")

Owner = tuple[str, str, str]
"""Tenant, agent and purpose of a key: for others, what is theirs does not exist."""


def owner_of(key: Key) -> Owner:
    return key.tenant, key.agent, key.purpose


@dataclass
class Conversation:
    """An MCP session of the era that has them."""

    session_id: str
    """The session that its calls go to when nothing says otherwise."""
    asked: dict[MessageId, Call] = field(default_factory=dict)
    """What the server asked of the client, until the client answers with another request."""
    running: dict[MessageId, str] = field(default_factory=dict)
    """Event ids of the calls that have no answer yet."""
    cancelled: set[MessageId] = field(default_factory=set)


class McpMemory:
    def __init__(self) -> None:
        self._books: dict[tuple[str, str, str], ToolBook] = {}
        self._conversations: OrderedDict[tuple[Owner, str, str], Conversation] = OrderedDict()
        self._waiting: OrderedDict[tuple[Owner, str, bytes], tuple[str, str]] = OrderedDict()

    def book(self, key: Key, server: str) -> ToolBook:
        """The server's tools as this agent was shown them."""
        return self._books.setdefault((key.tenant, key.agent, server), ToolBook())

    def converse(self, owner: Owner, server: str, id: str) -> Conversation:
        """What is remembered of an MCP session that is this owner's; nothing yet, if it is new here."""
        known = self._conversations.get((owner, server, id)) or Conversation(CONTROL.sub("?", f"mcp-{id}"[:200]))
        _remember(self._conversations, (owner, server, id), known)
        return known

    def end(self, owner: Owner, server: str, id: str) -> None:
        """The client has ended the MCP session."""
        self._conversations.pop((owner, server, id), None)

    def asks(self, owner: Owner, server: str, state: str, session_id: str, event_id: str) -> None:
        """A call's result asks for input: the call comes again with this `requestState`."""
        _remember(self._waiting, (owner, server, _digest(state)), (session_id, event_id))

    def asked_before(self, owner: Owner, server: str, state: str) -> tuple[str, str] | None:
        """Session and event of the call that asked for the input which now comes."""
        return self._waiting.get((owner, server, _digest(state)))


def _digest(state: str) -> bytes:
    return hashlib.blake2b(state.encode(), digest_size=16).digest()


def _remember(memory: OrderedDict[_K, _V], key: _K, value: _V) -> None:
    memory[key] = value
    memory.move_to_end(key)
    while len(memory) > _REMEMBERED:
        memory.popitem(last=False)
