"""Harvesting beside the traffic: one task, a bounded queue, nothing a request waits for.

Each trajectory's last events are kept, so that a reply can be read together with the answer it is
about. What the queue had no room for is found at the close, when the whole trajectory is read from the
store: candidates have ids of their own, and finding one twice is harmless.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial

from atdp.records import AnnotationDraft, EventDraft
from services.proxy.drafts import InvalidDraft, Stored
from services.proxy.harvest import at_close, event_of, harvest, worth_reading
from services.proxy.harvest.recent import RecentEvents
from services.proxy.store import StoreReader, StoreUnavailable

_log = logging.getLogger(__name__)

_QUEUE = 2000
"""Exchanges and closings waiting; beyond it they are left to the close, or counted as missed."""
_GATHER_S = 0.05
"""How long work gathers: a batch costs one hand-over to a thread, and is read away from the traffic's peaks."""
_BATCH = 64
_LONGEST = 2000
"""Records of a trajectory that is read again at its close."""

_Job = tuple[str, Sequence[EventDraft]] | tuple[str, str, str]
"""(tenant, new events) or (tenant, closed trajectory, reason)."""

_Reading = tuple[str, Callable[[], list[AnnotationDraft]]]
"""(tenant, what finds the candidates)."""

Append = Callable[[str, Sequence[AnnotationDraft]], Awaitable[list[Stored]]]
"""Makes drafts of a tenant durable."""


class Harvester:
    """Owns its task from `start` to `close`."""

    def __init__(self, append: Append, reader: Callable[[], StoreReader], *, enabled: bool = True) -> None:
        self._append = append
        self._reader = reader
        self._enabled = enabled
        self._queue: asyncio.Queue[_Job | None] = asyncio.Queue(_QUEUE)
        self._recent = RecentEvents()
        self._task: asyncio.Task[None] | None = None
        self.found = 0
        self.missed = 0
        """Closings that found no room in the queue."""

    def start(self) -> None:
        if self._enabled:
            self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Finish what is queued."""
        if self._task is not None:
            await self._queue.put(None)
            await self._task
            self._task = None

    def offer(self, tenant: str, events: Sequence[EventDraft]) -> None:
        """These events of one trajectory are stored. Never waits; without room they are left to the close."""
        if self._task is not None and events:
            with contextlib.suppress(asyncio.QueueFull):
                self._queue.put_nowait((tenant, events))

    def closed(self, tenant: str, trajectories: Iterable[str], reason: str) -> None:
        """These trajectories have ended (`outcome`, `ended`, `idle`)."""
        for id in trajectories if self._task is not None else ():
            try:
                self._queue.put_nowait((tenant, id, reason))
            except asyncio.QueueFull:
                self.missed += 1

    async def _run(self) -> None:
        stopping = False
        while not stopping:
            jobs = [await self._queue.get()]
            if jobs[0] is not None and self._queue.empty():
                await asyncio.sleep(_GATHER_S)
            while len(jobs) < _BATCH and not self._queue.empty():
                jobs.append(self._queue.get_nowait())
            stopping = None in jobs
            # what was offered behind the end was offered too late to be waited for
            work = [self._reading(job) for job in jobs if job is not None]
            if any(work):
                await self._read([each for each in work if each is not None])
            del jobs, work  # the next may be long in coming, and these hold all that was said

    def _reading(self, job: _Job) -> _Reading | None:
        """What is to be read for a job, on another thread; None when there can't be anything in it."""
        if len(job) == 3:
            tenant, id, reason = job
            self._recent.forget(id)
            return tenant, partial(self._read_again, tenant, id, reason)
        tenant, events = job
        recent = self._recent.of(events[0].trajectory_id)
        read = partial(harvest, recent, events) if worth_reading(recent, events) else None
        self._recent.add(events[0].trajectory_id, events)
        return None if read is None else (tenant, read)

    async def _read(self, work: Sequence[_Reading]) -> None:
        found = await asyncio.to_thread(_all_of, work)
        kept = await asyncio.gather(*(self._keep(*each) for each in found), return_exceptions=True)
        for error in kept:
            if error is not None:
                _log.error("what was harvested is not kept", exc_info=error)

    async def _keep(self, tenant: str, found: list[AnnotationDraft]) -> None:
        try:
            await self._append(tenant, found)
            self.found += len(found)
        except (StoreUnavailable, InvalidDraft) as error:
            _log.warning("%d candidate signals are not stored: %s", len(found), error)

    def _read_again(self, tenant: str, id: str, reason: str) -> list[AnnotationDraft]:
        """Everything that the whole trajectory shows."""
        reader = self._reader()
        try:
            records = reader.records(tenant, id)[:_LONGEST]
            # requests stay in their short form: what they repeat is in the events before them
            events = [event_of(reader.resolve(tenant, _short(r))) for r in records if r["record"] == "event"]
        finally:
            reader.close()
        return [*harvest([], events), *at_close(events, reason)]


def _short(record: dict[str, object]) -> dict[str, object]:
    """The event without the request that a model call continues."""
    observed = record.get("o")
    prefixed = isinstance(observed, dict) and isinstance(observed.get("messages"), dict)
    return {key: value for key, value in record.items() if not (prefixed and key == "o") and key != "tokens"}


def _all_of(work: Sequence[_Reading]) -> list[tuple[str, list[AnnotationDraft]]]:
    found: list[tuple[str, list[AnnotationDraft]]] = []
    for tenant, read in work:
        try:
            found.append((tenant, read()))
        except Exception:
            # a fault in reading what people said must not end the reading
            _log.exception("harvesting failed")
    return [(tenant, candidates) for tenant, candidates in found if candidates]
