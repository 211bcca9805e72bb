"""Where drafts go: their place in the chains, signals and their targets, what ends a trajectory.

All of it happens in memory, on top of what the log has; `TenantLog` loads that and writes the result in
one transaction. A job whose drafts can't all be placed leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import Any, Protocol

import msgspec

from atdp import chain
from atdp.canonical import digest_bytes, is_canonical
from atdp.records import AnnotationDraft, Context, EventDraft, Target, TrajectoryDraft
from services.proxy import parts
from services.proxy.drafts import (
    Answer,
    Close,
    Content,
    InvalidDraft,
    SealedBlob,
    Signal,
    Stored,
    StoreDraft,
    TrajectoryKey,
)

ENDING_ANNOTATION = "resolved"
"""The reward that says how a task ended; it closes its trajectory."""

_RECORDS: dict[type[chain.Draft], str] = {
    TrajectoryDraft: "trajectory", EventDraft: "event", AnnotationDraft: "annotation"
}  # fmt: skip

_NO_PREVIOUS, _SOME_PREVIOUS = b'"prev_hash":null', b'"prev_hash":""'
"""The first record of a chain has a null that is meant: any other may have been a NaN."""

_SAFE_INTEGER = 2**53 - 1
_ABSENT: Any = object()


class Head(msgspec.Struct, frozen=True):
    """A trajectory's row: where its chain ends."""

    trajectory_id: str
    session_id: str | None
    agent: str
    purpose: str
    opened: int
    """Position of its header."""
    opened_at: str
    last_at: str
    closed: str | None
    next_seq: int
    hash: str


class Known(msgspec.Struct, frozen=True):
    """A record that is in the log."""

    trajectory_id: str
    seq: int
    record: str
    agent: str


class Lookup(Protocol):
    def head(self, trajectory_id: str) -> Head | None:
        """The trajectory, from the log."""

    def latest(self, session_id: str, agent: str, purpose: str | None) -> Head | None:
        """The newest trajectory of a session, from the log."""

    def lacks_context(self, id: str) -> bool:
        """Is a context that an event names not in the log, for that it may have lost some?"""


