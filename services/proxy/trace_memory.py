"""What is known of traces, and of tasks at other agents, from one request to the next.

Spans come before their parents, in other batches; a task is asked after long after it was given.
"""

from __future__ import annotations

from collections import OrderedDict

_TRACES = 20_000
_SPANS = 200_000

Owner = tuple[str, str, str]
"""Tenant, agent and purpose of a key."""


class TraceMemory:
    def __init__(self) -> None:
        self._sessions: OrderedDict[tuple[Owner, str], str] = OrderedDict()
        self._events: OrderedDict[tuple[Owner, str, str], str] = OrderedDict()

    def session(self, owner: Owner, trace_id: str) -> str | None:
        """The session that a trace was found to belong to."""
        return self._sessions.get((owner, trace_id))

    def belongs(self, owner: Owner, trace_id: str, session_id: str) -> None:
        self._sessions[owner, trace_id] = session_id
        while len(self._sessions) > _TRACES:
            self._sessions.popitem(last=False)

    def event(self, owner: Owner, trace_id: str, span_id: str) -> str | None:
        """The event that a span is, be it one captured at the gateway."""
        return self._events.get((owner, trace_id, span_id))

    def is_event(self, owner: Owner, trace_id: str, span_id: str, event_id: str) -> None:
        self._events[owner, trace_id, span_id] = event_id
        while len(self._events) > _SPANS:
            self._events.popitem(last=False)

    def forget(self, owner: Owner, trace_id: str, span_id: str = "") -> None:
        """Nothing more will be told of it."""
        self._events.pop((owner, trace_id, span_id), None)
