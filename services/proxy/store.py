"""The event store: one writer thread, group commit, and a spool for when the database says no.

Whatever is queued when the writer looks is committed in one transaction a tenant. `append` returns when its
drafts are durable, in the log or in the spool; when neither takes them it raises, and nothing may be
acknowledged.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future as ThreadFuture
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from evoplane.settings import Settings
from services.proxy.blobs import Blobs
from services.proxy.drafts import InvalidDraft, Stored, StoreDraft, StoreUnavailable
from services.proxy.engines.base import Engine, Misconfigured, ReadConnection, StorageFailed, require_tenant
from services.proxy.engines.opening import open_blobs, open_engine
from services.proxy.engines.sqlite import SqliteEngine
from services.proxy.log import TenantLog
from services.proxy.reader import Cursor, StoreReader, TrajectoryRow, open_reader
from services.proxy.slots import Slot, Slots
from services.proxy.spool import MAX_BYTES, Job
from services.proxy.tenant_writer import Result, State, StoreCounters, TenantWriter

__all__ = [
    "Cursor",
    "EventStore",
    "InvalidDraft",
    "StoreCounters",
    "StoreReader",
    "StoreUnavailable",
    "Stored",
    "TrajectoryRow",
    "open_reader",
    "open_store",
]

_log = logging.getLogger(__name__)

_MAX_BATCH = 512
"""Jobs in one transaction at most: bounds how long a commit can take."""
_CROWD = 8
"""With more exchanges than this under way, a commit is worth waiting for."""
_GATHER_S = 0.002
"""How long: less than a commit takes, and nobody alone waits."""
_TOLD_AT_ONCE = 16
"""Callers told in one turn of their loop: each goes on at once, and a commit may have had hundreds."""
_MAX_QUEUE = 20_000
"""Jobs waiting for the writer at most: bounds memory when the disk stalls."""

_WORST_FIRST: tuple[State, ...] = ("refusing", "spooling", "ok")

T = TypeVar("T")


@dataclass(eq=False)
class _Waiting:
    job: Job
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[list[Stored]]
    outcome: Result | None = None


@dataclass
class _Task:
    """Something else to do on the writer's thread."""

    run: Callable[[], None]


def open_store(settings: Settings) -> EventStore:
    """The deployment's event store, not started yet. Raises `SettingsError`."""
    return EventStore(
        settings.store_dir, settings.store.spool_bytes, engine=open_engine(settings), blobs=open_blobs(settings)
    )


