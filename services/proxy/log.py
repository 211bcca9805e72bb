"""One tenant's event log, as its writer sees it: load what drafts need, place them, write in one transaction.

The statements are those of both databases (`engines.base`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

import msgspec

from atdp.records import AnnotationDraft, EventDraft, TrajectoryDraft
from services.proxy import faults
from services.proxy.blobs import Blobs
from services.proxy.drafts import Close, InvalidDraft, Signal, Stored, StoreDraft
from services.proxy.engines.base import StorageRefused, WriteConnection
from services.proxy.packing import pack_all, pack_content
from services.proxy.placing import ENDING_ANNOTATION, Head, Known, Placing

__all__ = ["ENDING_ANNOTATION", "Outcome", "TenantLog"]

Outcome = list[Stored] | InvalidDraft
"""What became of a job: a `Stored` a draft, or why none of them can be placed."""

Drafts = Sequence[StoreDraft]

_PROBE_BYTES = 65536
"""A probe this big says that the disk takes a real event, not just a few bytes."""
_MAX_TRANSACTION_BYTES = 32 * 2**20
"""A transaction that has become this big is committed, whatever waits: bounds the writer's memory."""
_MAX_HEADS = 4096
"""Chain ends kept in memory."""
_MAX_CONTEXTS = 10_000
_REWRAPPED_AT_ONCE = 200

_HEAD = (
    "SELECT trajectory_id, session_id, agent, purpose, opened, opened_at, last_at, closed, next_seq, head"
    " FROM trajectories"
)


