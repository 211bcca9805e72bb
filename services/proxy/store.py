"""The event store: one writer thread, group commit, and a spool for when the database says no.

Whatever is queued when the writer looks is committed in one transaction a tenant. `append` returns when its
drafts are durable, in the log or in the spool; when neither takes them it raises, and nothing may be
acknowledged.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future as ThreadFuture
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from evoplane.settings import Settings
from services.proxy.blobs import Blobs
from services.proxy.drafts import Ahead, InvalidDraft, Stored, StoreDraft, StoreUnavailable, Submitted
from services.proxy.engines.base import Engine
from services.proxy.engines.opening import open_blobs, open_engine
from services.proxy.engines.sqlite import SqliteEngine
from services.proxy.governor import Governor
from services.proxy.log import TenantLog
from services.proxy.reader import Cursor, StoreReader, TrajectoryRow, open_reader
from services.proxy.spool import MAX_BYTES
from services.proxy.telling import Teller, Waiting
from services.proxy.tenant_writer import State, StoreCounters
from services.proxy.writing import CROWD, GATHER_S, MAX_BATCH, LogWriter, Submission

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

MAX_QUEUE = 20_000
"""Jobs waiting for the writer at most: bounds memory when the disk stalls."""

T = TypeVar("T")


@dataclass(eq=False)
class _Queued(Waiting):
    submission: Submission = field(kw_only=True)


@dataclass
class _Task:
    """Something else to do on the writer's thread."""

    run: Callable[[], None]


