"""Which conversation a request belongs to.

The client's `x-evoplane-session-id` decides; without one, the longest message prefix that the same
key has had answered before; else it is a new session. The index holds one hash a call, so a look-up
costs one step a message. Sessions live in memory and are rebuilt from the log after a restart
(`restore`).
"""

from __future__ import annotations

import hashlib
import time
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from atdp import clock, messages
from atdp.ids import new_id
from atdp.records import Agent, Eligibility, Gov, Origin, Parent, Redaction, TrajectoryDraft
from registry.tenants import Key

MAX_ID_LENGTH = 200

_Hash = bytes


@dataclass(frozen=True)
class Step:
    """A call that was answered: the point from which a conversation goes on."""

    event_id: str
    length: int
    """Messages of its prompt and its answer together."""


@dataclass(frozen=True)
class PendingCall:
    """A tool call whose result has not come back yet."""

    event_id: str
    name: str
    arguments: Any
    step: int


@dataclass(frozen=True)
class Attempt:
    """The last time a request with these bytes was made."""

    event_id: str
    retries: int
    failed: bool
    step: int


@dataclass(eq=False)
class Session:
    """A conversation and its open trajectory. Changes only after what it says is durable."""

    key: Key
    session_id: str
    header: TrajectoryDraft
    opened: bool = False
    """Is the header in the store?"""
    closed: bool = False
    version: str | None = None
    """The agent version this session is served by; see `services.router`."""
    step: int = 0
    last_call: str | None = None
    last_context: str | None = None
    last_used: float = field(default_factory=time.monotonic)
    exact: dict[_Hash, Step] = field(default_factory=dict)
    """Answered calls by the hash of the exact messages."""
    meanings: set[_Hash] = field(default_factory=set)
    """What was said up to each answer."""
    last_meaning: _Hash | None = None
    seen: set[str] = field(default_factory=set)
    """User messages and tool results that are events already."""
    calls: dict[str, PendingCall] = field(default_factory=dict)
    reported: set[str] = field(default_factory=set)
    """Call ids of tool calls the agent reported itself; their results are not events again."""
    results: dict[str, str] = field(default_factory=dict)
    """Call ids whose result came back in a request: the event that holds it. A later report describes that event."""
    told: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What was answered to events reported under ids of their own: sending them again is harmless."""
    attempts: dict[_Hash, Attempt] = field(default_factory=dict)
    tokens: tuple[str, array[int]] | None = None
    """The last call's prompt and completion ids, for the prefix form of the next."""

    @property
    def trajectory_id(self) -> str:
        return self.header.trajectory_id

    def reopen(self, train: str) -> None:
        """Go on in a new trajectory, under the tenant's policy of today: the old one has ended."""
        parent = Parent(trajectory_id=self.trajectory_id, rel="continuation") if self.opened else self.header.parent
        self.header = msgspec.structs.replace(
            self.header,
            trajectory_id=new_id("tr"),
            time=clock.now(),
            parent=parent,
            gov=msgspec.structs.replace(self.header.gov, eligibility=_eligibility(self.key, train)),
        )
        self.opened = self.closed = False
        self.step = 0
        self.calls.clear()
        self.results.clear()


