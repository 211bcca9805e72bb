"""The event store as the gateway uses it: what `EventStore` promises, redacted and written by a process of its own.

Jobs are sent as they come and answered a commit at a time. A writer that dies is started again and gets what it
had not answered once more, in order: whatever it had committed is idempotent by id. So does one that hangs.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import count
from typing import Any

from evoplane.settings import Settings
from services.proxy import writer_frames as frames
from services.proxy.drafts import Ahead, InvalidDraft, Stored, StoreDraft, StoreUnavailable, Submitted
from services.proxy.governor import Governance, Governor, trajectories_of
from services.proxy.protection import Found
from services.proxy.store import MAX_QUEUE
from services.proxy.telling import Teller, Waiting
from services.proxy.tenant_writer import Result, State, StoreCounters
from services.proxy.windows import Windows
from services.proxy.writer_link import WriterLink

_log = logging.getLogger(__name__)

_MAX_WAITING_BYTES = 256 * 2**20
"""Jobs that are not answered may be as large together, before no more are taken; a request may be of 16 MiB."""
_WINDOW_BYTES = 256 * 2**10
"""Of one tenant's jobs so much is sent at once: as much as a second's search at worst, and a commit's worth."""
_TRIES = 3
"""Writers that may die with a job before it is refused."""
_PAUSE_S = 0.5
"""Between two writers, unless the last one has worked for a while."""
_LONGEST_PAUSE_S = 5.0
_WORKED_S = 10.0
_SLOW_S = 15.0
"""With jobs that a writer has answered none of for so long, no more are taken: they would wait as long."""
_SILENT_S = 120.0
"""One that has been silent for so long is killed, and counts as one that died. No transaction takes as long."""
_OPENING_S = 300.0
"""What a new one may take to be ready; what it has drained of a spool by then stays drained."""
_LOOK_S = 5.0
"""How often that is looked at."""


class _Sent(Waiting):
    """A job on its way."""

    def __init__(
        self, future: asyncio.Future[list[Stored]], tenant: str, job: bytes, governance: Governance | None
    ) -> None:
        super().__init__(future)
        self.tenant = tenant
        self.job = job
        self.handed = False
        """Has the writer got it, and said nothing of it yet?"""
        self.governance = governance
        """In force when it was sent: so it is stored, whoever writes it in the end."""
        self.safe: Waiting | None = None
        """Whoever waits until it is on the disk, if anybody wants to know before it has its place."""
        self.tries = 0


