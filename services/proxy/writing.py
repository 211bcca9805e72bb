"""Everything that writes to the logs of a deployment: its tenants' writers, their spools, what others left behind.

For one thread, which is `EventStore`'s (`store`) or a process of its own (`writer_process`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from evoplane.settings import Settings
from services.proxy.blobs import Blobs
from services.proxy.drafts import InvalidDraft, SealedBlob, StoreDraft, StoreUnavailable, TrajectoryKey
from services.proxy.engines.base import Engine, Misconfigured, ReadConnection, StorageFailed, require_tenant
from services.proxy.engines.opening import open_blobs, open_engine
from services.proxy.governor import Governor, Ready
from services.proxy.journal import Entry
from services.proxy.journal_replay import NotNow, Replay
from services.proxy.log import TenantLog
from services.proxy.protection import Found
from services.proxy.slots import Slot, Slots
from services.proxy.spool import Job
from services.proxy.tenant_writer import Result, State, StoreCounters, TenantWriter

_log = logging.getLogger(__name__)

MAX_BATCH = 512
"""Jobs in one transaction at most: bounds how long a commit can take."""
CROWD = 8
"""With more exchanges than this under way, a commit is worth waiting for."""
GATHER_S = 0.002
"""How long: less than a commit takes, and nobody alone waits."""

_UNSYNCED = 16
"""So many journaled jobs are in the logs before these are synced: what gathers longer takes long, and all at once."""

_ELSEWHERE_S = 1.0
"""An erasure waits so long for other processes to clear their journals, which they do all the time."""

_WORST_FIRST: tuple[State, ...] = ("refusing", "spooling", "ok")

T = TypeVar("T")


class Submission(msgspec.Struct, frozen=True):
    """Drafts of one tenant that are stored together or not at all."""

    tenant: str
    drafts: list[StoreDraft]
    found: dict[str, Found] | None = None
    """What was found in their trajectories by whoever has redacted and sealed them; None where nobody has."""
    ready: Ready | None = None
    """The form in which the first of them may be stored, where that is known."""


class LogWriter:
    """Writes what was submitted into its tenants' logs. `open` before use, `close` after."""

    def __init__(
        self, root: Path, spool_bytes: int, engine: Engine, blobs: Blobs, governor: Governor | None = None
    ) -> None:
        """Everything goes through the `governor` first; without one, whoever submits has seen to that."""
        self._root = root
        self._governor = governor
        self._slots = Slots(root / "spool", spool_bytes)
        self._engine = engine
        self._blobs = blobs
        self._writers: dict[str, TenantWriter] = {}
        self._prepared = False
        self._stuck: set[str] = set()
        """Tenants of whose jobs in the journal one could not even be tried to be placed."""
        self._unreached: set[Path] = set()
        """Files of which it was said that no erasure reaches them."""
        self._unsynced = 0
        """Jobs that were placed since the logs were last synced for the journal's sake."""
        self._slot: Slot
        self._reader: ReadConnection
        self.counters = StoreCounters()

    def open(self) -> None:
        """Take what a crash left in the spool into the logs.

        Raises `Misconfigured` when the database must not be used as it is, and `OSError` when there is no spool.
        """
        self._root.mkdir(parents=True, exist_ok=True)
        self._reader = self._engine.reading()
        self._take_slot()
        self._slot.take_in(self._root / "spool.jsonl")
        try:
            self._prepare_engine()
        except Misconfigured:
            raise
        except StorageFailed as error:
            _log.error("the event log is away, drafts go to the spool: %s", error)
        for tenant in self._slot.waiting():
            self._writer(tenant).queue_behind()
        self.recover(entirely=True)
        self._take_over()
        self._report()

    def close(self) -> None:
        self.settle()
        self._close_logs()
        self._slot.close()
        self._reader.close()
        self._engine.close()

    def state_of(self, tenant: str) -> State:
        """How a tenant's drafts are kept now; `refusing` when nothing could make them durable. From any thread."""
        writer = self._writers.get(tenant)
        return writer.state if writer is not None else "ok"

    def in_trouble(self) -> dict[str, State]:
        """The state of each tenant whose log can't be written now."""
        return {tenant: writer.state for tenant, writer in self._writers.items() if writer.behind}

    def wait_s(self) -> float | None:
        """How long until `recover` is worth calling; None when there is nothing to recover."""
        return min((writer.wait_s() for writer in self._writers.values() if writer.behind), default=None)

    def journal(self, tenant: str, job: bytes | memoryview) -> bool:
        """Have a job on the disk, encrypted, before `write_journaled` is given it. Raises nothing.

        False where that must not be, or can't be now.
        """
        try:
            governed = None if self._governor is None else self._governor.journaling(tenant)
            if governed is None or self._writer(tenant).behind or not self._slot.journal.takes(len(job)):
                return False
            policy, keys = governed
            self._slot.journal.append(keys, Entry(bytes(job), policy))
        except (OSError, ValueError) as error:
            _log.warning("the journal takes nothing, so callers wait for the log: %s", error)
            return False
        self.counters.journaled += 1
        return True

    @property
    def journal_waits(self) -> bool:
        """Is there something in the journal that `settle` could clear?"""
        return not self._slot.journal.tenants <= self._kept()

    @property
    def journal_due(self) -> bool:
        """Should it be cleared now, whatever waits?"""
        return (self._slot.journal.full or self._slot.journal.old) and self.journal_waits

    def settle(self) -> None:
        """Have on the disk what is in the logs, and clear the journal of it. Raises nothing."""
        if self.journal_waits and self._sync():
            try:
                self._slot.journal.clear(self._kept())
            except OSError as error:
                _log.error("the journal can't be cleared: %s", error)

    def _kept(self) -> set[str]:
        """Tenants whose entries in the journal are needed: something of theirs has no place yet."""
        return {tenant for tenant, writer in self._writers.items() if writer.owes} | self._stuck

    def _sync(self) -> bool:
        """Have on the disk what is in the logs; is it?"""
        self._unsynced = 0
        return all(writer.sync() for writer in self._writers.values() if writer.unsynced)

    def write(self, submitted: Sequence[Submission]) -> list[Result]:
        """Make it durable, what is one tenant's in its order; gives what became of each. Raises nothing.

        What is not redacted is only ever in memory, and in the journal. What comes of sealing (keys, blobs) is not told
        about.
        """
        results: list[Result | None] = [None] * len(submitted)
        try:
            self._write(submitted, results)
        except Exception as error:
            # a fault of ours must neither end the writer nor be acknowledged
            _log.exception("the event store's writer failed on a batch of %d", len(submitted))
            failed = StoreUnavailable(f"the event store's writer failed: {error}")
            results = [failed if result is None else result for result in results]
            self._close_logs()
        self._report()
        return [StoreUnavailable("the event store's writer failed") if r is None else r for r in results]

    def write_journaled(self, submitted: Submission, told: Callable[[Result], None]) -> None:
        """Place what is in the journal; `told` is called with what became of it, now or later. Raises nothing.

        What can never be placed is put aside.
        """
        self.counters.jobs += 1
        try:
            job = self._job(submitted)
            self._place(job, lambda result: told(_told(submitted, job, result)))
        except Exception:
            # a fault of ours: it stays in the journal, for the next start to try
            _log.exception("a job of %s is in the journal and can't be placed", submitted.tenant)
            self._stuck.add(submitted.tenant)
            self._close_logs()
        self._unsynced += 1
        if self._unsynced >= _UNSYNCED:
            self._sync()
        self._report()

    def _place(self, job: Job, told: Callable[[Result], None]) -> None:
        writer = self._writer(job.tenant)
        try:
            writer.write_journaled(job, told)
        except Exception as error:
            writer.close()
            writer.put_aside(job, error)
            told(InvalidDraft(f"the event store's writer failed: {error}"))

    def _close_logs(self) -> None:
        for writer in self._writers.values():
            writer.close()

    def recover(self, entirely: bool = False) -> None:
        """Try the logs that failed again, and drain some of their spools (or all of them)."""
        for writer in self._writers.values():
            if writer.behind:
                writer.recover(entirely)
        self._report()

    def close_idle(self, tenants: Iterable[str], before: str) -> dict[str, list[str]]:
        """Close what has had no record since `before`; gives the closed trajectories' ids by tenant.

        Also takes over the spools that other processes left behind.
        """
        self._take_over()
        closed: dict[str, list[str]] = {}
        try:
            known = set(tenants).intersection(self._reader.tenants())
        except StorageFailed as error:
            _log.warning("idle trajectories can't be closed now: %s", error)
            return closed
        for writer in (self._writer(tenant) for tenant in sorted(known)):
            if not writer.behind:
                closed[writer.tenant] = writer.close_idle(before)
        return closed

    def on_the_log(self, tenant: str, work: Callable[[TenantLog], T]) -> T:
        """Do something with a tenant's log. Raises `StoreUnavailable` while it can't be written, or has to wait."""
        writer = self._writer(tenant)
        if writer.behind:
            raise StoreUnavailable(f"the event log of {tenant} is {writer.state}: {writer.failure}")
        try:
            return work(writer.log())
        except (StorageFailed, OSError) as error:
            writer.close()
            raise StoreUnavailable(f"the event log of {tenant} can't be written: {error}") from error

    def erase_key(self, tenant: str, trajectory_id: str) -> None:
        """Delete a trajectory's data key and what is sealed with it, for ever; the chain goes on verifying.

        Raises `StoreUnavailable` as `on_the_log` does, and when something of the tenant's lies in a journal that can't
        be cleared now: what is there is as it was captured.
        """
        self.settle()
        self._take_over()
        for path in self._slots.put_aside() - self._unreached:
            self._unreached.add(path)
            _log.warning("erasures don't reach what was put aside for a person to look at: %s", path)
        self.on_the_log(tenant, lambda log: log.erase_key(trajectory_id))
        if tenant in self._slot.journal.tenants or self._slots.journaled_elsewhere(tenant, self._slot, _ELSEWHERE_S):
            raise StoreUnavailable(
                f"something of {tenant} lies in a journal that can't be cleared now: a gateway that runs clears it in a"
                " second; try again"
            )

    def found(self, tenant: str, trajectories: list[str]) -> dict[str, Found]:
        """What redaction has found in these trajectories so far."""
        return {} if self._governor is None else self._governor.found(tenant, trajectories)

    def _prepare_engine(self) -> None:
        if not self._prepared:
            self._engine.prepare()
            self._prepared = True

    def prepare(self, begun: Submission) -> Submission:
        """Do what can be done for the first drafts of a job before the others are there. Raises nothing."""
        if self._governor is None or begun.found is not None:
            return begun
        return msgspec.structs.replace(begun, ready=self._governor.prepare(begun.tenant, begun.drafts))

    def _write(self, submitted: Sequence[Submission], results: list[Result | None]) -> None:
        self.counters.jobs += len(submitted)
        by_tenant: dict[str, dict[int, Job]] = {}
        for place, each in enumerate(submitted):
            try:
                by_tenant.setdefault(each.tenant, {})[place] = self._job(each)
            except StoreUnavailable as error:  # what could not be redacted, where the policy wants it refused
                results[place] = error
        for tenant, jobs in by_tenant.items():
            written: Sequence[Result]
            try:
                written = self._writer(tenant).write(list(jobs.values()))
            except ValueError as error:  # what can't be a tenant's id
                written = [InvalidDraft(str(error)) for _ in jobs]
            for (place, job), result in zip(jobs.items(), written, strict=True):
                results[place] = _told(submitted[place], job, result)

    def _job(self, submitted: Submission) -> Job:
        """As it may be stored. Raises `Blocked`."""
        if self._governor is None:
            return Job(submitted.tenant, submitted.drafts)
        if submitted.found is not None:
            return Job(submitted.tenant, self._governor.adopt(submitted.tenant, submitted.drafts, submitted.found))
        return Job(submitted.tenant, self._governor.protect(submitted.tenant, submitted.drafts, submitted.ready))

    def _take_slot(self) -> None:
        """The first slot whose journals could be placed, if there are any: what is spooled there goes on from them."""
        passed: list[Slot] = []
        self._slot = self._slots.take()
        while not self._place_left(self._slot):
            passed.append(self._slot)
            self._slot = self._slots.take()
        for each in passed:
            each.close()

    def _take_over(self) -> None:
        """Place and drain what processes that are gone left in their slots."""
        try:
            abandoned = self._slots.abandoned()
        except OSError as error:  # the directory was taken away, say: what is there to take over is for another time
            _log.warning("abandoned spools can't be looked for: %s", error)
            return
        for slot in abandoned:
            try:
                if self._place_left(slot):
                    for tenant, spool in slot.waiting().items():
                        while not spool.empty and not self._writer(tenant).behind:
                            self._writer(tenant).drain(spool)
            except (StorageFailed, OSError) as error:
                _log.warning("an abandoned spool can't be drained now: %s", error)
            finally:
                slot.close()

    def _place_left(self, slot: Slot) -> bool:
        """Place what the last holder of a slot left in its journals; is all of it placed?"""
        if slot.left and self._governor is None:
            return False
        for path in [*slot.left]:
            assert self._governor is not None
            try:
                Replay(path, self._governor, self._writer).run()
            except (NotNow, OSError) as error:
                _log.warning("the journal %s can't be placed now: %s", path, error)
                return False
            slot.left.remove(path)
        return True

    def _writer(self, tenant: str) -> TenantWriter:
        writer = self._writers.get(tenant)
        if writer is None:
            writer = self._writers[tenant] = TenantWriter(
                require_tenant(tenant),
                lambda: self._open_log(tenant),
                lambda: self._slot.spool(tenant),
                self.counters,
                lambda drafts: self._reconciled(tenant, drafts),
            )
        return writer

    def _reconciled(self, tenant: str, drafts: list[StoreDraft]) -> list[StoreDraft]:
        return drafts if self._governor is None else self._governor.reconciled(tenant, drafts)

    def _open_log(self, tenant: str) -> TenantLog:
        self._prepare_engine()
        return TenantLog(self._engine.writing(tenant), self._blobs, tenant)

    def _report(self) -> None:
        writers = self._writers.values()
        self.counters.state = next(
            state for state in _WORST_FIRST if state == "ok" or any(w.state == state for w in writers)
        )
        self.counters.failure = next((writer.failure for writer in writers if writer.behind), "")
        self.counters.spool_bytes = self._slot.size


def _told(submitted: Submission, job: Job, result: Result) -> Result:
    """One `Stored` a draft that was submitted."""
    if not isinstance(result, list) or len(result) == len(submitted.drafts):
        return result
    pairs = zip(job.drafts, result, strict=True)
    return [item for draft, item in pairs if not isinstance(draft, SealedBlob | TrajectoryKey)]


def open_writer(settings: Settings, governor: Governor | None = None) -> LogWriter:
    """What writes a deployment's logs, not opened yet. Raises `SettingsError`."""
    return LogWriter(
        settings.store_dir, settings.store.spool_bytes, open_engine(settings), open_blobs(settings), governor
    )