class Placing:
    """One transaction's changes, before they are written."""

    def __init__(
        self,
        lookup: Lookup,
        position: int,
        heads: dict[str, Head],
        known: dict[str, Known],
        waiting: dict[tuple[str, str], tuple[Signal, ...]],
        absent: Set[str] = frozenset(),
    ) -> None:
        """`absent` are trajectories that the log is known not to have."""
        self._lookup = lookup
        self._absent = absent
        self.position = position
        self._heads = heads
        self._known = known
        self._waiting = waiting
        self._opened_in: dict[str, tuple[str, ...]] = {}
        """Trajectories opened in this transaction, by session."""
        self._journal: list[tuple[dict[Any, Any], Any, Any]] = []
        """(mapping, key, value before) of the job that is being placed."""
        self.size = 0
        """Bytes to write, about."""
        self.records: list[tuple[str, str, int, str, str, str, bytes]] = []
        """id, trajectory_id, seq, record, kind, agent, body; the first one has position `position`."""
        self.opened: dict[str, bool] = {}
        self.changed: dict[str, bool] = {}
        self.contexts: dict[str, bytes] = {}
        self.contents: dict[str, tuple[str, bytes]] = {}
        self.pending: dict[str, Signal] = {}
        self.bound: dict[str, bool] = {}
        self.sealed: dict[str, tuple[str, bytes]] = {}
        self.keys: dict[str, tuple[int, bytes]] = {}
        self.answers: dict[str, str] = {}

    def place(self, drafts: Iterable[StoreDraft]) -> list[Stored]:
        """Put the drafts of one job where they belong; what is there already stays as it is.

        Raises `InvalidDraft`, after taking back what the job had changed.
        """
        mark, size = len(self.records), self.size
        self._journal.clear()
        try:
            return [self._place(draft) for draft in drafts]
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            del self.records[mark:]
            self.size = size
            for mapping, key, before in reversed(self._journal):
                if before is _ABSENT:
                    del mapping[key]
                else:
                    mapping[key] = before
            if isinstance(error, InvalidDraft):
                raise
            raise InvalidDraft(f"the drafts can't be stored: {error!r}") from error

    def _place(self, draft: StoreDraft) -> Stored:
        match draft:
            case EventDraft():
                stored = self._append(draft)
                if self._waiting:
                    self._bind_waiting("event", draft.id)
                return stored
            case AnnotationDraft():
                return self._append(draft)
            case TrajectoryDraft():
                return self._open(draft)
            case Signal():
                return self._signal(draft)
            case Context():
                self._keep(self.contexts, draft.id, msgspec.json.encode(draft))
                return Stored(draft.id)
            case Content():
                return Stored(self._put(draft.media_type, draft.data))
            case Close():
                self._close(draft.trajectory_id, draft.reason)
                return Stored(draft.trajectory_id, draft.trajectory_id)
            case SealedBlob():
                self._keep(self.sealed, _storable(draft.id), (_storable(draft.trajectory_id), draft.data))
                return Stored(draft.id, draft.trajectory_id)
            case Answer():
                self._keep(self.answers, _storable(draft.id), draft.event_id)
                return Stored(draft.event_id)
            case TrajectoryKey():
                self._keep(self.keys, _storable(draft.trajectory_id), (draft.key_version, draft.wrapped))
                return Stored(draft.trajectory_id, draft.trajectory_id)

    def _open(self, draft: TrajectoryDraft) -> Stored:
        id = _storable(draft.trajectory_id)
        if self._head(id) is not None:
            return Stored(id, id, 0)
        session = None if draft.session_id is msgspec.UNSET else _storable(draft.session_id)
        # a header without a purpose came with an agent's own traffic
        purpose = draft.ext.get("purpose") if isinstance(draft.ext, dict) else None
        digest = self._insert(draft, id, "trajectory", _storable(draft.agent.name), 0, None)
        head = Head(
            trajectory_id=id,
            session_id=session,
            agent=draft.agent.name,
            purpose=purpose if isinstance(purpose, str) else "serve",
            opened=self.position + len(self.records) - 1,
            opened_at=draft.time,
            last_at=draft.time,
            closed=None,
            next_seq=1,
            hash=digest,
        )
        self._set(self.opened, id, True)
        self._set(self._heads, id, head)
        self._bind_waiting("trajectory", id)
        if session is not None:
            self._set(self._opened_in, session, (*self._opened_in.get(session, ()), id))
            self._bind_waiting("session", session)
        return Stored(id, id, 0)

    def _append(self, draft: EventDraft | AnnotationDraft) -> Stored:
        known = self._known.get(_storable(draft.id))
        if known is not None:
            return Stored(draft.id, known.trajectory_id, known.seq)
        head = self._head(draft.trajectory_id)
        if head is None:
            raise InvalidDraft(f"{draft.id}: trajectory {draft.trajectory_id} was never opened")
        if isinstance(draft, EventDraft) and draft.ctx not in self.contexts and self._lookup.lacks_context(draft.ctx):
            raise InvalidDraft(f"{draft.id}: the log has no context {draft.ctx}")
        seq = head.next_seq
        digest = self._insert(draft, draft.id, draft.kind, head.agent, seq, head.hash)
        closed = "outcome" if _ends(draft) and head.closed in (None, "idle") else head.closed
        self._move(head, max(head.last_at, draft.time), closed, seq + 1, digest)
        return Stored(draft.id, draft.trajectory_id, seq)

    def _insert(
        self,
        draft: chain.Draft,
        id: str,
        kind: str,
        agent: str,
        seq: int,
        previous: str | None,
    ) -> str:
        """Seal the draft into its chain; gives its hash."""
        data = chain.draft_json(draft, seq, previous)
        apart = parts.may_have_leaves_to_move(data)
        if not apart and is_canonical(data if previous is not None else data.replace(_NO_PREVIOUS, _SOME_PREVIOUS, 1)):
            digest, sealed = chain.hashed(data)
        else:
            digest, sealed = self._sealed(draft, seq, previous, apart)
        record = _RECORDS[type(draft)]
        self.size += len(sealed)
        self.records.append((id, draft.trajectory_id, seq, record, kind, agent, sealed))
        self._set(self._known, id, Known(draft.trajectory_id, seq, record, agent))
        return digest

    def _sealed(self, draft: chain.Draft, seq: int, previous: str | None, apart: bool) -> tuple[str, bytes]:
        """The hash and the JSON of a draft with content to keep apart, or with numbers that are written otherwise."""
        body = msgspec.to_builtins(draft)
        if apart:
            body = parts.externalize(body, self._put)
        try:
            return chain.sealed_json(body, seq, previous)
        except ValueError:
            return chain.sealed_json(_within_json(body), seq, previous)

    def _signal(self, signal: Signal) -> Stored:
        id = _storable(signal.annotation.id)
        trajectory = self._find(signal)
        known = self._known.get(id)
        if known is not None:
            return Stored(id, known.trajectory_id, known.seq)
        if trajectory is None:
            where = (signal.target_kind, _storable(signal.target))
            self._set(self.pending, id, signal)
            self._set(self._waiting, where, (*self._waiting.get(where, ()), signal))
            return Stored(id, bound=False)
        event = signal.target if signal.target_kind == "event" else msgspec.UNSET
        target = Target(trajectory_id=trajectory, event_id=event)
        changes: dict[str, Any] = {"trajectory_id": trajectory, "targets": [target]}
        if signal.annotation.chosen is not msgspec.UNSET:
            changes["chosen"] = target
        return self._append(msgspec.structs.replace(signal.annotation, **changes))

    def _find(self, signal: Signal) -> str | None:
        """The trajectory a signal is about, among those it may be about."""
        match signal.target_kind:
            case "event":
                event = self._known.get(signal.target)
                fits = event is not None and event.record == "event" and event.agent == signal.agent
                return event.trajectory_id if event is not None and fits else None
            case "trajectory":
                head = self._head(signal.target)
                return head.trajectory_id if head is not None and head.agent == signal.agent else None
            case "session":
                for id in reversed(self._opened_in.get(signal.target, ())):
                    head = self._heads[id]
                    if head.agent == signal.agent and signal.purpose in (None, head.purpose):
                        return id
                head = self._lookup.latest(signal.target, signal.agent, signal.purpose)
                return head.trajectory_id if head is not None else None

    def _bind_waiting(self, target_kind: str, target: str) -> None:
        where = (target_kind, target)
        signals = self._waiting.get(where)
        if not signals:
            return
        self._set(self._waiting, where, ())
        unbound: list[Signal] = []
        for signal in signals:
            id = signal.annotation.id
            if not self._signal(signal).bound:
                unbound.append(signal)
            else:
                self._set(self.bound, id, True)
        self._set(self._waiting, where, tuple(unbound))

    def _close(self, trajectory_id: str, reason: str) -> None:
        head = self._head(trajectory_id)
        if head is not None and head.closed in (None, "idle"):
            self._move(head, head.last_at, reason, head.next_seq, head.hash)

    def _head(self, trajectory_id: str) -> Head | None:
        head = self._heads.get(trajectory_id)
        if head is None and trajectory_id not in self._absent:
            head = self._lookup.head(trajectory_id)
            if head is not None:
                self._heads[trajectory_id] = head
        return head

    def _move(self, head: Head, last_at: str, closed: str | None, next_seq: int, hash: str) -> None:
        id = head.trajectory_id
        opened = (head.session_id, head.agent, head.purpose, head.opened, head.opened_at)
        self._set(self._heads, id, Head(id, *opened, last_at, closed, next_seq, hash))
        if id not in self.changed:
            self._set(self.changed, id, True)

    def _put(self, media_type: str, data: bytes) -> str:
        digest = digest_bytes(data)
        if digest not in self.contents:
            self.size += len(data)
            self._set(self.contents, digest, (media_type, data))
        return digest

    def _keep(self, mapping: dict[str, Any], id: str, value: Any) -> None:
        if id not in mapping:
            self._set(mapping, id, value)

    def _set(self, mapping: dict[Any, Any], key: Any, value: Any) -> None:
        self._journal.append((mapping, key, mapping.get(key, _ABSENT)))
        mapping[key] = value


def _ends(draft: EventDraft | AnnotationDraft) -> bool:
    if isinstance(draft, EventDraft):
        return draft.kind == "outcome"
    return draft.name == ENDING_ANNOTATION


def _storable(text: str) -> str:
    """The text, which both databases can hold; raises `InvalidDraft` when one can't."""
    if "\0" in text:
        raise InvalidDraft(f"{text!r}: an id or a name can't hold a NUL character")
    return text


def _within_json(value: Any) -> Any:
    """Integers that a JSON number can't hold exactly become text: the record must have a canonical form."""
    if isinstance(value, dict):
        return {key: _within_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_within_json(item) for item in value]
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > _SAFE_INTEGER:
        return str(value)
    return value