class ProcessStore:
    """Appends drafts durably, for one event loop. `start` before use, `close` after."""

    def __init__(self, settings: Settings, governance: Callable[[], Governance] | None = None) -> None:
        """`governance` gives the policies and keys of this moment, under which drafts are redacted and sealed;
        without it they are stored as they are.
        """
        self._settings = settings
        self._governance = governance
        self._governed: Governance | None = None
        """What the writer was told of it."""
        self._apart = None if governance is None else Governor(governance)
        self._one_apart = asyncio.Lock()
        """A governor is for one thread."""
        self._numbers = count(1)
        self._sent: dict[int, _Sent] = {}
        """Jobs that are not answered, in the order in which they came."""
        self._owed: dict[int, _Sent] = {}
        """Jobs whose senders know them to be safe, and that nothing takes for now."""
        self._waiting_bytes = 0
        self._windows = Windows(_WINDOW_BYTES)
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._loop: asyncio.AbstractEventLoop
        self._teller: Teller
        self._writer: WriterLink | None = None
        self._restarting: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._running = False
        self._waiting_since = 0.0
        """When the last job was answered, or the first one was sent that waits (`time.monotonic`)."""
        self._down = ""
        """Why there is no writer, when one could not be started."""
        self._in_trouble: dict[str, State] = {}
        self._refused = 0
        self._restarts = 0
        self._counters = StoreCounters()
        self.expecting: Callable[[], int] = int
        """How many exchanges are under way, whose drafts will come."""

    @property
    def counters(self) -> StoreCounters:
        """As the writer last told them, and what it can't know."""
        told = self._counters
        known = replace(told, refused=told.refused + self._refused, restarts=self._restarts)
        why = self._taking_nothing()
        return replace(known, state="refusing", failure=why) if why else known

    @property
    def state(self) -> State:
        """The worst of all tenants'."""
        return self.counters.state

    def state_of(self, tenant: str) -> State:
        """How a tenant's drafts are kept now; `refusing` when nothing could make them durable."""
        return "refusing" if self._taking_nothing() else self._in_trouble.get(tenant, "ok")

    async def start(self) -> None:
        """Start the writer: it opens the spool and takes what a crash left in it into the log.

        Raises `Misconfigured` when the database must not be used as it is, and `OSError` when there is no spool.
        """
        self._loop = asyncio.get_running_loop()
        self._teller = Teller(self._loop)
        self._writer = await self._launched(succeeds=False)
        self._running = True
        self._watching = asyncio.create_task(self._watch())

    async def close(self) -> None:
        """Write what has come, then stop."""
        if not self._running:
            return
        self._running = False
        for task in (self._watching, self._restarting):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        if self._writer is not None:
            for number in self._windows.open_wide():
                self._hand(self._writer, number, self._sent[number])
            await self._writer.stop()
        self._give_up("the event store was stopped")

    async def append(self, tenant: str, drafts: Iterable[StoreDraft]) -> list[Stored]:
        """Make the drafts durable and place them, as `EventStore.append` does."""
        return await self.submit(tenant, drafts)

    def submit(
        self, tenant: str, drafts: Iterable[StoreDraft], ahead: Ahead | None = None
    ) -> asyncio.Future[list[Stored]]:
        """Send drafts without waiting: they are stored in the order in which they were sent.

        `ahead` is what was prepared of them, if anything was; it does not matter whether it is still right.
        """
        self.require_room()
        try:
            return self._send(tenant, _job(tenant, list(drafts), ahead)).future
        except InvalidDraft as error:
            return self._invalid(error)

    def keep(self, tenant: str, drafts: Iterable[StoreDraft], ahead: Ahead | None = None) -> Submitted:
        """`submit` for who waits until the drafts are safe: that may be before they have their places.

        `placed` may then still raise `InvalidDraft`: what can't be placed is put aside.
        """
        self.require_room()
        try:
            sent = self._send(tenant, _job(tenant, list(drafts), ahead), early=True)
        except InvalidDraft as error:
            refused = self._invalid(error)
            return Submitted(refused, refused)
        assert sent.safe is not None
        return Submitted(sent.safe.future, sent.future)

    async def submit_large(self, tenant: str, drafts: Iterable[StoreDraft]) -> asyncio.Future[list[Stored]]:
        """`submit` for what takes long to be made ready: that is done on another thread, one at a time, and nobody
        else's records wait for it."""
        drafts = list(drafts)
        await self._all_handed(tenant)
        async with self._one_apart:
            found = await self._found(tenant, drafts)
            try:
                job = await asyncio.to_thread(self._made_ready, tenant, drafts, found)
            except InvalidDraft as error:
                return self._invalid(error)
        self.require_room()
        return self._send(tenant, job).future

    def _invalid(self, error: InvalidDraft) -> asyncio.Future[list[Stored]]:
        refused: asyncio.Future[list[Stored]] = self._loop.create_future()
        refused.set_exception(error)
        return refused

    async def _found(self, tenant: str, drafts: list[StoreDraft]) -> dict[str, Found]:
        """What the writer has found in the drafts' trajectories: it might be anything while that can't be told."""
        concerned = trajectories_of(drafts)
        try:
            async with asyncio.timeout(_SLOW_S):
                told: frames.Told = await self._ask(lambda number: frames.TellFound(number, tenant, concerned))
        except (StoreUnavailable, TimeoutError):
            return {id: Found(dirty=True) for id in concerned}
        return told.found

    def _made_ready(self, tenant: str, drafts: list[StoreDraft], found: dict[str, Found]) -> bytes:
        if self._apart is None:
            return frames.job(b"", frames.packed(frames.Part(tenant, drafts)))
        return frames.job(b"", frames.packed(frames.Part(tenant, *self._apart.protect_for(tenant, drafts, found))))

    @property
    def idle(self) -> bool:
        """Does the writer have the time to `prepare` something?"""
        return self._writer is not None and not self._sent

    def prepare(self, tenant: str, drafts: list[StoreDraft]) -> Ahead | None:
        """Make the first drafts of a job ready before the others are there: they are read and redacted meanwhile.

        Nothing is stored before the job is submitted. None when that can't be done.
        """
        if self._writer is None:
            return None
        try:
            ahead = Ahead(drafts, frames.packed(frames.Part(tenant, drafts)))
        except InvalidDraft:
            return None  # said where it is submitted
        self._govern(self._writer, self._in_force())
        self._writer.send(frames.ahead_frame(ahead.packed))
        return ahead

    def require_room(self) -> None:
        """Raises `StoreUnavailable` when drafts could not even be sent now."""
        if not self._running:
            raise StoreUnavailable("the event store is not running")
        if len(self._sent) >= MAX_QUEUE or self._waiting_bytes >= _MAX_WAITING_BYTES:
            self._refused += 1
            raise StoreUnavailable("the event store's queue is full: the disk is too slow")
        if why := self._taking_nothing():
            self._refused += 1
            raise StoreUnavailable(why)

    async def close_idle(self, tenants: Iterable[str], before: str) -> dict[str, list[str]]:
        """Close what has had no record since `before`; gives the closed trajectories' ids by tenant.

        Also takes over the spools that other processes left behind. Does nothing while there is no writer, and for
        tenants of whose work something is not sent yet.
        """
        quiet = [tenant for tenant in tenants if self._windows.last(tenant) is None]
        try:
            closed: frames.Closed = await self._ask(lambda number: frames.CloseIdle(number, quiet, before))
        except StoreUnavailable as error:
            _log.warning("idle trajectories can't be closed now: %s", error)
            return {}
        return closed.ids

    async def erase_key(self, tenant: str, trajectory_id: str) -> None:
        """Delete a trajectory's data key and what is sealed with it, for ever; the chain goes on verifying.

        Raises `StoreUnavailable` while the tenant's log can't be written or has drafts in the spool.
        """
        await self._all_handed(tenant)
        erased: frames.Erased = await self._ask(lambda number: frames.EraseKey(number, tenant, trajectory_id))
        if erased.failure:
            raise StoreUnavailable(erased.failure)

    def _send(self, tenant: str, job: bytes, early: bool = False) -> _Sent:
        if not self._sent:
            self._waiting_since = time.monotonic()
        number = next(self._numbers)
        sent = self._sent[number] = _Sent(self._loop.create_future(), tenant, job, self._in_force())
        if early:
            sent.safe = Waiting(self._loop.create_future())
            sent.future.add_done_callback(_heeded)  # whoever waits for both may hear of a failure only once
        self._waiting_bytes += len(job)
        if self._writer is not None:
            self._hand_in_turn(self._writer, number, sent)
        return sent

    def _hand_in_turn(self, writer: WriterLink, number: int, sent: _Sent) -> None:
        """Now, or when enough of what its tenant has sent is done."""
        if self._windows.enter(sent.tenant, number, len(sent.job)):
            self._hand(writer, number, sent)

    async def _all_handed(self, tenant: str) -> None:
        """Until the writer has got what the tenant has submitted so far: something is to come behind it."""
        last = self._windows.last(tenant)
        if last is not None:
            await asyncio.wait([self._sent[last].future])

    def _hand(self, writer: WriterLink, number: int, sent: _Sent) -> None:
        self._govern(writer, sent.governance)
        early = sent.safe is not None and not sent.safe.future.done()
        head = frames.JobHead(number, self.expecting(), early)
        writer.send(frames.job_frame(head, sent.job))
        sent.handed = True

    def _in_force(self) -> Governance | None:
        return None if self._governance is None else self._governance()

    def _govern(self, writer: WriterLink, governance: Governance | None) -> None:
        """Tell the writer under which policies and keys to store what follows, if it does not know."""
        if governance is None or governance is self._governed:
            return
        told, self._governed = self._governed, governance
        if told is None or told.policies != governance.policies or told.tenant_keys != governance.tenant_keys:
            writer.send(frames.frame(frames.Govern(governance.policies, governance.tenant_keys)))

    async def _ask(self, order: Callable[[int], frames.Order]) -> Any:
        if not self._running or self._writer is None:
            raise StoreUnavailable(self._down or "the event store is not running")
        number = next(self._numbers)
        answer = self._asked[number] = self._loop.create_future()
        self._govern(self._writer, self._in_force())
        self._writer.send(frames.frame(order(number)))
        return await answer

    # -- what the writer says

    def _heard(self, answer: frames.Answer) -> None:
        match answer:
            case frames.Safe():
                sent = self._sent.get(answer.number)
                if sent is not None and sent.safe is not None:
                    self._waiting_since = time.monotonic()
                    sent.safe.outcome = []
                    self._teller.take([sent.safe])
            case frames.Owes():
                sent = self._sent.pop(answer.number, None)
                if sent is not None:
                    self._owed[answer.number] = sent
                    self._leave(sent)
            case frames.Written():
                self._note(answer.health)
                self._waiting_since = time.monotonic()
                told: list[Waiting] = []
                for number, result in frames.results_of(answer):
                    waiting = self._taken(number)
                    if waiting is not None:
                        told += _both(waiting, result)
                self._teller.take(told)
            case frames.Health():
                self._note(answer)
            case frames.Closed() | frames.Erased() | frames.Told():
                asked = self._asked.pop(answer.number, None)
                if asked is not None and not asked.done():
                    asked.set_result(answer)
            case frames.Opened() | frames.NotOpened():
                raise ValueError("the writer is open already")

    def _lost(self, writer: WriterLink) -> None:
        """The writer is gone. Unless it was told to go, another one takes its place."""
        if writer is not self._writer:
            return
        self._writer = None
        for asked in self._asked.values():
            if not asked.done():
                asked.set_exception(StoreUnavailable("the event store's writer ended"))
        self._asked.clear()
        if self._running:
            self._restarting = self._loop.create_task(self._restart(time.monotonic() - writer.since))

    def _note(self, health: frames.Health) -> None:
        self._counters, self._in_trouble = health.counters, health.in_trouble

    def _taking_nothing(self) -> str:
        """Why nothing can be made durable for anybody now; empty when it can."""
        if not self._down and (silent_s := self._silent_s()) > _SLOW_S:
            return f"the event store's writer has answered nothing for {silent_s:.0f} s"
        return self._down

    def _silent_s(self) -> float:
        """How long jobs have waited without any being answered."""
        return time.monotonic() - self._waiting_since if self._sent else 0.0

    async def _watch(self) -> None:
        """A writer that hangs must not keep those who wait for it for ever."""
        while True:
            await asyncio.sleep(_LOOK_S)
            if self._writer is not None and self._silent_s() > _SILENT_S:
                _log.error("the event store's writer has answered nothing for %.0f s and is killed", self._silent_s())
                self._writer.kill()

    async def _restart(self, worked_s: float) -> None:
        """Until there is a writer again; what its predecessor has not answered is sent to it."""
        _log.error("the event store's writer ended; another one is started")
        # what is safe is in the journal, too, but its sender waits to hear of its place
        self._sent, self._owed = self._owed | self._sent, {}
        self._windows.clear()
        for number, waiting in list(self._sent.items()):
            waiting.tries += waiting.handed
            waiting.handed = False
            if waiting.tries >= _TRIES:
                self._taken(number)
                self._refuse([waiting], f"the event store's writer ended {_TRIES} times over it")
        pause_s = 0.0 if worked_s > _WORKED_S else _PAUSE_S
        while True:
            await asyncio.sleep(pause_s)
            try:
                async with asyncio.timeout(_OPENING_S):
                    writer = await self._launched(succeeds=True)
            except Exception as error:  # whatever it is, nothing would be answered if nobody tried again
                self._down = f"the event store's writer does not start: {error or type(error).__name__}"
                _log.error("%s", self._down)
                self._give_up(self._down)
                pause_s = min(max(_PAUSE_S, 2 * pause_s), _LONGEST_PAUSE_S)
                continue
            self._down, self._writer, self._waiting_since = "", writer, time.monotonic()
            self._restarts += 1
            for number, waiting in self._sent.items():
                self._hand_in_turn(writer, number, waiting)
            return

    async def _launched(self, succeeds: bool) -> WriterLink:
        governance = self._in_force()
        governed = None if governance is None else frames.Govern(governance.policies, governance.tenant_keys)
        first = frames.Open(_what_to_write(self._settings), governed, succeeds)
        writer, health = await WriterLink.started(first, self._heard, self._lost)
        self._governed = governance
        self._note(health)
        return writer

    def _give_up(self, why: str) -> None:
        """Nobody will answer what is not answered."""
        left = [*self._owed.values(), *self._sent.values()]
        self._owed.clear()
        self._sent.clear()
        self._windows.clear()
        self._waiting_bytes = 0
        self._refuse(left, why)

    def _taken(self, number: int) -> _Sent | None:
        """A job that waits no more; None for one that does not wait."""
        sent = self._sent.pop(number, None) or self._owed.pop(number, None)
        if sent is not None:
            self._waiting_bytes -= len(sent.job)
            self._leave(sent)
        return sent

    def _leave(self, sent: _Sent) -> None:
        """The writer is done with it: its tenant's next is sent."""
        if not sent.handed:
            return
        sent.handed = False
        for number in self._windows.leave(sent.tenant, len(sent.job)):
            if self._writer is not None:
                self._hand(self._writer, number, self._sent[number])

    def _refuse(self, jobs: list[_Sent], why: str) -> None:
        self._refused += len(jobs)
        self._teller.take([told for waiting in jobs for told in _both(waiting, StoreUnavailable(why))])


def _job(tenant: str, drafts: list[StoreDraft], ahead: Ahead | None) -> bytes:
    """As it travels. Raises `InvalidDraft`."""
    first = b""
    if ahead is not None and ahead.begins(drafts):
        drafts, first = drafts[len(ahead.drafts) :], ahead.packed
    return frames.job(first, frames.packed(frames.Part(tenant, drafts)))


def _heeded(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()


def _both(sent: _Sent, result: Result) -> list[Waiting]:
    """Those who wait for a job, with what became of it: that it is safe, where nobody has said so before, and where."""
    sent.outcome = result
    if sent.safe is None or sent.safe.future.done():
        return [sent]
    sent.safe.outcome = result
    return [sent, sent.safe]


def _what_to_write(settings: Settings) -> dict[str, Any]:
    store = settings.store.model_dump(mode="json")
    for name in ("dsn", "owner_dsn"):
        secret = getattr(settings.store, name)
        store[name] = None if secret is None else secret.get_secret_value()
    return {"paths": settings.paths.model_dump(mode="json"), "store": store}
