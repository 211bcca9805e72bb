"""One tenant's event log, as the writer's thread sees it: placing drafts in their chains.

Everything here happens inside a transaction that the store opens and commits.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import orjson

from atdp import chain
from atdp.canonical import canonical, digest_bytes
from atdp.records import AnnotationDraft, Context, EventDraft, Target, TrajectoryDraft
from services.proxy import parts, tables
from services.proxy.drafts import Close, Content, InvalidDraft, Signal, Stored, StoreDraft

_PROBE_BYTES = 65536
"""A probe this big says that the disk takes a real event, not just a few bytes."""
_SAFE_INTEGER = 2**53 - 1

ENDING_ANNOTATION = "resolved"
"""The reward that says how a task ended; it closes its trajectory."""


class TenantLog:
    """A tenant's tables, open for writing."""

    def __init__(self, root: Path, tenant: str) -> None:
        self._connection = tables.open_for_writing(root, tenant)
        self._pending = self._count_pending()

    def close(self) -> None:
        self._connection.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing, and on the disk when it ends."""
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """All or nothing within the transaction: one bad draft must not take others with it.

        What is wrong with the drafts comes out as `InvalidDraft`; what is wrong with the disk as it is.
        """
        self._connection.execute("SAVEPOINT drafts")
        try:
            yield
        except Exception as error:
            if isinstance(error, sqlite3.Error | OSError) and not isinstance(error, sqlite3.IntegrityError):
                raise
            self._connection.execute("ROLLBACK TO drafts")
            self._connection.execute("RELEASE drafts")
            self._pending = self._count_pending()
            if isinstance(error, InvalidDraft):
                raise
            raise InvalidDraft(f"the drafts can't be stored: {error!r}") from error
        self._connection.execute("RELEASE drafts")

    def place(self, drafts: Iterable[StoreDraft]) -> list[Stored]:
        """Put drafts where they belong; what is there already stays as it is."""
        stored: list[Stored] = []
        for draft in drafts:
            match draft:
                case TrajectoryDraft():
                    stored.append(self._open(draft))
                case EventDraft() | AnnotationDraft():
                    stored.append(self._append(draft))
                    if isinstance(draft, EventDraft):
                        self._bind_waiting("event", draft.id)
                case Signal():
                    stored.append(self._signal(draft))
                case Context():
                    self._execute("INSERT OR IGNORE INTO contexts VALUES (?,?)", draft.id, msgspec.json.encode(draft))
                    stored.append(Stored(draft.id))
                case Content():
                    stored.append(Stored(self._put(draft.media_type, draft.data)))
                case Close():
                    self._close(draft.trajectory_id, draft.reason)
                    stored.append(Stored(draft.trajectory_id, draft.trajectory_id))
        return stored

    def close_idle(self, before: str) -> list[str]:
        """Close what has had no record since `before`; gives the trajectories' ids."""
        rows = self._execute(
            "UPDATE trajectories SET closed='idle' WHERE closed IS NULL AND last_at<? RETURNING trajectory_id", before
        )
        return [row[0] for row in rows.fetchall()]

    def probe(self) -> None:
        """Write and throw away; raises when the disk does not take it."""
        with self.transaction():
            self._execute("INSERT OR REPLACE INTO probe VALUES (1, zeroblob(?))", _PROBE_BYTES)
        with self.transaction():
            self._execute("DELETE FROM probe")

    def _open(self, draft: TrajectoryDraft) -> Stored:
        id = draft.trajectory_id
        if self._execute("SELECT 1 FROM trajectories WHERE trajectory_id=?", id).fetchone():
            return Stored(id, id, 0)
        record = chain.seal(self._body(draft), 0, None)
        session = record.get("session_id")
        self._insert(record, id, "trajectory", draft.agent.name)
        self._execute(
            "INSERT INTO trajectories VALUES (?,?,?,?,?,NULL,1,?)",
            id, session, draft.agent.name, draft.time, draft.time, record["hash"],
        )  # fmt: skip
        self._bind_waiting("trajectory", id)
        if session is not None:
            self._bind_waiting("session", session)
        return Stored(id, id, 0)

    def _append(self, draft: EventDraft | AnnotationDraft) -> Stored:
        known = self._execute("SELECT trajectory_id, seq FROM records WHERE id=?", draft.id).fetchone()
        if known:
            return Stored(draft.id, known[0], known[1])
        head = self._execute(
            "SELECT next_seq, head, agent FROM trajectories WHERE trajectory_id=?", draft.trajectory_id
        ).fetchone()
        if head is None:
            raise InvalidDraft(f"{draft.id}: trajectory {draft.trajectory_id} was never opened")
        seq, previous, agent = head
        record = chain.seal(self._body(draft), seq, previous)
        self._insert(record, draft.id, draft.kind, agent)
        self._execute(
            "UPDATE trajectories SET next_seq=?, head=?, last_at=max(last_at, ?) WHERE trajectory_id=?",
            seq + 1, record["hash"], draft.time, draft.trajectory_id,
        )  # fmt: skip
        if isinstance(draft, EventDraft) and draft.kind == "outcome":
            self._close(draft.trajectory_id, "outcome")
        if isinstance(draft, AnnotationDraft) and draft.name == ENDING_ANNOTATION:
            self._close(draft.trajectory_id, "outcome")
        return Stored(draft.id, draft.trajectory_id, seq)

    def _signal(self, signal: Signal) -> Stored:
        id = signal.annotation.id
        trajectory = self._find(signal)
        known = self._execute("SELECT trajectory_id, seq FROM records WHERE id=?", id).fetchone()
        if known:
            return Stored(id, known[0], known[1])
        if trajectory is None:
            self._execute(
                "INSERT OR IGNORE INTO pending VALUES (?,?,?,?)",
                id, signal.target_kind, signal.target, msgspec.json.encode(signal),
            )  # fmt: skip
            self._pending += 1
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
                row = self._execute(
                    "SELECT trajectory_id FROM records WHERE id=? AND record='event' AND agent=?",
                    signal.target, signal.agent,
                ).fetchone()  # fmt: skip
            case "trajectory":
                row = self._execute(
                    "SELECT trajectory_id FROM trajectories WHERE trajectory_id=? AND agent=?",
                    signal.target, signal.agent,
                ).fetchone()  # fmt: skip
            case "session":
                # a header without a purpose came with an agent's own traffic
                row = self._execute(
                    "SELECT t.trajectory_id FROM trajectories t"
                    " JOIN records r ON r.trajectory_id=t.trajectory_id AND r.seq=0"
                    " WHERE t.session_id=?1 AND t.agent=?2 AND (?3 IS NULL OR"
                    " coalesce(json_extract(CAST(r.body AS TEXT), '$.ext.purpose'), 'serve')=?3)"
                    " ORDER BY t.rowid DESC LIMIT 1",
                    signal.target, signal.agent, signal.purpose,
                ).fetchone()  # fmt: skip
        return row[0] if row else None

    def _bind_waiting(self, target_kind: str, target: str) -> None:
        if not self._pending:
            return
        rows = self._execute(
            "SELECT id, body FROM pending WHERE target_kind=? AND target=? ORDER BY rowid", target_kind, target
        ).fetchall()
        for id, body in rows:
            if self._signal(msgspec.json.decode(body, type=Signal)).bound:
                self._execute("DELETE FROM pending WHERE id=?", id)
        if rows:
            self._pending = self._count_pending()

    def _close(self, trajectory_id: str, reason: str) -> None:
        self._execute(
            "UPDATE trajectories SET closed=? WHERE trajectory_id=? AND (closed IS NULL OR closed='idle')",
            reason,
            trajectory_id,
        )

    def _count_pending(self) -> int:
        return int(self._execute("SELECT count(*) FROM pending").fetchone()[0])

    def _body(self, draft: TrajectoryDraft | EventDraft | AnnotationDraft) -> dict[str, Any]:
        body = parts.externalize(msgspec.to_builtins(draft), self._put)
        try:
            canonical(body)
        except ValueError:
            body = _within_json(body)
        return body

    def _put(self, media_type: str, data: bytes) -> str:
        digest = digest_bytes(data)
        self._execute("INSERT OR IGNORE INTO parts VALUES (?,?,?)", digest, media_type, data)
        return digest

    def _insert(self, record: dict[str, Any], id: str, kind: str, agent: str) -> None:
        self._execute(
            "INSERT INTO records (id, trajectory_id, seq, record, kind, agent, committed, body)"
            " VALUES (?,?,?,?,?,?,?,?)",
            id, record["trajectory_id"], record["seq"], record["record"], kind, agent, time.time(),
            orjson.dumps(record),
        )  # fmt: skip

    def _execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        return self._connection.execute(sql, values)


def _within_json(value: Any) -> Any:
    """Integers that a JSON number can't hold exactly become text: the record must have a canonical form."""
    if isinstance(value, dict):
        return {key: _within_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_within_json(item) for item in value]
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > _SAFE_INTEGER:
        return str(value)
    return value
