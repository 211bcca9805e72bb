"""Which conversation a request belongs to.

In this order: an id the client sent, the earlier answer it names, the longest message prefix that the
same key has had answered before; else it is a new session. The index holds one hash a call, so a
look-up costs one step a message. Sessions live in memory and are rebuilt from the log after a restart
(`restore`).
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from msgspec import field

from atdp import clock
from atdp.ids import new_id
from atdp.records import Agent, Eligibility, Gov, Origin, Parent, Redaction, TrajectoryDraft
from registry.tenants import Key
from services.proxy.clients import MAX_ID_LENGTH, Claim
from services.proxy.conversation import NOTHING_SAID, Fingerprints, Hash, Seed
from services.proxy.rewording import AskedBefore, Told, reworded

__all__ = ["MAX_ID_LENGTH", "Session", "Sessions", "Step", "new_session"]

_STEPS_WITH_PIECES = 4
"""Of a session's newest steps the single messages' hashes are kept: only from those a client goes on with a
history in another form."""


class Step(msgspec.Struct, gc=False):
    """A call that was answered: the point from which a conversation goes on."""

    event_id: str
    end: Seed
    """The conversation with its answer."""
    pieces: list[Hash] | None = None
    """Of each of its messages; None when they are not known (any more), or not all in one request."""
    turn: int = 0
    """User messages so far."""
    choice: int = 0
    """Which of several answers; prefixes stand for the first one."""
    told: Told | None = None
    """What its answer is known by when it comes back in other words; only of the first."""


class PendingCall(msgspec.Struct, frozen=True):
    """A tool call whose result has not come back yet."""

    event_id: str
    name: str
    arguments: Any
    step: int


class Attempt(msgspec.Struct, frozen=True, gc=False):
    """The last time a request with these bytes was made."""

    event_id: str
    retries: int
    failed: bool
    step: int


class Session(msgspec.Struct, eq=False, gc=False):
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
    exact: dict[Hash, Step] = field(default_factory=dict)
    """Answered calls by the hash of the exact messages."""
    meanings: dict[Hash, Step] = field(default_factory=dict)
    """Answered calls by what was said up to the answer."""
    asked: dict[Hash, Step] = field(default_factory=dict)
    """Answered calls by what was said before the answer."""
    answers: dict[str, Step] = field(default_factory=dict)
    """Answered calls by the provider's id of the answer."""
    tip: Step | None = None
    """The main line's newest answer."""
    system: Hash = b""
    """The main line's system instructions."""
    tools: bool = False
    """Has the main line tools?"""
    seen: dict[str, Hash] = field(default_factory=dict)
    """User messages and tool results that are events already, and their exact form."""
    calls: dict[str, PendingCall] = field(default_factory=dict)
    reported: set[str] = field(default_factory=set)
    """Call ids of tool calls the agent reported itself; their results are not events again."""
    results: dict[str, str] = field(default_factory=dict)
    """Call ids whose result came back in a request: the event that holds it. A later report describes that event."""
    told: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What was answered to events reported under ids of their own: sending them again is harmless."""
    attempts: dict[Hash, Attempt] = field(default_factory=dict)
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

    def answered(self, step: Step, answer_id: str | None, main: bool) -> None:
        """Remember a step, and forget the single messages of old ones."""
        self.exact[step.end.exact] = step
        self.meanings[step.end.meaning] = step
        if step.told is not None:
            self.asked[step.told.asked] = step
        if answer_id:
            self.answers[answer_id] = step
        if main:
            self.tip = step
        with_pieces = [known for known in self.exact.values() if known.pieces is not None]
        for old in with_pieces[:-_STEPS_WITH_PIECES]:
            old.pieces = None


class Sessions:
    """Every live session of this gateway."""

    def __init__(self, stored_name: Callable[[str, str], str] | None = None) -> None:
        """`stored_name` gives the form in which a tenant's session id is stored: one may hold personal data."""
        self._stored_name = stored_name
        self._by_id: dict[tuple[str, str, str, str], Session] = {}
        self._by_meaning: dict[tuple[str, Hash], list[Session]] = {}
        self._by_asked = AskedBefore()
        self._by_answer: dict[tuple[str, str, str, str], Session] = {}
        self._by_attempt: dict[tuple[str, Hash], Session] = {}
        self._by_trajectory: dict[str, Session] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def find(
        self,
        key: Key,
        train: str,
        claim: Claim,
        prints: Fingerprints,
        body: Hash,
        *,
        continues: str | None = None,
        retried: bool = False,
        origin: str = "evoplane",
    ) -> Session:
        """The request's session, a new one if need be.

        `claim` is what the client said, `continues` the earlier answer it goes on from, `body` the hash of what
        is asked; `retried` says that the client calls it a retry; `origin` is the dialect of a new session.
        """
        session = self.known(key, claim, prints, body, continues, retried)
        return self._open(key, train, session, claim, origin)

    def named(self, key: Key, train: str, session_id: str) -> Session:
        """The session of this id, a new one if need be: for what is told without a model call."""
        return self._open(key, train, self.by_id(key, session_id), Claim(session_id), "evoplane.events")

    def by_id(self, key: Key, session_id: str) -> Session | None:
        session = self._by_id.get(_identity(key, session_id))
        if session is None and self._stored_name is not None:
            # one that was rebuilt from the log has the id that is stored there
            return self._by_id.get(_identity(key, self._stored_name(key.tenant, session_id)))
        return session

    def by_answer(self, key: Key, answer_id: str) -> Session | None:
        """The session that had this answer; what isn't of this tenant, agent and purpose doesn't exist."""
        return self._by_answer.get(_identity(key, answer_id))

    def step(self, key: Key, answer_id: str) -> Step | None:
        """The step that an answer's id names."""
        session = self.by_answer(key, answer_id)
        return None if session is None else session.answers.get(answer_id)

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

    def answered(self, session: Session, step: Step, answer_id: str | None = None, main: bool = True) -> None:
        """From now on, a request that goes on from this step continues this session."""
        if step.end.meaning not in session.meanings:
            self._by_meaning.setdefault((session.key.id, step.end.meaning), []).append(session)
        session.answered(step, answer_id, main)
        if step.told is not None:
            self._by_asked.add(session, step.told.asked)
        if answer_id:
            self._by_answer[_identity(session.key, answer_id)] = session

    def recalled(self, key: Key, train: str, session_id: str, trajectory_id: str, step: Step, answer_id: str) -> None:
        """Take back an answer that was forgotten: its session goes on, in a new trajectory if need be."""
        session = self.by_id(key, session_id)
        if session is None:
            parent = Parent(trajectory_id=trajectory_id, event_id=step.event_id, rel="continuation")
            session = new_session(key, train, session_id, parent=parent)
            self._by_id[_identity(key, session_id)] = session
            self._by_trajectory[session.trajectory_id] = session
        self.answered(session, step, answer_id)

    def attempted(self, session: Session, body: Hash, attempt: Attempt) -> None:
        """From now on, the same request again is the same call tried again."""
        session.attempts[body] = attempt
        self._by_attempt[session.key.id, body] = session

    def add(self, session: Session) -> None:
        """Take in a session rebuilt from the log."""
        self._by_id[_identity(session.key, session.session_id)] = session
        self._by_trajectory[session.trajectory_id] = session
        for meaning in session.meanings:
            self._by_meaning.setdefault((session.key.id, meaning), []).append(session)
        for asked in session.asked:
            self._by_asked.add(session, asked)
        for answer_id in session.answers:
            self._by_answer[_identity(session.key, answer_id)] = session

    def close(self, tenant: str, trajectory_ids: Iterable[str]) -> None:
        """These trajectories have ended."""
        for id in trajectory_ids:
            session = self._by_trajectory.get(id)
            if session is not None and session.key.tenant == tenant and session.trajectory_id == id:
                session.closed = True

    def forget_log(self, session: Session) -> None:
        """The session's events are not in the log (any more): begin a trajectory that names none of them."""
        self._unindex(session)
        session.attempts.clear()
        session.exact.clear()
        session.meanings.clear()
        session.asked.clear()
        session.answers.clear()
        session.seen.clear()
        session.calls.clear()
        session.results.clear()
        session.told.clear()
        session.tokens = session.last_call = session.last_context = session.tip = None
        session.closed = True

    def begin_again(self, session: Session, train: str) -> None:
        """The session goes on in another trajectory."""
        self._by_trajectory.pop(session.trajectory_id, None)
        session.reopen(train)
        self._by_trajectory[session.trajectory_id] = session

    def forget_idle(self, idle_s: float) -> int:
        """Drop what has not been used for `idle_s` seconds from memory; gives how many."""
        before = time.monotonic() - idle_s
        idle = [session for session in self._by_id.values() if session.last_used < before]
        for session in idle:
            self._by_id.pop(_identity(session.key, session.session_id), None)
            if self._by_trajectory.get(session.trajectory_id) is session:
                del self._by_trajectory[session.trajectory_id]
            self._unindex(session)
        return len(idle)

    def _open(self, key: Key, train: str, session: Session | None, claim: Claim, origin: str) -> Session:
        if session is None:
            parent = self._parent(key, claim)
            header = {} if parent is None else {"parent": parent}
            session = new_session(key, train, claim.session_id, origin, **header)
            self._by_id[_identity(key, session.session_id)] = session
        if session.closed:
            self.begin_again(session, train)
        self._by_trajectory[session.trajectory_id] = session
        session.last_used = time.monotonic()
        return session

    def known(
        self,
        key: Key,
        claim: Claim,
        prints: Fingerprints,
        body: Hash,
        continues: str | None = None,
        retried: bool = False,
    ) -> Session | None:
        """The request's session, if there is one."""
        if claim.session_id is not None:
            return self.by_id(key, claim.session_id)
        if continues is not None:
            return self.by_answer(key, continues)
        session = self._by_attempt.get((key.id, body))
        if session is not None and (retried or session.attempts[body].failed):
            return session
        for at in range(len(prints.meanings) - 1, -1, -1):
            meaning = prints.meanings[at]
            candidates = self._by_meaning.get((key.id, meaning)) if meaning != NOTHING_SAID else None
            if candidates:
                here = [s for s in candidates if s.tip is not None and s.tip.end.meaning == meaning]
                return _best(candidates, here, prints.system)
            if candidates := self._by_asked.find(key.id, prints, at):
                here = [s for s in candidates if s.tip is not None and s.tip is reworded(s, prints, at)]
                return _best(candidates, here, prints.system)
        return None

    def _parent(self, key: Key, claim: Claim) -> Parent | None:
        """The trajectory that a sub-agent's belongs to."""
        above = self.by_id(key, claim.parent_session_id) if claim.parent_session_id else None
        if above is None or not above.opened:
            return None
        event = msgspec.UNSET if above.last_call is None else above.last_call
        return Parent(trajectory_id=above.trajectory_id, event_id=event, rel="subagent")

    def _unindex(self, session: Session) -> None:
        for meaning in session.meanings:
            candidates = self._by_meaning.get((session.key.id, meaning), [])
            if session in candidates:
                candidates.remove(session)
            if not candidates:
                self._by_meaning.pop((session.key.id, meaning), None)
        self._by_asked.forget(session)
        for answer_id in session.answers:
            identity = _identity(session.key, answer_id)
            if self._by_answer.get(identity) is session:
                del self._by_answer[identity]
        for body in session.attempts:
            if self._by_attempt.get((session.key.id, body)) is session:
                del self._by_attempt[session.key.id, body]


def _best(candidates: list[Session], here: list[Session], system: Hash) -> Session:
    """Of several sessions that said the same so far, one that has not gone on from here yet, with the same
    instructions if there is one."""
    alike = [session for session in here or candidates if session.system == system]
    return (alike or here or candidates)[0 if here else -1]


def new_session(
    key: Key, train: str, session_id: str | None = None, origin: str = "openai.chat", **header: Any
) -> Session:
    """A session with a fresh trajectory; `header` overrides fields of its record."""
    session_id = session_id or new_id("se")
    fields: dict[str, Any] = {
        "atdp": "1.0",
        "trajectory_id": new_id("tr"),
        "session_id": session_id,
        "time": clock.now(),
        "agent": Agent(name=key.agent),
        "origin": Origin(producer="evoplane-gateway", format=origin),
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


def _whose(key: Key) -> tuple[str, str, str]:
    return key.tenant, key.agent, key.purpose


def _identity(key: Key, session_id: str) -> tuple[str, str, str, str]:
    return key.tenant, key.agent, key.purpose, session_id
