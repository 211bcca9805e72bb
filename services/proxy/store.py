"""The event store: one writer thread, group commit, and a spool for when the disk says no.

Whatever is queued when the writer looks is committed in one transaction a tenant (SQLite WAL,
`synchronous=FULL`). `append` returns when its drafts are on the disk, in the store or in the
spool; when neither takes them it raises, and nothing may be acknowledged. While the spool holds
anything, new drafts queue behind it, so that order is kept.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from services.proxy import tables
from services.proxy.drafts import InvalidDraft, Stored, StoreDraft, StoreUnavailable
from services.proxy.log import TenantLog
from services.proxy.reader import Cursor, StoreReader, TrajectoryRow
from services.proxy.spool import Job, Spool

__all__ = ["Cursor", "EventStore", "StoreReader", "StoreUnavailable", "Stored", "TrajectoryRow"]

_log = logging.getLogger(__name__)

State = Literal["ok", "spooling", "refusing"]

_MAX_BATCH = 512
"""Jobs in one transaction at most: bounds how long a commit can take."""
_MAX_QUEUE = 20_000
"""Jobs waiting for the writer at most: bounds memory when the disk stalls."""
_RETRY_S = 0.5
"""How often a store that failed is tried again."""


@dataclass(eq=False)
class _Waiting:
    job: Job
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[list[Stored]]
    outcome: list[Stored] | Exception | None = None


@dataclass
class _Task:
    """Something else to do on the writer's thread."""

    run: Callable[[], object]


@dataclass
class StoreCounters:
    """For the metrics page."""

    jobs: int = 0
    commits: int = 0
    commit_seconds: float = 0.0
    spooled: int = 0
    refused: int = 0
    state: State = "ok"
    spool_bytes: int = 0
    failure: str = field(default="")


