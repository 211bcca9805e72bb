"""What all handlers share: configuration, the control picture, sessions, the store, the upstream."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Collection, Coroutine
from functools import partial
from typing import Any, TypeVar

from atdp import clock
from atdp.records import EventDraft
from evoplane.settings import Settings
from registry import tenant_policy
from registry.tenants import Key, key_digest
from services.gateway.asgi import Request
from services.gateway.errors import ApiError, forbidden, not_recording, over_budget, unauthorized, unknown_model
from services.gateway.harvester import Harvester
from services.gateway.metrics import Metrics
from services.gateway.mirror import ask_shadow
from services.gateway.peers import Peers
from services.gateway.rl_keys import RlKeys
from services.gateway.unconfirmed import Unconfirmed
from services.gateway.upstream import Upstreams, is_pattern
from services.proxy.budgets import Budgets, Refused, Reservation, estimate, used
from services.proxy.capture import Exchange
from services.proxy.completion import Completion
from services.proxy.contexts import ContextBook
from services.proxy.drafts import Ahead, InvalidDraft, Stored, StoreDraft
from services.proxy.ending import Ending
from services.proxy.engines.base import StorageFailed
from services.proxy.governor import Governor
from services.proxy.known_ids import KnownIds
from services.proxy.mcp_memory import McpMemory
from services.proxy.process_store import ProcessStore
from services.proxy.recent import RecentSteps
from services.proxy.redaction.failure import described
from services.proxy.restore import restore
from services.proxy.retention import retain
from services.proxy.sessions import Session, Sessions
from services.proxy.store import EventStore, StoreUnavailable, open_reader, open_store
from services.proxy.trace_memory import TraceMemory
from services.router.assignment import Router
from services.router.shadow import ShadowMirror
from services.router.watcher import ControlWatcher

_log = logging.getLogger(__name__)

_SWEEP_S = 15.0
"""How often idle trajectories are closed."""
_GATHER_S = 0.003
"""How long answered exchanges gather before they are recorded (when capture is async): less than a commit takes."""
_PLACING_S = 2.0
"""A stop waits so long for what is safe to have its place; the next start places the rest."""
_PATIENCE_S = 1.0
_PATIENCE_DURABLE_S = 15.0
"""How long a request waits for what was answered before it and has no place yet (`Gateway.caught_up`)."""
_RETAIN_S = 3600.0
"""How often retention is enforced."""


T = TypeVar("T")


class Gateway:
    """One running gateway: gateway, router and data proxy in one process."""

    def __init__(self, settings: Settings, *, token_capture: bool = True) -> None:
        self.settings = settings
        self.token_capture = token_capture
        """Is the upstream our worker, which gives token ids when asked?"""
        self.control = ControlWatcher(settings.control_db, settings.model.name, settings.keys_dir)
        self.reader = open_reader(settings)
        self.names = Governor(lambda: self.control.picture)
        """For what has to be named here as it is stored; what is stored goes through the store's own."""
        self.budgets = Budgets(lambda: self.control.picture.policies)
        self._counted = settings.var / f"budgets-{settings.gateway.port}.json"
        """Where today's use is written down every few seconds, for the next start."""
        self.router = Router(self.control)
        self.sessions = Sessions(self.names.name)
        self.contexts = ContextBook()
        self.store = self._make_store()
        self.store.expecting = lambda: self.metrics.in_flight
        self.upstreams = Upstreams(settings)
        self.harvester = Harvester(self.store.append, partial(open_reader, settings), enabled=settings.harvest.enabled)
        self.peers = Peers(settings.gateway.upstream_timeout_s)
        self.mcp = McpMemory()
        self.rl = RlKeys(settings.control_db)
        self.recent = RecentSteps()
        self.traces = TraceMemory()
        self.known = KnownIds()
        self.metrics = Metrics()
        self.unconfirmed = Unconfirmed()
        self.shadow = ShadowMirror(self.router, partial(ask_shadow, self))
        self.background: set[asyncio.Future[Any]] = set()
        """What must end before the gateway does: tasks, and records on their way to the disk."""
        self._placing: set[asyncio.Future[Any]] = set()
        """Records that are safe and have no place yet: a stop does not wait long for these."""
        self._answered: list[tuple[Exchange, Ending]] = []
        """What waits to be recorded."""
        self._sweeper: asyncio.Task[None] | None = None
        self._next_retention = time.monotonic() + _SWEEP_S

    async def start(self) -> None:
        await self.control.start()
        await asyncio.to_thread(self.rl.start)
        await self.store.start()
        await self.upstreams.start()
        await self._restore()
        self.budgets.restore(self._counted)
        self.shadow.start()
        self.harvester.start()
        self._sweeper = asyncio.create_task(self._sweep())

    async def close(self) -> None:
        """Let background work end, then write what is queued."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._sweeper
        self._save_budgets()
        await self.shadow.close()
        await asyncio.gather(*self.background, return_exceptions=True)
        if self._placing:
            await asyncio.wait(self._placing, timeout=_PLACING_S)
        await self.harvester.close()
        await self.upstreams.close()
        await self.peers.close()
        await self.store.close()
        self.reader.close()
        await self.control.close()

    @property
    def durable(self) -> bool:
        """Is every answer held back until its record is on the disk?"""
        return self.settings.gateway.capture == "durable"

    def authenticate(self, request: Request, scope: str) -> Key:
        """The key of a request; raises 401 or 403. A session's own key decides which session is meant."""
        secret = request.secret()
        key = self.control.picture.keys.get(key_digest(secret)) if secret else None
        if key is None and (speaker := self.rl.speaker(secret, self.control.picture.keys)) is not None:
            key, session_id = speaker
            request.bind(session_id)
        if key is None:
            raise unauthorized()
        if scope not in key.scopes:
            raise forbidden(scope)
        return key

    def train_policy(self, tenant: str) -> str:
        known = self.control.picture.tenants.get(tenant)
        return known.train if known is not None else "pending"

    def models(self, key: Key) -> list[str]:
        """The names this key may ask for; all mean its agent's served version."""
        agent = self.control.picture.agents.get(key.agent)
        asked = agent.model if agent is not None else self.settings.model.name
        return list(dict.fromkeys([asked, key.agent, self.settings.model.name]))

    def unknown_model(self, key: Key, model: str) -> ApiError:
        """What this key is told that asked for another model."""
        names = self.upstreams.names(key.tenant)
        return unknown_model(model, self.listed(key), [name for name in names if is_pattern(name)])

    def listed(self, key: Key) -> list[str]:
        """`models`, and those of providers that are named one by one; what a pattern stands for, only they know."""
        named = [name for name in self.upstreams.names(key.tenant) if not is_pattern(name)]
        return list(dict.fromkeys([*self.models(key), *named]))

    def hash_key(self, tenant: str) -> bytes:
        """The key of a tenant's conversation fingerprints."""
        return self.control.picture.tenant_keys[tenant].links

    def require_recording(self, tenant: str) -> None:
        """Raises 503 while an answer to this tenant could not be made durable; others' trouble is not its own."""
        if self.store.state_of(tenant) == "refusing":
            raise not_recording()

    async def record(self, exchange: Exchange, ending: Ending) -> Callable[[], None]:
        """Make an exchange durable (or queue it, when capture is async); raises `StoreUnavailable`.

        Gives what must be called when its answer is out, and before anything else of its session is begun: that the
        session goes on from here is nothing the client should wait for.
        """
        tenant = exchange.session.key.tenant
        policy = self.control.picture.policies.get(tenant, tenant_policy.DEFAULT)
        self.known.note(tenant, exchange.kept(ending))
        exchange.failed = ending.status != "ok"
        if exchange.large:
            stored = await self._durable(await self._submit_large(exchange, ending), exchange)
            return partial(self._go_on, exchange, ending, stored)
        if policy.on_failure == "block":
            # an exchange that can't be redacted must not be answered: that has to be known first
            stored = await self._durable(self._submit(exchange, ending, self.store.submit), exchange)
            return partial(self._go_on, exchange, ending, stored)
        if self.durable:
            submitted = self._submit(exchange, ending, self.store.keep)
            await self._durable(submitted.safe, exchange)
            return partial(self._go_on_from, exchange, ending, submitted.placed)
        self.store.require_room()
        self._answered.append((exchange, ending))
        self.unconfirmed.note(exchange)
        if len(self._answered) == 1:
            self.spawn(self._record_soon())
        return _nothing

    def prepare(self, exchange: Exchange) -> None:
        """The upstream has the request: what of its record can be made ready before the answer is, elsewhere, if
        somebody will wait for that record."""
        if self.durable and not exchange.large and self.store.idle:
            exchange.ahead = self.store.prepare(exchange.session.key.tenant, exchange.asked(self.contexts))

    def record_later(self, exchange: Exchange, ending: Ending) -> None:
        """Queue an exchange without waiting until it is durable; raises `StoreUnavailable`."""
        try:
            stored = self._submit(exchange, ending, self.store.submit)
        except BaseException:
            self.unconfirmed.end(exchange)
            raise
        self._confirm(exchange, ending, stored, self.background)

    async def confirmed(self, key: Key, session_ids: Collection[str] | None = None) -> None:
        """Until what was answered so far to the key's agent, or in these sessions of it, is in the log or lost."""
        among = None if session_ids is None else [self.sessions.by_id(key, id) for id in session_ids]
        await self.caught_up(key, lambda exchange: among is None or exchange.session in among)

    async def caught_up(self, key: Key, matters: Callable[[Exchange], bool] = lambda _: True) -> None:
        """Until what was answered so far to the key's agent, as far as it matters, is in the log or lost.

        With asynchronous capture a store that takes long has other trouble, and the request goes on as if nothing had
        been said before. A durable answer's client has been told that it is kept: raises 503 rather than forget it.
        """
        if self.unconfirmed.any(key):
            patience_s = _PATIENCE_DURABLE_S if self.durable else _PATIENCE_S
            if not await self.unconfirmed.wait(key, matters, patience_s) and self.durable:
                raise not_recording()

    def reserve(self, key: Key, request: Any, size: int) -> Reservation:
        """Set aside what a request of `size` bytes may use; raises 429 when its tenant or key is over a budget."""
        held = self.budgets.reserve(key.tenant, key.id, estimate(request, size))
        if isinstance(held, Refused):
            raise over_budget(held.limit, held.of, held.retry_after_s)
        return held

    def settle(self, exchange: Exchange) -> None:
        """Count what an exchange used, as far as anybody counted."""
        if exchange.held is None:
            return
        call: EventDraft | None = getattr(exchange, "call", None)
        tokens, cost = used(call) if call is not None else (None, None)
        self.budgets.settle(exchange.held, tokens, cost)

    def forget_log(self, session: Session) -> None:
        """The store refused what continues this session: point at nothing that was said before."""
        self.sessions.forget_log(session)
        self.contexts.forget(session.key.tenant)

    def spawn(self, work: Coroutine[None, None, None]) -> None:
        """Run a coroutine in the background; kept until it ends."""
        task = asyncio.create_task(work)
        self.background.add(task)
        task.add_done_callback(self.background.discard)

    def _make_store(self) -> EventStore | ProcessStore:
        """The event store, with what it needs to redact and to seal."""
        if self.settings.store.writer == "process":
            return ProcessStore(self.settings, lambda: self.control.picture)
        return open_store(self.settings, Governor(lambda: self.control.picture, self.reader.trajectory_key))

    def _submit(
        self, exchange: Exchange, ending: Ending, submit: Callable[[str, list[StoreDraft], Ahead | None], T]
    ) -> T:
        self._count(exchange, ending)
        try:
            drafts = self._drafts(exchange, ending)
            self.settle(exchange)
            return submit(exchange.session.key.tenant, drafts, exchange.ahead)
        except StoreUnavailable:
            _log.error("event %s is not recorded: the store takes nothing", exchange.event_id)
            raise

    def _drafts(self, exchange: Exchange, ending: Ending) -> list[StoreDraft]:
        """What the store needs to know: that there was an exchange at least, whatever an upstream has said in it."""
        try:
            return exchange.drafts(ending, self.contexts)
        except Exception as error:
            _log.error("event %s is recorded without its answer: %s", exchange.event_id, described(error))
            ending.status, ending.completion, ending.ext["unread"] = "unknown", Completion(), True
            return exchange.drafts(ending, self.contexts)

    def _count(self, exchange: Exchange, ending: Ending) -> None:
        version = exchange.version
        self.metrics.called(version.agent, version.version, exchange.role, ending.status, ending.completion.usage)

    async def _submit_large(self, exchange: Exchange, ending: Ending) -> asyncio.Future[list[Stored]]:
        self.store.require_room()
        self._count(exchange, ending)
        drafts = self._drafts(exchange, ending)
        self.settle(exchange)
        return await self.store.submit_large(exchange.session.key.tenant, drafts)

    async def _durable(self, future: asyncio.Future[T], exchange: Exchange) -> T:
        """Wait until the exchange is on the disk."""
        try:
            return await future
        except InvalidDraft as error:
            self._taken_away(exchange)
            raise StoreUnavailable(str(error)) from error

    def _taken_away(self, exchange: Exchange) -> None:
        """The log was taken away under a running gateway: begin the trajectory again next time."""
        self.forget_log(exchange.session)

    def _go_on(self, exchange: Exchange, ending: Ending, stored: list[Stored]) -> None:
        """Only what is durable may be pointed at: the session goes on from the exchange now that it is.

        It is answered, and stored: nothing that goes wrong here is anybody else's. Raises nothing.
        """
        try:
            exchange.stored(ending, stored, self.sessions, self.contexts)
            session, events = exchange.session, [*exchange.inputs, exchange.call]
            self.recent.note(session.key, session.session_id, events)
            self.harvester.offer(session.key.tenant, events)
        except Exception as error:
            _log.error("nothing goes on from event %s: %s", exchange.event_id, described(error))

    def _go_on_from(self, exchange: Exchange, ending: Ending, placed: asyncio.Future[list[Stored]]) -> None:
        """What was safe before it had its place: the session goes on from there, too."""
        if placed.done() and placed.exception() is None:
            self._go_on(exchange, ending, placed.result())
        else:
            self._confirm(exchange, ending, placed, self._placing)

    def _confirm(
        self,
        exchange: Exchange,
        ending: Ending,
        stored: asyncio.Future[list[Stored]],
        among: set[asyncio.Future[Any]],
    ) -> None:
        """It is answered, and will have its place."""
        self.unconfirmed.note(exchange)
        among.add(stored)
        stored.add_done_callback(partial(self._confirmed, exchange, ending))

    def _begun_again(self, exchange: Exchange, ending: Ending) -> bool:
        """What was answered can't be placed, most likely for the log was taken away: tell its conversation anew, from
        the beginning of what the client said, in another trajectory. Once, and if the store takes anything."""
        session = exchange.session
        if session.trajectory_id == exchange.trajectory_id:
            self._taken_away(exchange)
        if exchange.begun_again:
            return False
        if session.trajectory_id == exchange.trajectory_id:
            self.sessions.begin_again(session, self.train_policy(session.key.tenant))
        exchange.begin_again()
        try:
            stored = self.store.submit(session.key.tenant, exchange.drafts(ending, self.contexts))
        except StoreUnavailable:
            return False
        self._confirm(exchange, ending, stored, self.background)
        return True

    def _confirmed(self, exchange: Exchange, ending: Ending, stored: asyncio.Future[list[Stored]]) -> None:
        """What was queued without waiting is durable, or lost."""
        self.background.discard(stored)
        self._placing.discard(stored)
        if stored.cancelled():
            return  # the gateway was not given the time to end: the next start reads what became of it
        error = stored.exception()
        if isinstance(error, InvalidDraft) and self._begun_again(exchange, ending):
            _log.error("event %s begins another trajectory: %s", exchange.event_id, error)
            return
        try:
            if error is None:
                self._go_on(exchange, ending, stored.result())
            elif self.durable:
                _log.error("event %s is on the disk and not in the log: %s", exchange.event_id, error)
            else:
                _log.error("event %s is lost (gateway.capture is async): %s", exchange.event_id, error)
        finally:
            self.unconfirmed.end(exchange)

    async def _record_soon(self) -> None:
        """Record what was answered within a moment: no answer waits for its own drafts, and a client that asks again
        at once seldom waits behind them."""
        await asyncio.sleep(_GATHER_S)
        answered, self._answered = self._answered, []
        for exchange, ending in answered:
            try:
                self.record_later(exchange, ending)
            except StoreUnavailable:
                pass  # said already
            except Exception:  # what is wrong with one must not take the others along
                _log.exception("event %s is lost (gateway.capture is async)", exchange.event_id)
            await asyncio.sleep(0)  # requests get their turn

    async def _restore(self) -> None:
        """Rebuild the sessions that were open when the gateway stopped."""
        keys = {key.id: key for key in self.control.picture.keys.values()}
        since = clock.from_epoch(time.time() - self.settings.gateway.session_idle_s)
        reader = open_reader(self.settings)
        try:
            for session in await asyncio.to_thread(restore, reader, keys, since):
                self.sessions.add(session)
        finally:
            reader.close()

    async def _sweep(self) -> None:
        idle_s = self.settings.gateway.session_idle_s
        while True:
            await asyncio.sleep(min(_SWEEP_S, idle_s))
            self.sessions.forget_idle(idle_s)
            self._save_budgets()
            await self._retain()
            tenants = list(self.control.picture.tenants)
            closed = await self.store.close_idle(tenants, clock.from_epoch(time.time() - idle_s))
            for tenant, ids in closed.items():
                self.sessions.close(tenant, ids)
                self.harvester.closed(tenant, ids, "idle")

    def _save_budgets(self) -> None:
        """A full disk must not end what else the gateway does: the next look, or the next stop, tries again."""
        try:
            self.budgets.save(self._counted)
        except OSError as error:
            _log.warning("today's use is not written down: %s", error)

    async def _retain(self) -> None:
        """Once an hour: erase what is past its tenant's retention."""
        if time.monotonic() < self._next_retention:
            return
        self._next_retention = time.monotonic() + _RETAIN_S
        for tenant in self.control.picture.tenants:
            policy = self.control.picture.policies.get(tenant, tenant_policy.DEFAULT)
            try:
                await retain(self.store, self.reader, tenant, policy)
            except (StoreUnavailable, StorageFailed) as error:
                _log.warning("retention of %s waits for its log: %s", tenant, error)


def _nothing() -> None:
    """What is queued goes on by itself."""