def open_store(settings: Settings, governor: Governor | None = None) -> EventStore:
    """The deployment's event store, not started yet. Raises `SettingsError`.

    Drafts go through the `governor`, on the store's thread; without one they are stored as they are.
    """
    return EventStore(
        settings.store_dir,
        settings.store.spool_bytes,
        engine=open_engine(settings),
        blobs=open_blobs(settings),
        governor=governor,
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
        governor: Governor | None = None,
    ) -> None:
        self._writer = LogWriter(
            root, spool_bytes, engine or SqliteEngine(root), blobs or Blobs(str(root / "blobs")), governor
        )
        self._queue: queue.SimpleQueue[_Queued | _Task | None] = queue.SimpleQueue()
        self._tellers: dict[asyncio.AbstractEventLoop, Teller] = {}
        self._thread: threading.Thread | None = None
        self.counters = self._writer.counters
        self.expecting: Callable[[], int] = int
        """How many exchanges are under way, whose drafts will come: asked by the writer."""

    @property
    def state(self) -> State:
        """The worst of all tenants'."""
        return self.counters.state

    def state_of(self, tenant: str) -> State:
        """How a tenant's drafts are kept now; `refusing` when nothing could make them durable."""
        return self._writer.state_of(tenant)

    async def start(self) -> None:
        """Open the spool, take what a crash left in it into the log, begin to write.

        Raises `Misconfigured` when the database must not be used as it is, and `OSError` when there is no spool.
        """
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

        Idempotent by id. Raises `StoreUnavailable` when nothing could make them durable, or they can't be redacted
        and their tenant wants that refused, and `InvalidDraft` when an event's trajectory does not exist.
        """
        return await self.submit(tenant, drafts)

    def submit(
        self, tenant: str, drafts: Iterable[StoreDraft], ahead: Ahead | None = None
    ) -> asyncio.Future[list[Stored]]:
        """Queue drafts without waiting: calls from one event loop are stored in the order they were made."""
        self.require_room()
        future: asyncio.Future[list[Stored]] = asyncio.get_running_loop().create_future()
        self._queue.put(_Queued(future, submission=Submission(tenant, list(drafts))))
        return future

    def keep(self, tenant: str, drafts: Iterable[StoreDraft], ahead: Ahead | None = None) -> Submitted:
        """`submit` for who waits until they are safe: a thread has nothing that is so sooner than the log."""
        placed = self.submit(tenant, drafts, ahead)
        return Submitted(placed, placed)

    idle = False
    """Is there time to `prepare` anything? A thread only takes it from the others."""

    def prepare(self, tenant: str, drafts: list[StoreDraft]) -> Ahead | None:
        """Make the first drafts of a job ready before the others are there."""
        return None

    async def submit_large(self, tenant: str, drafts: Iterable[StoreDraft]) -> asyncio.Future[list[Stored]]:
        """`submit`, which costs the event loop nothing however large they are."""
        return self.submit(tenant, drafts)

    def require_room(self) -> None:
        """Raises `StoreUnavailable` when drafts could not even be queued now."""
        if self._thread is None:
            raise StoreUnavailable("the event store is not running")
        if self._queue.qsize() >= MAX_QUEUE:
            self.counters.refused += 1
            raise StoreUnavailable("the event store's queue is full: the disk is too slow")

    async def close_idle(self, tenants: Iterable[str], before: str) -> dict[str, list[str]]:
        """Close what has had no record since `before`; gives the closed trajectories' ids by tenant.

        Also takes over the spools that other processes left behind.
        """
        return await self._on_the_writers_thread(lambda: self._writer.close_idle(tenants, before))

    async def erase_key(self, tenant: str, trajectory_id: str) -> None:
        """Delete a trajectory's data key and what is sealed with it, for ever; the chain goes on verifying.

        Raises `StoreUnavailable` while the tenant's log can't be written or has drafts in the spool or in a journal.
        """
        await self._on_the_writers_thread(lambda: self._writer.erase_key(tenant, trajectory_id))

    async def rewrap(self, tenant: str, version: int, wrap: Callable[[str, int, bytes], bytes]) -> int:
        """Wrap every key older than `version` anew: `wrap(trajectory_id, its version, wrapped)`, on another thread.

        Gives how many there were. Raises `StoreUnavailable` as `erase_key` does.
        """
        return await self._on_the_log(tenant, lambda log: log.rewrap(version, wrap))

    async def sweep(self, tenant: str) -> int:
        """Remove blobs that a crash left without a record; gives their number. Raises `StoreUnavailable`."""
        return await self._on_the_log(tenant, lambda log: log.sweep())

    async def _on_the_log(self, tenant: str, work: Callable[[TenantLog], T]) -> T:
        return await self._on_the_writers_thread(lambda: self._writer.on_the_log(tenant, work))

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
            self._writer.open()
        except Exception as error:
            started.set_exception(error)
            return
        started.set_result(None)
        stopping = False
        while not stopping:
            batch: list[_Queued] = []
            stopping = self._collect(batch)
            for waiting, result in zip(batch, self._writer.write([each.submission for each in batch]), strict=True):
                waiting.outcome = result
            self._tell(batch)
            self._writer.recover(entirely=stopping)
        self._writer.close()

    def _collect(self, batch: list[_Queued]) -> bool:
        """Wait for work and take what is there; True when it is time to stop."""
        wait_s = self._writer.wait_s()
        try:
            item = self._queue.get(block=wait_s is None) if not wait_s else self._queue.get(timeout=wait_s)
            if isinstance(item, _Queued) and self.expecting() > CROWD:
                time.sleep(GATHER_S)
            while True:
                if item is None:
                    return True
                if isinstance(item, _Task):
                    item.run()
                else:
                    batch.append(item)
                if len(batch) >= MAX_BATCH:
                    return False
                item = self._queue.get_nowait()
        except queue.Empty:
            return False

    def _tell(self, batch: list[_Queued]) -> None:
        """Set every future's result on its own loop, with one wake-up a loop."""
        by_loop: dict[asyncio.AbstractEventLoop, list[_Queued]] = {}
        for waiting in batch:
            by_loop.setdefault(waiting.future.get_loop(), []).append(waiting)
        for loop, group in by_loop.items():
            if loop.is_closed():
                self._tellers.pop(loop, None)
                continue
            teller = self._tellers.get(loop) or self._tellers.setdefault(loop, Teller(loop))
            teller.tell(group)
