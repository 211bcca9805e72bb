"""Shadow traffic: the shadow version gets the same request in the background, and nobody sees its answer.

Bounded, and the first to give way: what does not fit is dropped and counted, and a stage has a budget of requests and
tokens. A shadow decides but does not act: no tool runs on its word. Its calls are answered by the tape, which is what
the same calls returned in the live session; a call the live session never made is refused, and its conversation ends
there. Each mirrored request is a trajectory of its own, a branch of the user's.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from atdp.records import Parent
from registry.pointers import Route
from services.proxy.capture import Exchange
from services.proxy.dialects import CHAT
from services.proxy.sessions import Session, new_session
from services.router.assignment import Router
from services.router.tape import Tape, answers_to, tape_of

_log = logging.getLogger(__name__)

MAX_RUNNING = 4
"""Mirrored requests at the upstream at once: users' requests must not queue behind them."""
MAX_WAITING = 64
MAX_STEPS = 4
"""Calls of a shadow that the tape answers in one turn: a shadow that goes on and on ends here."""
_SESSIONS = 256
"""Live sessions whose tapes and unanswered shadows are kept; the one longest unused gives way."""
_PATIENCE_S = 600.0
"""How long a shadow's call waits for the live session to make the same one, at the most."""


@dataclass(frozen=True)
class Shadowed:
    """What came of a mirrored request."""

    message: dict[str, Any] | None = None
    """The assistant's message in chat form; None when there is none, or the dialect has another form."""
    tokens: int = 0


Ask = Callable[[Exchange], Awaitable[Shadowed]]
"""Sends an exchange to the upstream and records how it went."""


@dataclass
class _Turn:
    """A mirrored request, and how often the tape has answered its calls."""

    exchange: Exchange
    live: Session
    steps: int = 0


@dataclass
class _Live:
    """What is known of a live session."""

    tape: Tape = field(default_factory=dict)
    used: float = field(default_factory=time.monotonic)
    waiting: list[tuple[_Turn, dict[str, Any]]] = field(default_factory=list)
    """Shadows whose calls the tape does not answer yet: the live session may still make them in this turn."""


class ShadowMirror:
    def __init__(self, router: Router, ask: Ask) -> None:
        self._router = router
        self._ask = ask
        self._queue: asyncio.Queue[_Turn] = asyncio.Queue(MAX_WAITING)
        self._workers: list[asyncio.Task[None]] = []
        self._live: OrderedDict[str, _Live] = OrderedDict()
        self._spent: dict[tuple[str, str], tuple[int, int]] = {}
        """Requests and tokens by agent and beginning of its shadow stage."""
        self.done = 0
        self.dropped = 0
        self.answered = 0
        """Calls that the tape answered."""
        self.refused = 0
        """Calls that it could not."""

    def start(self) -> None:
        self._workers = [asyncio.create_task(self._work()) for _ in range(MAX_RUNNING)]

    async def close(self) -> None:
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)

    def offer(self, original: Exchange) -> None:
        """Mirror an answered exchange, if its session is mirrored and there is room; learn what its tools returned."""
        served = self._router.shadow(original.session)
        if served is None or original.model is not None or original.continued:
            return
        live = self._of(original)
        if original.dialect is CHAT:
            live.tape.update(tape_of(original.request))
            if _reads_results(original.request):
                self._go_on(live)
                return
        self._refuse(live)
        session = new_session(
            original.session.key,
            "deny",
            f"{original.session.session_id[:150]}/shadow/{original.event_id}",
            parent=Parent(trajectory_id=original.trajectory_id, event_id=original.event_id, rel="branch"),
        )
        request = {k: v for k, v in original.request.items() if k not in ("stream", "stream_options")}
        mirrored = Exchange(original.dialect, request)
        mirrored.bind(session, served.version, served.role, [], original.upstream)
        self._enqueue(_Turn(mirrored, original.session))

    def _of(self, original: Exchange) -> _Live:
        id = original.session.trajectory_id
        live = self._live.setdefault(id, _Live())
        self._live.move_to_end(id)
        live.used = time.monotonic()
        while len(self._live) > _SESSIONS or next(iter(self._live.values())).used < live.used - _PATIENCE_S:
            self._refuse(self._live.popitem(last=False)[1])
        return live

    def _go_on(self, live: _Live) -> None:
        """The live session's tools have returned something: shadows that asked for the same go on."""
        waiting, live.waiting = live.waiting, []
        for turn, message in waiting:
            if not self._answer(live, turn, message):
                live.waiting.append((turn, message))

    def _answer(self, live: _Live, turn: _Turn, message: Mapping[str, Any]) -> bool:
        """Put what the tape has behind the shadow's calls; returns whether it has all of them."""
        results = answers_to(message, live.tape)
        if results is None:
            return False
        before = turn.exchange
        request = {**before.request, "messages": [*before.request["messages"], dict(message), *results]}
        onward = Exchange(before.dialect, request)
        onward.bind(before.session, before.version, before.role, [], before.upstream)
        self.answered += len(results)
        self._enqueue(_Turn(onward, turn.live, turn.steps + 1))
        return True

    def _refuse(self, live: _Live) -> None:
        """The turn is over and the live session never made these calls: nothing runs them."""
        for _, message in live.waiting:
            self.refused += len(message.get("tool_calls") or [])
        live.waiting.clear()

    def _enqueue(self, turn: _Turn) -> None:
        if not self._affordable(turn.exchange.session.key.agent):
            self.dropped += 1
            return
        try:
            self._queue.put_nowait(turn)
        except asyncio.QueueFull:
            self.dropped += 1

    def _affordable(self, agent: str) -> bool:
        """Is there budget left? Every gateway counts what it spends itself; the stage counts what all of them do."""
        route = self._router.route(agent)
        if route is None:
            return False
        requests, tokens = self._spent.get(_stage(route), (0, 0))
        enough = route.shadow_requests is None or requests < route.shadow_requests
        if enough and (route.shadow_tokens is None or tokens < route.shadow_tokens):
            self._spend(route, 1, 0)
            return True
        return False

    def _spend(self, route: Route, requests: int, tokens: int) -> None:
        stage = _stage(route)
        if stage not in self._spent:
            self._spent = {key: value for key, value in self._spent.items() if key[0] != route.agent}
        before = self._spent.get(stage, (0, 0))
        self._spent[stage] = (before[0] + requests, before[1] + tokens)

    async def _work(self) -> None:
        while True:
            turn = await self._queue.get()
            try:
                shadowed = await self._ask(turn.exchange)
                self.done += 1
                self._asked(turn, shadowed)
            except Exception:
                # whatever goes wrong with a shadow is the shadow's: users' traffic goes on
                _log.exception("a mirrored request failed")
                self.dropped += 1

    def _asked(self, turn: _Turn, shadowed: Shadowed) -> None:
        route = self._router.route(turn.live.key.agent)
        if route is not None:
            self._spend(route, 0, shadowed.tokens)
        message = shadowed.message
        if message is None or not message.get("tool_calls") or turn.exchange.dialect is not CHAT:
            return
        live = self._live.get(turn.live.trajectory_id)
        if live is None or turn.steps >= MAX_STEPS:
            self.refused += len(message["tool_calls"])
        elif not self._answer(live, turn, message):
            live.waiting.append((turn, message))


def _stage(route: Route) -> tuple[str, str]:
    return route.agent, route.shadow_since


def _reads_results(request: Mapping[str, Any]) -> bool:
    """Does a chat request go on from tool results rather than ask something new?"""
    messages = request.get("messages") or [{}]
    return isinstance(messages[-1], dict) and messages[-1].get("role") == "tool"