class EventStore:
    """Appends drafts durably. One a process: `start` before use, `close` after.

    Several processes may write to one database: each has a spool of its own under `root`.
    """

    def __init__(
        self,
        root: Path,
        spool_bytes: int = MAX_BYTES,
        *,
        engine: Engine | None = None,
        blobs: Blobs | None = None,
    ) -> None:
        self._root = root
        self._slots = Slots(root / "spool", spool_bytes)
        self._engine = engine or SqliteEngine(root)
        self._blobs = blobs or Blobs(str(root / "blobs"))
        self._queue: queue.SimpleQueue[_Waiting | _Task | None] = queue.SimpleQueue()
        self._writers: dict[str, TenantWriter] = {}
        self._tellers: dict[asyncio.AbstractEventLoop, _Teller] = {}
        self._prepared = False
        self._thread: threading.Thread | None = None
        self._slot: Slot
        self._reader: ReadConnection
        self.counters = StoreCounters()
        self.expecting: Callable[[], int] = int
        """How many exchanges are under way, whose drafts will come: asked by the writer."""

    @property
    def state(self) -> State:
        """The worst of all tenants'."""
        return self.counters.state

    def state_of(self, tenant: str) -> State:
        """How a tenant's drafts are kept now; `refusing` when nothing could make them durable."""
        writer = self._writers.get(tenant)
        return writer.state if writer is not None else "ok"

    async def start(self) -> None:
        """Open the spool, take what a crash left in it into the log, begin to write.

        Raises `Misconfigured` when the database must not be used as it is, and `OSError` when there is no spool.
        """
        self._root.mkdir(parents=True, exist_ok=True)
        started: ThreadFuture[None] = ThreadFuture()
        self._thread = threading.Thread(target=self._run, args=(started,), name="event-store", daemon=True)
        self._thread.start()
        try:
            await asyncio.wrap_future(started)
        except BaseException:
            self._thread = None
            raise

    async def close(self) -> None:
        """Write what is queued, then stop."""
        if self._thread is None:
            return
        self._queue.put(None)
        await asyncio.to_thread(self._thread.join)
        self._thread = None

    async def append(self, tenant: str, drafts: Iterable[StoreDraft]) -> list[Stored]:
        """Make the drafts durable and place them; gives one `Stored` a draft.

        Idempotent by id. Raises `StoreUnavailable` when nothing could make them durable and
        `InvalidDraft` when an event's trajectory does not exist.
        """
        return await self.submit(tenant, drafts)

    def submit(self, tenant: str, drafts: Iterable[StoreDraft]) -> asyncio.Future[list[Stored]]:
        """Queue drafts without waiting: calls from one event loop are stored in the order they were made."""
        self.require_room()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[Stored]] = loop.create_future()
        self._queue.put(_Waiting(Job(tenant, list(drafts)), loop, future))
        return future

    def require_room(self) -> None:
        """Raises `StoreUnavailable` when drafts could not even be queued now."""
        if self._thread is None:
            raise StoreUnavailable("the event store is not running")
        if self._queue.qsize() >= _MAX_QUEUE:
            self.counters.refused += 1
            raise StoreUnavailable("the event store's queue is full: the disk is too slow")

    async def close_idle(self, tenants: Iterable[str], before: str) -> dict[str, list[str]]:
        """Close what has had no record since `before`; gives the closed trajectories' ids by tenant.

        Also takes over the spools that other processes left behind.
        """
        wanted = set(tenants)

        def run() -> dict[str, list[str]]:
            self._take_over()
            closed: dict[str, list[str]] = {}
            try:
                known = wanted.intersection(self._reader.tenants())
            except StorageFailed as error:
                _log.warning("idle trajectories can't be closed now: %s", error)
                return closed
            for writer in (self._writer(tenant) for tenant in sorted(known)):
                if not writer.behind:
                    closed[writer.tenant] = writer.close_idle(before)
            return closed

        return await self._on_the_writers_thread(run)

    async def erase_key(self, tenant: str, trajectory_id: str) -> None:
        """Delete a trajectory's data key and what is sealed with it, for ever; the chain goes on verifying.

        Raises `StoreUnavailable` while the tenant's log can't be written or has drafts in the spool.
        """
        await self._on_the_log(tenant, lambda log: log.erase_key(trajectory_id))

    async def rewrap(self, tenant: str, version: int, wrap: Callable[[str, int, bytes], bytes]) -> int:
        """Wrap every key older than `version` anew: `wrap(trajectory_id, its version, wrapped)`, on another thread.

        Gives how many there were. Raises `StoreUnavailable` as `erase_key` does.
        """
        return await self._on_the_log(tenant, lambda log: log.rewrap(version, wrap))

    async def sweep(self, tenant: str) -> int:
        """Remove blobs that a crash left without a record; gives their number. Raises `StoreUnavailable`."""
        return await self._on_the_log(tenant, lambda log: log.sweep())

    async def _on_the_log(self, tenant: str, work: Callable[[TenantLog], T]) -> T:
        def run() -> T:
            writer = self._writer(tenant)
            if writer.behind:
                raise StoreUnavailable(f"the event log of {tenant} is {writer.state}: {writer.failure}")
            try:
                return work(writer.log())
            except (StorageFailed, OSError) as error:
                writer.close()
                raise StoreUnavailable(f"the event log of {tenant} can't be written: {error}") from error

        return await self._on_the_writers_thread(run)

    async def _on_the_writers_thread(self, work: Callable[[], T]) -> T:
        if self._thread is None:
            raise StoreUnavailable("the event store is not running")
        done: ThreadFuture[T] = ThreadFuture()

        def run() -> None:
            if not done.set_running_or_notify_cancel():
                return  # nobody waits for it any more
            try:
                result = work()
            except Exception as error:
                done.set_exception(error)
            else:
                done.set_result(result)

        self._queue.put(_Task(run))
        return await asyncio.wrap_future(done)

    # -- the writer's thread

    def _run(self, started: ThreadFuture[None]) -> None:
        try:
            self._open()
        except Exception as error:
            started.set_exception(error)
            return
        started.set_result(None)
        stopping = False
        while not stopping:
            batch: list[_Waiting] = []
            stopping = self._collect(batch)
            try:
                self._write(batch)
            except Exception as error:
                # a fault of ours must neither end the writer nor be acknowledged
                _log.exception("the event store's writer failed on a batch of %d", len(batch))
                for waiting in batch:
                    waiting.outcome = waiting.outcome or StoreUnavailable(f"the event store's writer failed: {error}")
                for writer in self._writers.values():
                    writer.close()
            self._report()
            self._tell(batch)
            self._recover(entirely=stopping)
        for writer in self._writers.values():
            writer.close()
        self._slot.close()
        self._reader.close()
        self._engine.close()

    def _open(self) -> None:
        self._reader = self._engine.reading()
        self._slot = self._slots.take()
        self._slot.take_in(self._root / "spool.jsonl")
        try:
            self._prepare()
        except Misconfigured:
            raise
        except StorageFailed as error:
            _log.error("the event log is away, drafts go to the spool: %s", error)
        for tenant in self._slot.waiting():
            self._writer(tenant).queue_behind()
        self._recover(entirely=True)
        self._take_over()
        self._report()

    def _prepare(self) -> None:
        if not self._prepared:
            self._engine.prepare()
            self._prepared = True

    def _collect(self, batch: list[_Waiting]) -> bool:
        """Wait for work and take what is there; True when it is time to stop."""
        waits = [writer.wait_s() for writer in self._writers.values() if writer.behind]
        try:
            item = self._queue.get(timeout=min(waits)) if waits and min(waits) > 0 else self._queue.get(block=not waits)
            if isinstance(item, _Waiting) and self.expecting() > _CROWD:
                time.sleep(_GATHER_S)
            while True:
                if item is None:
                    return True
                if isinstance(item, _Task):
                    item.run()
                else:
                    batch.append(item)
                if len(batch) >= _MAX_BATCH:
                    return False
                item = self._queue.get_nowait()
        except queue.Empty:
            return False

    def _write(self, batch: list[_Waiting]) -> None:
        self.counters.jobs += len(batch)
        by_tenant: dict[str, list[_Waiting]] = {}
        for waiting in batch:
            by_tenant.setdefault(waiting.job.tenant, []).append(waiting)
        for tenant, group in by_tenant.items():
            try:
                results = self._writer(tenant).write([waiting.job for waiting in group])
            except ValueError as error:  # what can't be a tenant's id
                results = [InvalidDraft(str(error)) for _ in group]
            for waiting, result in zip(group, results, strict=True):
                waiting.outcome = result

    def _recover(self, entirely: bool = False) -> None:
        for writer in self._writers.values():
            if writer.behind:
                writer.recover(entirely)
        self._report()

    def _take_over(self) -> None:
        """Drain what processes that are gone left in their slots."""
        for slot in self._slots.abandoned():
            try:
                for tenant, spool in slot.waiting().items():
                    while not spool.empty and not self._writer(tenant).behind:
                        self._writer(tenant).drain(spool)
            except (StorageFailed, OSError) as error:
                _log.warning("an abandoned spool can't be drained now: %s", error)
            finally:
                slot.close()

    def _writer(self, tenant: str) -> TenantWriter:
        writer = self._writers.get(tenant)
        if writer is None:
            writer = self._writers[tenant] = TenantWriter(
                require_tenant(tenant), lambda: self._open_log(tenant), lambda: self._slot.spool(tenant), self.counters
            )
        return writer

    def _open_log(self, tenant: str) -> TenantLog:
        self._prepare()
        return TenantLog(self._engine.writing(tenant), self._blobs, tenant)

    def _tell(self, batch: list[_Waiting]) -> None:
        """Set every future's result on its own loop, with one wake-up a loop."""
        by_loop: dict[asyncio.AbstractEventLoop, list[_Waiting]] = {}
        for waiting in batch:
            by_loop.setdefault(waiting.loop, []).append(waiting)
        for loop, group in by_loop.items():
            if loop.is_closed():
                self._tellers.pop(loop, None)
                continue
            teller = self._tellers.get(loop) or self._tellers.setdefault(loop, _Teller(loop))
            teller.tell(group)

    def _report(self) -> None:
        writers = self._writers.values()
        self.counters.state = next(
            state for state in _WORST_FIRST if state == "ok" or any(w.state == state for w in writers)
        )
        self.counters.failure = next((writer.failure for writer in writers if writer.behind), "")
        self.counters.spool_bytes = self._slot.size


class _Teller:
    """Tells the callers of one event loop what became of their drafts, in the order in which these were stored: what
    goes on from a later answer of a session must not be followed by what goes on from an earlier one."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._untold: deque[_Waiting] = deque()

    def tell(self, group: list[_Waiting]) -> None:
        """From any thread."""
        self._loop.call_soon_threadsafe(self._take, group)

    def _take(self, group: list[_Waiting]) -> None:
        telling = bool(self._untold)
        self._untold.extend(group)
        if not telling:
            self._some()

    def _some(self) -> None:
        """The first of them, and the rest in the loop's next turns: it has requests to serve between."""
        for _ in range(min(_TOLD_AT_ONCE, len(self._untold))):
            _resolve(self._untold.popleft())
        if self._untold:
            self._loop.call_soon(self._some)


def _resolve(waiting: _Waiting) -> None:
    if waiting.future.done():
        return
    if isinstance(waiting.outcome, list):
        waiting.future.set_result(waiting.outcome)
    else:
        waiting.future.set_exception(waiting.outcome or StoreUnavailable("the event store's writer failed"))
