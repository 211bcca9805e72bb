"""The last steps of an agent in memory, to recognise them when they are told again from another side.

A trace tells of model calls that passed the gateway, and of tools whose results came back in a request:
neither is another event.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import orjson
from msgspec import UnsetType

from atdp import clock
from atdp.records import Action, EventDraft, Metadata, Usage
from registry.tenants import Key

_CALLS = 4000
"""Model calls kept of one agent."""
_TRAJECTORIES = 4000
_OPERATIONS = 64
"""Operations kept of one trajectory."""
_SHORT = 1000
"""Bytes of arguments that are kept; of longer ones their hash."""
_SLACK_S = 0.25
"""By how much two clocks on one machine, and what lies between a client and the gateway, may differ."""

Owner = tuple[str, str, str]
"""Tenant, agent, purpose."""


class KnownCall(msgspec.Struct, frozen=True, gc=False):
    """A captured model call."""

    event_id: str
    session_id: str
    began: float
    ended: float
    output_tokens: int | None


@dataclass
class KnownOperation:
    """A captured operation."""

    event_id: str
    name: str
    arguments: Any
    """As `_alike` gives them."""
    told: bool = False
    """Has it been told from the other side already? Then the next equal one is meant."""


class RecentSteps:
    def __init__(self) -> None:
        self._calls: dict[Owner, deque[KnownCall]] = {}
        self._operations: OrderedDict[str, deque[KnownOperation]] = OrderedDict()

    def note(self, key: Key, session_id: str, events: Iterable[EventDraft]) -> None:
        """These events of a session are stored."""
        for event in events:
            if event.kind == "llm_call":
                owner = (key.tenant, key.agent, key.purpose)
                self._calls.setdefault(owner, deque(maxlen=_CALLS)).append(_known(session_id, event))
            elif isinstance(event.a, Action) and isinstance(event.a.name, str) and not _traced(event):
                arguments = None if isinstance(event.a.arguments, UnsetType) else event.a.arguments
                self._of(event.trajectory_id).append(KnownOperation(event.id, event.a.name, _alike(arguments)))

    def call_within(self, key: Key, began: float, ended: float, output_tokens: int | None) -> KnownCall | None:
        """The one captured call that lies within a client's span; None when there are several, or none.

        The client sees a call begin before and end after the gateway does. Token counts must not differ.
        """
        found = [
            call
            for call in self._calls.get((key.tenant, key.agent, key.purpose), ())
            if began - _SLACK_S <= call.began
            and call.ended <= ended + _SLACK_S
            and (output_tokens is None or call.output_tokens in (None, output_tokens))
        ]
        return found[0] if len(found) == 1 else None

    def operation(self, trajectory_id: str, name: str, arguments: Any) -> str | None:
        """The event of an operation with this name and these arguments that nobody has told again yet."""
        sought = _alike(arguments)
        for known in self._operations.get(trajectory_id, ()):
            if not known.told and known.name == name and known.arguments == sought:
                known.told = True
                return known.event_id
        return None

    def _of(self, trajectory_id: str) -> deque[KnownOperation]:
        known = self._operations.setdefault(trajectory_id, deque(maxlen=_OPERATIONS))
        self._operations.move_to_end(trajectory_id)
        while len(self._operations) > _TRAJECTORIES:
            self._operations.popitem(last=False)
        return known


def _alike(arguments: Any) -> Any:
    """What is the same for equal arguments: they themselves, or their hash when they are long."""
    arguments = arguments or {}
    try:
        data = orjson.dumps(arguments, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # an integer or a depth that it does not write
        data = repr(arguments).encode("utf-8", "surrogatepass")
    return arguments if len(data) <= _SHORT else hashlib.blake2b(data, digest_size=16).digest()


def _known(session_id: str, event: EventDraft) -> KnownCall:
    began = clock.parse(event.time).timestamp()
    lasted = event.duration_ms if isinstance(event.duration_ms, int | float) else 0.0
    tokens: Sequence[Any] = [event.m.usage.output_tokens] if _has_usage(event) else []  # type: ignore[union-attr]
    counted = next((count for count in tokens if isinstance(count, int)), None)
    return KnownCall(event.id, session_id, began, began + lasted / 1000, counted)


def _traced(event: EventDraft) -> bool:
    """Was it told by a trace? Then an equal span is another step."""
    return isinstance(event.ext, dict) and "otel" in event.ext


def _has_usage(event: EventDraft) -> bool:
    return isinstance(event.m, Metadata) and isinstance(event.m.usage, Usage)