class EventStore:
    """Appends drafts durably. One per deployment: `start` before use, `close` after."""

    def __init__(self, root: Path, spool_bytes: int | None = None) -> None:
        self._root = root
        self._spool_bytes = spool_bytes
        self._queue: queue.SimpleQueue[_Waiting | _Task | None] = queue.SimpleQueue()
        self._logs: dict[str, TenantLog] = {}
        self._failing: set[str] = set()
        self._thread: threading.Thread | None = None
        self._started = threading.Event()
        self._next_try = 0.0
        self.counters = StoreCounters()

    @property
    def state(self) -> State:
        return self.counters.state

    async def start(self) -> None:
        """Open the spool, take what a crash left in it into the store, begin to write."""
        self._root.mkdir(parents=True, exist_ok=True)
        path = self._root / "spool.jsonl"
        self._spool = Spool(path) if self._spool_bytes is None else Spool(path, self._spool_bytes)
        if not self._spool.empty:
            self.counters.state = "spooling"
        self._thread = threading.Thread(target=self._run, name="event-store", daemon=True)
        self._thread.start()
        await asyncio.to_thread(self._started.wait)

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
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[Stored]] = loop.create_future()
        if self._thread is None:
            raise StoreUnavailable("the event store is not running")
        if self._queue.qsize() >= _MAX_QUEUE:
            self.counters.refused += 1
            raise StoreUnavailable("the event store's queue is full: the disk is too slow")
        self._queue.put(_Waiting(Job(tenant, list(drafts)), loop, future))
        return future

    async def close_idle(self, tenants: Iterable[str], before: str) -> dict[str, list[str]]:
        """Close what has had no record since `before`; gives the closed trajectories' ids by tenant."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[dict[str, list[str]]] = loop.create_future()

        def run() -> None:
            closed: dict[str, list[str]] = {}
            if self.state == "ok":
                for tenant in (name for name in tenants if tables.database(self._root, name).exists()):
                    try:
                        log = self._log(tenant)
                        with log.transaction():
                            closed[tenant] = log.close_idle(before)
                    except (sqlite3.Error, OSError) as error:
                        self._failed(tenant, error)
            loop.call_soon_threadsafe(_deliver, future, closed)

        self._queue.put(_Task(run))
        return await future

    # -- the writer's thread

    def _run(self) -> None:
        if self.state != "ok":
            self._recover()
        self._started.set()
        stopping = False
        while not stopping:
            batch: list[_Waiting] = []
            stopping = self._collect(batch)
            if self.state != "ok" and (stopping or time.monotonic() >= self._next_try):
                self._recover()
            try:
                self._write(batch)
            except Exception:
                # a fault of ours must neither end the writer nor be acknowledged
                _log.exception("the event store's writer failed on a batch of %d", len(batch))
                self._drop_logs()
            _tell(batch)
        for log in self._logs.values():
            log.close()
        self._spool.close()

    def _collect(self, batch: list[_Waiting]) -> bool:
        """Wait for work and take what is there; True when it is time to stop."""
        try:
            item = self._queue.get(timeout=None if self.state == "ok" else _RETRY_S)
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
        """Commit, else spool, else refuse; then tell everybody who waits."""
        self.counters.jobs += len(batch)
        left = batch
        if self._spool.empty:
            by_tenant: dict[str, list[_Waiting]] = {}
            for waiting in batch:
                by_tenant.setdefault(waiting.job.tenant, []).append(waiting)
            left = [w for tenant, group in by_tenant.items() if not self._commit(tenant, group) for w in group]
        if left:
            self._keep_apart(left)

    def _commit(self, tenant: str, group: list[_Waiting]) -> bool:
        """One transaction for the group; False when the store did not take it."""
        started = time.monotonic()
        outcomes: list[list[Stored] | Exception] = []
        try:
            log = self._log(tenant)
            with log.transaction():
                for waiting in group:
                    try:
                        with log.savepoint():
                            outcomes.append(log.place(waiting.job.drafts))
                    except InvalidDraft as error:
                        outcomes.append(error)
        except (sqlite3.Error, OSError) as error:
            self._failed(tenant, error)
            return False
        for waiting, outcome in zip(group, outcomes, strict=True):
            waiting.outcome = outcome
        self.counters.commits += 1
        self.counters.commit_seconds += time.monotonic() - started
        return True

    def _keep_apart(self, left: list[_Waiting]) -> None:
        try:
            invalid = self._spool.append(waiting.job for waiting in left)
        except OSError as error:
            self.counters.refused += len(left)
            self._set_state("refusing", str(error))
            for waiting in left:
                waiting.outcome = StoreUnavailable(f"neither the store nor the spool can write: {error}")
            return
        self.counters.spooled += invalid.count(None)
        self._set_state("spooling", self.counters.failure)
        for waiting, refused in zip(left, invalid, strict=True):
            waiting.outcome = refused or [_spooled(draft) for draft in waiting.job.drafts]

    def _recover(self) -> None:
        """Try the store again: drain the spool in order, once; else see whether the spool at least works."""
        self._next_try = time.monotonic() + _RETRY_S
        try:
            self._drain()
            for tenant in list(self._failing):
                self._log(tenant).probe()
                self._failing.discard(tenant)
        except (sqlite3.Error, OSError) as error:
            self._drop_logs()
            self._set_state("spooling", str(error))
            try:
                self._spool.probe()
            except OSError as spool_error:
                self._set_state("refusing", str(spool_error))
            return
        self._set_state("ok", "")

    def _drain(self) -> None:
        if self._spool.empty:
            return
        batch: list[Job] = []
        for job in self._spool.jobs():
            if batch and (job.tenant != batch[0].tenant or len(batch) >= _MAX_BATCH):
                self._drain_batch(batch)
                batch = []
            batch.append(job)
        if batch:
            self._drain_batch(batch)
        self._spool.clear()
        self.counters.spool_bytes = 0

    def _drain_batch(self, batch: list[Job]) -> None:
        log = self._log(batch[0].tenant)
        rejected: list[Job] = []
        with log.transaction():
            for job in batch:
                try:
                    with log.savepoint():
                        log.place(job.drafts)
                except InvalidDraft:
                    # whoever sent it would have been refused; the rest of the spool must not wait for it
                    _log.exception("a spooled job can't be placed and is put aside")
                    rejected.append(job)
        for job in rejected:
            self._spool.reject(job)

    def _log(self, tenant: str) -> TenantLog:
        log = self._logs.get(tenant)
        if log is None:
            log = self._logs[tenant] = TenantLog(self._root, tenant)
        return log

    def _failed(self, tenant: str, error: Exception) -> None:
        """A connection that failed is not used again: SQLite's state after an I/O error is unknown."""
        _log.error("the event store of %s can't write: %s", tenant, error)
        self._failing.add(tenant)
        self._drop_logs(tenant)
        self._set_state("spooling" if self.state == "ok" else self.state, str(error))
        self._next_try = time.monotonic() + _RETRY_S

    def _drop_logs(self, tenant: str | None = None) -> None:
        for name in [tenant] if tenant else list(self._logs):
            log = self._logs.pop(name, None)
            if log is not None:
                log.close()

    def _set_state(self, state: State, failure: str) -> None:
        if state != self.counters.state:
            _log.warning("event store: %s -> %s %s", self.counters.state, state, failure)
        self.counters.state = state
        self.counters.failure = failure
        self.counters.spool_bytes = self._spool.size


def _spooled(draft: StoreDraft) -> Stored:
    annotation = getattr(draft, "annotation", None)
    id = annotation.id if annotation is not None else getattr(draft, "id", None)
    trajectory = getattr(draft, "trajectory_id", None)
    return Stored(id or trajectory or "", trajectory, bound=annotation is None, spooled=True)


def _tell(batch: list[_Waiting]) -> None:
    """Set every future's result on its own loop, with one wake-up a loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[_Waiting]] = {}
    for waiting in batch:
        by_loop.setdefault(waiting.loop, []).append(waiting)
    for loop, group in by_loop.items():
        if not loop.is_closed():
            loop.call_soon_threadsafe(_resolve, group)


def _deliver(future: asyncio.Future[dict[str, list[str]]], value: dict[str, list[str]]) -> None:
    if not future.done():
        future.set_result(value)


def _resolve(group: list[_Waiting]) -> None:
    for waiting in group:
        if waiting.future.done():
            continue
        if isinstance(waiting.outcome, list):
            waiting.future.set_result(waiting.outcome)
        else:
            waiting.future.set_exception(waiting.outcome or StoreUnavailable("the event store's writer failed"))