class TenantLog:
    """A tenant's log, open for writing."""

    def __init__(self, connection: WriteConnection, blobs: Blobs, tenant: str) -> None:
        self._connection = connection
        self._blobs = blobs
        self._tenant = tenant
        self._heads: dict[str, Head] = {}
        self._any_pending = True
        self._doubting = False
        """Might it have lost contexts?"""
        self._contexts: set[str] = set()
        """Those that it is known to have."""

    def doubt(self) -> None:
        """It may not have what was written there before: events that name a context it lacks are refused from now on,
        for whoever sends them believes it to be there. They are told again with it."""
        self._doubting = True

    def write_told(self, jobs: Sequence[Drafts]) -> list[Outcome]:
        """`write` what somebody was told is kept, and nobody tells again: a context may come later, with other jobs."""
        doubting, self._doubting = self._doubting, False
        try:
            return self.write(jobs)
        finally:
            self._doubting = doubting

    def in_place(self) -> bool:
        """Is it still where a reader looks for it?"""
        return self._connection.in_place()

    def close(self) -> None:
        self._connection.close()

    def write(self, jobs: Sequence[Drafts], sync: bool = True) -> list[Outcome]:
        """Place and commit the first of the jobs, as many as one transaction may hold; gives an outcome for each.

        Without `sync` they may be on the disk only after `sync`. Raises `StorageFailed` or `OSError`, after which
        nothing of them is stored.
        """
        try:
            return self._write(jobs, sync, trusting=True)
        except StorageRefused:
            self._heads.clear()
        try:
            return self._write(jobs, sync)
        except StorageRefused as error:
            self._heads.clear()
            if len(jobs) == 1:
                return [InvalidDraft(f"the drafts can't be stored: {error}")]
        # one of them is no good: find out which, the others must not suffer
        return [outcome for job in jobs for outcome in self.write([job], sync)]

    def sync(self) -> None:
        """Have on the disk what was written. Raises `StorageFailed` or `OSError`."""
        self._connection.sync()

    def close_idle(self, before: str) -> list[str]:
        """Close what has had no record since `before`; gives the trajectories' ids."""
        with self._connection.transaction():
            rows = self._connection.query(
                "UPDATE trajectories SET closed='idle' WHERE closed IS NULL AND last_at<:before"
                " RETURNING trajectory_id",
                before=before,
            )
        self._heads.clear()
        return [row[0] for row in rows]

    def probe(self) -> None:
        """Write and throw away; raises when the disk does not take it."""
        with self._connection.transaction():
            self._connection.query("DELETE FROM probe")
            self._connection.insert("probe", "id,data", [(1, bytes(_PROBE_BYTES))])
        with self._connection.transaction():
            self._connection.query("DELETE FROM probe")

    def erase_key(self, trajectory_id: str) -> None:
        """Make what is sealed in a trajectory unreadable for ever; its chain goes on verifying.

        The key stays erased: it is not taken again, from whatever copy it comes.
        """
        with self._connection.transaction():
            self._connection.insert("trajectory_keys", "trajectory_id,key_version", [(trajectory_id, 0)], ignore=True)
            self._connection.update("trajectory_keys", "wrapped", "trajectory_id", [(None, trajectory_id)])
            self._connection.query("DELETE FROM sealed WHERE trajectory_id=:id", id=trajectory_id)
        self._connection.scrub()

    def rewrap(self, version: int, wrap: Callable[[str, int, bytes], bytes]) -> int:
        """Wrap every key that an older version of the tenant's key wraps by this version; gives their number.

        `wrap` gets the trajectory, the version that wraps its key now, and the wrapped key.
        """
        done = 0
        while True:
            with self._connection.transaction():
                rows = self._connection.query(
                    "SELECT trajectory_id, key_version, wrapped FROM trajectory_keys"
                    " WHERE key_version<:version AND wrapped IS NOT NULL LIMIT :limit",
                    version=version,
                    limit=_REWRAPPED_AT_ONCE,
                )
                changed = [(version, wrap(id, before, bytes(wrapped)), id) for id, before, wrapped in rows]
                self._connection.update("trajectory_keys", "key_version,wrapped", "trajectory_id", changed)
            done += len(rows)
            if len(rows) < _REWRAPPED_AT_ONCE:
                self._connection.scrub()
                return done

    def sweep(self) -> int:
        """Remove the blobs that no record's content is in; gives their number."""
        removed = 0
        for folder in self._blobs.folders(self._tenant):
            with self._connection.transaction():
                removed += self._blobs.sweep(folder, self._parts_among)
        return removed

    # -- what placing asks for

    def head(self, trajectory_id: str) -> Head | None:
        rows = self._connection.query(f"{_HEAD} WHERE trajectory_id=:id", id=trajectory_id)
        return Head(*rows[0]) if rows else None

    def latest(self, session_id: str, agent: str, purpose: str | None) -> Head | None:
        rows = self._connection.query(
            f"{_HEAD} WHERE session_id=:session AND agent=:agent AND (CAST(:purpose AS TEXT) IS NULL"
            " OR purpose=:purpose) ORDER BY opened DESC LIMIT 1",
            session=session_id,
            agent=agent,
            purpose=purpose,
        )
        return Head(*rows[0]) if rows else None

    def lacks_context(self, id: str) -> bool:
        if not self._doubting or id in self._contexts:
            return False
        if not self._connection.query("SELECT 1 FROM contexts WHERE id=:id", id=id):
            return True
        if len(self._contexts) >= _MAX_CONTEXTS:
            self._contexts.clear()
        self._contexts.add(id)
        return False

    # -- one transaction

    def _write(self, jobs: Sequence[Drafts], sync: bool, trusting: bool = False) -> list[Outcome]:
        """`trusting` takes what is opened for new, and all that is in it, without asking the log.

        Nearly always it is. Where it is not, the log's constraints refuse it, and nothing has happened; neither has
        anything when one of the jobs can't be placed.
        """
        outcomes: list[Outcome] = []
        try:
            with self._connection.transaction(sync) as undisturbed:
                if not undisturbed:
                    self._heads.clear()
                    self._any_pending = self._look_for_pending()
                placing = self._placing(jobs, trusting)
                for drafts in jobs:
                    try:
                        outcomes.append(placing.place(drafts))
                    except InvalidDraft as error:
                        if trusting:
                            # what was to open a trajectory is not placed, so that nothing says whether it is there
                            raise StorageRefused(str(error)) from error
                        outcomes.append(error)
                    if placing.size > _MAX_TRANSACTION_BYTES:
                        break
                self._flush(placing)
                faults.reach("before_commit")
            faults.reach("after_commit")
        except BaseException:
            self._heads.clear()
            self._any_pending = True
            raise
        while len(self._heads) > _MAX_HEADS:
            del self._heads[next(iter(self._heads))]
        return outcomes

    def _placing(self, jobs: Sequence[Drafts], trusting: bool) -> Placing:
        """Everything the drafts are likely to need, in as few questions as possible."""
        ids: set[str] = set()
        opened: set[str] = set()
        trajectories: set[str] = set()
        targets: set[str] = set()
        for drafts in jobs:
            for draft in drafts:
                match draft:
                    case EventDraft() | AnnotationDraft():
                        if draft.trajectory_id in opened:
                            targets.add(draft.id)
                        else:
                            ids.add(draft.id)
                            trajectories.add(draft.trajectory_id)
                    case TrajectoryDraft():
                        if (
                            trusting
                            and draft.trajectory_id not in self._heads
                            and draft.trajectory_id not in trajectories
                        ):
                            opened.add(draft.trajectory_id)
                        else:
                            trajectories.add(draft.trajectory_id)
                        if isinstance(draft.session_id, str):
                            targets.add(draft.session_id)
                    case Close():
                        trajectories.add(draft.trajectory_id)
                    case Signal():
                        ids.update((draft.annotation.id, draft.target))
                        if draft.target_kind == "trajectory":
                            trajectories.add(draft.target)
        waiting: dict[tuple[str, str], tuple[Signal, ...]] = {}
        if self._any_pending:
            for signal in self._pending(targets | ids | trajectories | opened):
                where = (signal.target_kind, signal.target)
                waiting[where] = (*waiting.get(where, ()), signal)
                ids.add(signal.annotation.id)
        absent = self._load_heads(trajectories) | opened
        position = self._connection.next_position()
        return Placing(self, position, self._heads, self._known(ids), waiting, absent)

    def _pending(self, targets: Iterable[str]) -> list[Signal]:
        rows = self._connection.query(
            "SELECT body FROM pending WHERE target IN :targets ORDER BY arrived, id", targets=list(targets)
        )
        return [msgspec.json.decode(row[0], type=Signal) for row in rows]

    def _known(self, ids: Iterable[str]) -> dict[str, Known]:
        if not ids:
            return {}
        rows = self._connection.query(
            "SELECT id, trajectory_id, seq, record, agent FROM records WHERE id IN :ids", ids=list(ids)
        )
        return {id: Known(*rest) for id, *rest in rows}

    def _load_heads(self, trajectories: Iterable[str]) -> set[str]:
        """Have these trajectories' heads in memory; gives those that the log does not have."""
        missing = {id for id in trajectories if id not in self._heads}
        if missing:
            for row in self._connection.query(f"{_HEAD} WHERE trajectory_id IN :ids", ids=list(missing)):
                self._heads[row[0]] = Head(*row)
        return missing - self._heads.keys()

    def _look_for_pending(self) -> bool:
        return bool(self._connection.query("SELECT 1 FROM pending LIMIT 1"))

    def _flush(self, placing: Placing) -> None:
        faults.reach("before_write")
        write = self._connection
        if placing.contents:
            write.insert("parts", "digest,media_type,data,packed,apart", self._parts(placing), ignore=True)
        if placing.contexts:
            write.insert("contexts", "id,body", placing.contexts.items(), ignore=True)
        if placing.records:
            self._insert_records(placing)
        faults.reach("in_write")
        self._write_heads(placing)
        if placing.pending or placing.bound:
            self._write_pending(placing)
        if placing.sealed:
            sealed = [(id, trajectory, data) for id, (trajectory, data) in placing.sealed.items()]
            write.insert("sealed", "id,trajectory_id,data", sealed, ignore=True)
        if placing.answers:
            write.insert("answers", "id,event_id", placing.answers.items(), ignore=True)
        if placing.keys:
            keys = [(trajectory, version, wrapped) for trajectory, (version, wrapped) in placing.keys.items()]
            write.insert("trajectory_keys", "trajectory_id,key_version,wrapped", keys, ignore=True)

    def _insert_records(self, placing: Placing) -> None:
        position, now = placing.position, time.time()
        bodies = pack_all([record[-1] for record in placing.records])
        rows = [
            (position + offset, *fields, now, body)
            for offset, ((*fields, _), body) in enumerate(zip(placing.records, bodies, strict=True))
        ]
        columns = "position,id,trajectory_id,seq,record,kind,agent,committed,body"
        self._connection.insert("records", columns, rows)
        self._connection.used_position(position + len(rows) - 1)

    def _write_heads(self, placing: Placing) -> None:
        opened = [self._heads[id] for id in placing.opened]
        changed = [self._heads[id] for id in placing.changed if id not in placing.opened]
        if opened:
            self._connection.insert(
                "trajectories",
                "trajectory_id,session_id,agent,purpose,opened,opened_at,last_at,closed,next_seq,head",
                [msgspec.structs.astuple(head) for head in opened],
            )
        if changed:
            rows = [(head.last_at, head.closed, head.next_seq, head.hash, head.trajectory_id) for head in changed]
            self._connection.update("trajectories", "last_at,closed,next_seq,head", "trajectory_id", rows)

    def _write_pending(self, placing: Placing) -> None:
        position = self._connection.next_position()
        rows = [
            (id, signal.target_kind, signal.target, msgspec.json.encode(signal), position)
            for id, signal in placing.pending.items()
            if id not in placing.bound
        ]
        if rows:
            self._connection.insert("pending", "id,target_kind,target,body,arrived", rows, ignore=True)
        if placing.bound:
            self._connection.query("DELETE FROM pending WHERE id IN :ids", ids=list(placing.bound))
        self._any_pending = self._look_for_pending()

    def _parts(self, placing: Placing) -> list[tuple[str, str, bytes, int, int | None]]:
        """The rows of the content; what is large is put into the blob store before its row is written."""
        large = [digest for digest, (_, data) in placing.contents.items() if self._blobs.takes(len(data))]
        known = self._parts_among(large) if large else set()
        result: list[tuple[str, str, bytes, int, int | None]] = []
        for digest, (media_type, data) in placing.contents.items():
            if digest in known:
                continue
            if self._blobs.takes(len(data)):
                self._blobs.put(self._tenant, digest, data)
                result.append((digest, media_type, b"", 0, len(data)))
            elif (packed := pack_content(data)) is not None:
                result.append((digest, media_type, packed, 1, None))
            else:
                result.append((digest, media_type, data, 0, None))
        return result

    def _parts_among(self, digests: list[str]) -> set[str]:
        return {row[0] for row in self._connection.query("SELECT digest FROM parts WHERE digest IN :ids", ids=digests)}