class Sessions:
    """Every live session of this gateway."""

    def __init__(self) -> None:
        self._by_id: dict[tuple[str, str, str, str], Session] = {}
        self._by_meaning: dict[tuple[str, _Hash], list[Session]] = {}
        self._by_attempt: dict[tuple[str, _Hash], Session] = {}
        self._by_trajectory: dict[str, Session] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def find(
        self, key: Key, train: str, session_id: str | None, meanings: list[_Hash], body: _Hash, retried: bool
    ) -> Session:
        """The request's session, a new one if need be.

        `meanings[i]` is the hash of the first i+1 messages, `body` that of the request's bytes; `retried`
        says that the client calls it a retry.
        """
        session = self._known(key, session_id, meanings, body, retried)
        if session is None:
            session = new_session(key, train, session_id)
            self._by_id[_identity(key, session.session_id)] = session
        if session.closed:
            self._by_trajectory.pop(session.trajectory_id, None)
            session.reopen(train)
        self._by_trajectory[session.trajectory_id] = session
        session.last_used = time.monotonic()
        return session

    def by_id(self, key: Key, session_id: str) -> Session | None:
        return self._by_id.get(_identity(key, session_id))

    def by_trajectory(self, key: Key, trajectory_id: str) -> Session | None:
        """The session a trajectory is the open one of; what isn't of this tenant, agent and purpose doesn't exist."""
        session = self._by_trajectory.get(trajectory_id)
        if session is None or session.closed or session.trajectory_id != trajectory_id:
            return None
        same = _identity(session.key, session.session_id) == _identity(key, session.session_id)
        return session if same else None

    def waiting(self, key: Key) -> list[Session]:
        """The open sessions of a key's agent and purpose that wait for tool results; the last used first."""
        whose = _whose(key)
        waiting = [s for s in self._by_id.values() if s.calls and not s.closed and _whose(s.key) == whose]
        return sorted(waiting, key=lambda session: session.last_used, reverse=True)

    def answered(self, session: Session, meaning: _Hash) -> None:
        """From now on, a request that begins with these messages continues this session."""
        if meaning not in session.meanings:
            session.meanings.add(meaning)
            self._by_meaning.setdefault((session.key.id, meaning), []).append(session)
        session.last_meaning = meaning

    def attempted(self, session: Session, body: _Hash, attempt: Attempt) -> None:
        """From now on, the same bytes again are the same call tried again."""
        session.attempts[body] = attempt
        self._by_attempt[session.key.id, body] = session

    def add(self, session: Session) -> None:
        """Take in a session rebuilt from the log."""
        self._by_id[_identity(session.key, session.session_id)] = session
        self._by_trajectory[session.trajectory_id] = session
        for meaning in session.meanings:
            self._by_meaning.setdefault((session.key.id, meaning), []).append(session)

    def close(self, tenant: str, trajectory_ids: Iterable[str]) -> None:
        """These trajectories have ended."""
        for id in trajectory_ids:
            session = self._by_trajectory.get(id)
            if session is not None and session.key.tenant == tenant and session.trajectory_id == id:
                session.closed = True

    def forget_log(self, session: Session) -> None:
        """The session's events are not in the log (any more): begin a trajectory that names none of them."""
        for body in session.attempts:
            if self._by_attempt.get((session.key.id, body)) is session:
                del self._by_attempt[session.key.id, body]
        session.attempts.clear()
        session.exact.clear()
        session.seen.clear()
        session.calls.clear()
        session.results.clear()
        session.told.clear()
        session.tokens = session.last_call = session.last_context = None
        session.closed = True

    def forget_idle(self, idle_s: float) -> int:
        """Drop what has not been used for `idle_s` seconds from memory; gives how many."""
        before = time.monotonic() - idle_s
        idle = [session for session in self._by_id.values() if session.last_used < before]
        for session in idle:
            self._forget(session)
        return len(idle)

    def _known(
        self, key: Key, session_id: str | None, meanings: list[_Hash], body: _Hash, retried: bool
    ) -> Session | None:
        if session_id is not None:
            return self._by_id.get(_identity(key, session_id))
        session = self._by_attempt.get((key.id, body))
        if session is not None and (retried or session.attempts[body].failed):
            return session
        for meaning in reversed(meanings):
            candidates = self._by_meaning.get((key.id, meaning))
            if candidates:
                # of several that said the same so far, one that has not gone on from here yet
                return next((s for s in candidates if s.last_meaning == meaning), candidates[-1])
        return None

    def _forget(self, session: Session) -> None:
        self._by_id.pop(_identity(session.key, session.session_id), None)
        if self._by_trajectory.get(session.trajectory_id) is session:
            del self._by_trajectory[session.trajectory_id]
        for meaning in session.meanings:
            candidates = self._by_meaning.get((session.key.id, meaning), [])
            if session in candidates:
                candidates.remove(session)
            if not candidates:
                self._by_meaning.pop((session.key.id, meaning), None)
        for body in session.attempts:
            if self._by_attempt.get((session.key.id, body)) is session:
                del self._by_attempt[session.key.id, body]


def new_session(key: Key, train: str, session_id: str | None = None, **header: Any) -> Session:
    """A session with a fresh trajectory; `header` overrides fields of its record."""
    session_id = session_id or new_id("se")
    fields: dict[str, Any] = {
        "atdp": "1.0",
        "trajectory_id": new_id("tr"),
        "session_id": session_id,
        "time": clock.now(),
        "agent": Agent(name=key.agent),
        "origin": Origin(producer="evoplane-gateway", format="openai.chat"),
        "gov": Gov(
            tenant=key.tenant,
            classification="internal",
            redaction=Redaction(state="none"),
            review="none",
            eligibility=_eligibility(key, train),
        ),
        "ext": {"key": key.id, "purpose": key.purpose},
        **header,
    }
    return Session(key, session_id, TrajectoryDraft(**fields))


def _eligibility(key: Key, train: str) -> Eligibility:
    return Eligibility(
        train=train if key.purpose == "serve" else "deny",  # type: ignore[arg-type]
        evaluate="allow",
        replay="allow",
        debug="allow",
        cross_tenant="deny",
    )


def exact_hashes(conversation: list[dict[str, Any]]) -> list[_Hash]:
    """For each i the hash of the first i+1 messages, as they are."""
    return _running(
        msgspec.json.encode({k: v for k, v in m.items() if k != "finish_reason"}, order="sorted") for m in conversation
    )


def meaning_hashes(conversation: list[dict[str, Any]]) -> list[_Hash]:
    """For each i the hash of what the first i+1 messages say."""
    return _running(messages.meaning(message) for message in conversation)


def body_hash(body: bytes) -> _Hash:
    return hashlib.blake2b(body, digest_size=16).digest()


def _running(pieces: Iterable[bytes]) -> list[_Hash]:
    hashes, last = [], b""
    for piece in pieces:
        last = hashlib.blake2b(last + piece, digest_size=16).digest()
        hashes.append(last)
    return hashes


def _whose(key: Key) -> tuple[str, str, str]:
    return key.tenant, key.agent, key.purpose


def _identity(key: Key, session_id: str) -> tuple[str, str, str, str]:
    return key.tenant, key.agent, key.purpose, session_id
