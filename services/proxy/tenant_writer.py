"""One tenant's way to the disk: its log, and behind it its spool.

While the log can't be written, or the spool holds anything, new drafts queue in the spool, so that order
is kept. Tenants don't wait for each other's trouble.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from services.proxy import faults
from services.proxy.drafts import InvalidDraft, Stored, StoreDraft, StoreUnavailable
from services.proxy.engines.base import StorageFailed
from services.proxy.log import TenantLog
from services.proxy.spool import Job, Spool

_log = logging.getLogger(__name__)

State = Literal["ok", "spooling", "refusing"]

Result = list[Stored] | Exception
"""What a caller of the store is told."""

_RETRY_S = 0.5
"""How often a log that failed is tried again."""
_DRAINED_JOBS = 512
_DRAINED_BYTES = 16 * 2**20
"""What is drained in one transaction, at most."""
_STEPS = 4
"""Drained transactions before the writer looks at its queue again: more than come in, so draining ends."""


@dataclass
class StoreCounters:
    """For the metrics page."""

    jobs: int = 0
    commits: int = 0
    commit_seconds: float = 0.0
    journaled: int = 0
    """Jobs that were safe in the journal before they had their places."""
    spooled: int = 0
    refused: int = 0
    state: State = "ok"
    spool_bytes: int = 0
    restarts: int = 0
    """Of the process that writes."""
    failure: str = field(default="")


class TenantWriter:
    """Used by one thread."""

    def __init__(
        self,
        tenant: str,
        opening: Callable[[], TenantLog],
        spool: Callable[[], Spool],
        counters: StoreCounters,
        reconciled: Callable[[list[StoreDraft]], list[StoreDraft]],
    ) -> None:
        """`reconciled` gives drafts that were spooled as they may be stored now."""
        self.tenant = tenant
        self._opening = opening
        self._spool = spool
        self._counters = counters
        self._reconciled = reconciled
        self._opened: TenantLog | None = None
        self._again = False
        """Was it open before? What is there the next time may be another one."""
        self._failing = False
        self._next_try = 0.0
        self.state: State = "ok"
        self.failure = ""
        self.unsynced = False
        """Is something in the log that may not be on the disk?"""
        self._owed: deque[tuple[Job, Callable[[Result], None]]] = deque()
        """What somebody was told is safe and nothing takes now, and who is to know what becomes of it."""

    @property
    def behind(self) -> bool:
        """Must new drafts queue in the spool?"""
        return self.state != "ok"

    @property
    def owes(self) -> bool:
        """Is there something in the journal that has no place yet?"""
        return bool(self._owed)

    def wait_s(self) -> float:
        """How long until `recover` is worth calling."""
        return max(0.0, self._next_try - time.monotonic()) if self._failing else 0.0

    def queue_behind(self) -> None:
        """The spool holds something already."""
        self._set_state("spooling")

    def write(self, jobs: Sequence[Job], journaled: bool = False) -> list[Result]:
        """Commit, else spool, else refuse; gives what to tell whoever sent each job.

        What is `journaled` need not be on the disk here before `sync`.
        """
        results: list[Result] = []
        if not self.behind:
            try:
                while len(results) < len(jobs):
                    results += self._commit([job.drafts for job in jobs[len(results) :]], sync=not journaled)
                return results
            except (StorageFailed, OSError) as error:
                self._failed(error)
        return results + self._keep_apart(jobs[len(results) :])

    def write_journaled(self, job: Job, told: Callable[[Result], None]) -> None:
        """Place what is in the journal; `told` is called with what became of it: now, or once something takes it.

        What can never be placed is put aside.
        """
        try:
            result = self.write_again(job)
        except OSError as error:
            result = StoreUnavailable(f"a job can't be placed, and not be put aside: {error}")
        if isinstance(result, StoreUnavailable):
            self._owed.append((job, told))
            self.failure = str(result)
            self._next_try = time.monotonic() + _RETRY_S
            self._failing = True
            self._set_state("refusing")
        else:
            told(result)

    def write_again(self, job: Job) -> Result:
        """`write` what is in a journal: it is on the disk when `sync` says so.

        Raises `OSError` when it has no place and could not be put aside.
        """
        (result,) = self.write([job], journaled=True)
        if isinstance(result, InvalidDraft):
            self.put_aside(job, result)
        return result

    def put_aside(self, job: Job, why: Exception) -> None:
        """Keep what somebody was told is safe, and the log won't take. Raises `OSError`."""
        _log.error("a job of %s can't be placed and is put aside: %s", self.tenant, why)
        self._spool().reject(job)

    def recover(self, entirely: bool = False) -> None:
        """Try the log again if it failed, and drain some of the spool (or all of it), in order, once."""
        if self.wait_s() > 0 and not entirely:
            return
        try:
            if self._failing:
                self.log().probe()
                self._failing = False
            self._place_owed()  # before what is in the spool: that goes on from it
            spool = self._spool()
            steps = 0
            while not spool.empty and (entirely or steps < _STEPS):
                self.drain(spool)
                steps += 1
            if spool.empty:
                self.failure = ""
                self._set_state("ok")
        except (StorageFailed, OSError) as error:
            self._failed(error)
            self._probe_spool()

    def drain(self, spool: Spool) -> None:
        """Put the oldest jobs of a spool into the log; what the log won't take is put aside."""
        batch = spool.read(_DRAINED_JOBS, _DRAINED_BYTES)
        if batch is None:
            return
        waiting = [self._reconciled(job.drafts) for job in batch.jobs]
        done = 0
        while done < len(batch.jobs):
            faults.reach("before_drained_commit")
            outcomes = self.log().write_told(waiting[done:])
            faults.reach("after_drained_commit")
            for job, outcome in zip(batch.jobs[done:], outcomes, strict=False):
                if isinstance(outcome, InvalidDraft):
                    # whoever sent it would have been refused; the rest of the spool must not wait for it
                    _log.error("a spooled job of %s can't be placed and is put aside: %s", self.tenant, outcome)
                    spool.reject(job)
            done += len(outcomes)
        spool.drained(batch)

    def sync(self) -> bool:
        """Have on the disk what is in the log; is it?"""
        try:
            self.log().sync()
        except (StorageFailed, OSError) as error:
            self._failed(error)
            return False
        self.unsynced = False
        return True

    def _place_owed(self) -> None:
        while self._owed:
            job, told = self._owed[0]
            (outcome,) = self.log().write([job.drafts])
            if isinstance(outcome, InvalidDraft):
                self.put_aside(job, outcome)
            self._owed.popleft()
            told(outcome)

    def close_idle(self, before: str) -> list[str]:
        """Close what has had no record since `before`, if that can be done now."""
        try:
            return self.log().close_idle(before)
        except (StorageFailed, OSError) as error:
            self._failed(error)
            return []

    def log(self) -> TenantLog:
        """The open log; opened anew when it was taken away, or nobody would ever read what is written there.

        Raises `StorageFailed`.
        """
        if self._opened is not None and not self._opened.in_place():
            _log.error("the event log of %s was taken away or replaced: what is there now is opened", self.tenant)
            self.close()
        if self._opened is None:
            self._opened = self._opening()
            if self._again:
                self._opened.doubt()
            self._again = True
        return self._opened

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()
        self._opened = None

    def _commit(self, jobs: Sequence[Sequence[StoreDraft]], sync: bool) -> list[Result]:
        started = time.monotonic()
        log = self.log()
        results: list[Result] = [*log.write(jobs, sync)]
        # never the other way round: a commit with nothing to write forces nothing to the disk
        self.unsynced = self.unsynced or not sync
        self._counters.commits += 1
        self._counters.commit_seconds += time.monotonic() - started
        return results

    def _keep_apart(self, jobs: Sequence[Job]) -> list[Result]:
        try:
            invalid = self._spool().append(jobs)
        except OSError as error:
            self._counters.refused += len(jobs)
            self.failure = str(error)
            self._set_state("refusing")
            return [StoreUnavailable(f"neither the log nor the spool can be written: {error}") for _ in jobs]
        self._counters.spooled += invalid.count(None)
        self._set_state("spooling")
        return [
            refused or [_spooled(draft) for draft in job.drafts] for job, refused in zip(jobs, invalid, strict=True)
        ]

    def _failed(self, error: Exception) -> None:
        """A connection that failed is not used again: its state after an I/O error is unknown."""
        _log.error("the event log of %s can't be written: %s", self.tenant, error)
        self.close()
        self._failing = True
        self._next_try = time.monotonic() + _RETRY_S
        self.failure = str(error)
        if self.state == "ok":
            self._set_state("spooling")

    def _probe_spool(self) -> None:
        try:
            self._spool().probe()
        except OSError as error:
            self.failure = str(error)
            self._set_state("refusing")
        else:
            self._set_state("spooling")

    def _set_state(self, state: State) -> None:
        if state != self.state:
            _log.warning("event log of %s: %s -> %s %s", self.tenant, self.state, state, self.failure)
        self.state = state


def _spooled(draft: StoreDraft) -> Stored:
    annotation = getattr(draft, "annotation", None)
    id = annotation.id if annotation is not None else getattr(draft, "id", None)
    trajectory = getattr(draft, "trajectory_id", None)
    return Stored(id or trajectory or "", trajectory, bound=annotation is None, spooled=True)
