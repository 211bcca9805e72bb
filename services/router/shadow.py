"""Shadow traffic: the shadow version gets the same request in the background, and nobody sees its answer.

Bounded, and the first to give way: what does not fit is dropped and counted. A shadow decides but does
not act: no tool runs on its word. Each mirrored request is a trajectory of its own, a branch of the
user's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from atdp.records import Parent
from services.proxy.capture import Exchange
from services.proxy.sessions import new_session
from services.router.assignment import Router

_log = logging.getLogger(__name__)

MAX_RUNNING = 4
"""Mirrored requests at the upstream at once: users' requests must not queue behind them."""
MAX_WAITING = 64

Ask = Callable[[Exchange], Awaitable[None]]
"""Sends an exchange to the upstream and records how it went."""


class ShadowMirror:
    def __init__(self, router: Router, ask: Ask) -> None:
        self._router = router
        self._ask = ask
        self._queue: asyncio.Queue[Exchange] = asyncio.Queue(MAX_WAITING)
        self._workers: list[asyncio.Task[None]] = []
        self.done = 0
        self.dropped = 0

    def start(self) -> None:
        self._workers = [asyncio.create_task(self._work()) for _ in range(MAX_RUNNING)]

    async def close(self) -> None:
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)

    def offer(self, original: Exchange) -> None:
        """Mirror an answered exchange, if its session is mirrored and there is room."""
        served = self._router.shadow(original.session)
        if served is None or original.model is not None or original.continued:
            return
        session = new_session(
            original.session.key,
            "deny",
            f"{original.session.session_id[:150]}/shadow/{original.event_id}",
            parent=Parent(trajectory_id=original.trajectory_id, event_id=original.event_id, rel="branch"),
        )
        request = {k: v for k, v in original.request.items() if k not in ("stream", "stream_options")}
        mirrored = Exchange(original.dialect, request)
        mirrored.bind(session, served.version, served.role, [], original.upstream)
        try:
            self._queue.put_nowait(mirrored)
        except asyncio.QueueFull:
            self.dropped += 1

    async def _work(self) -> None:
        while True:
            mirrored = await self._queue.get()
            try:
                await self._ask(mirrored)
                self.done += 1
            except Exception:
                # whatever goes wrong with a shadow is the shadow's: users' traffic goes on
                _log.exception("a mirrored request failed")
                self.dropped += 1
