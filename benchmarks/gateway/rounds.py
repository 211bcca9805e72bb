"""Measuring all targets in turn, round after round, so that whatever the machine does meets all of them."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.gateway.load import Clients, Phase, Streams, Wrong
from benchmarks.gateway.requests import Requests
from benchmarks.gateway.servers import cpu_s
from benchmarks.gateway.targets import Target
from benchmarks.machine import busy_percent, fsync_ms

CONCURRENCIES = (1, 16, 64)
STREAMED = (1, 8)
FRONTIER_STEPS = (0.1, 0.2, 0.35, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1)
"""Rates tried, as shares of what the target answered with `FRONTIER_IN_FLIGHT` clients that never wait."""
FRONTIER_IN_FLIGHT = 64
FRONTIER_BOUNDS_MS = (5, 10, 50)
PEERS = ("mlflow", "portkey")

_HOPELESS = 0.9
"""When fewer than this are answered within the widest bound, no higher rate is tried."""
_FRONTIER_REQUESTS = 100
_FRONTIER_MOST_S = 4.0
"""A step of a slow target takes longer, so that 99% means something, but not longer than this."""
_FSYNCS_EACH = 40
_WARM_UP_MORE = 20
"""Requests besides one a client, before a phase."""
_SETTLE_S = 0.05
"""What a target does behind its answers is its work too."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    rounds: int
    requests: int
    """In a phase at most."""
    seconds: float
    """A phase takes at most."""
    stream_rounds: int
    streams_alone: int
    """Streams in a round, one after the other; of several clients at once each gets one."""
    frontier_passes: int
    frontier_s: float
    requests_before_rss: int
    """The gateway's memory is looked at after so many requests."""


FULL = Plan(5, 2000, 1.0, 3, 4, 2, 1.0, 20_000)
QUICK = Plan(1, 150, 0.4, 1, 1, 1, 0.3, 0)


@dataclass
class Results:
    """Everything that was measured."""

    phases: dict[tuple[str, int], list[Phase]] = field(default_factory=lambda: defaultdict(list))
    """By target and concurrency; one a round."""
    streams: dict[tuple[str, int], list[Streams]] = field(default_factory=lambda: defaultdict(list))
    frontier: dict[tuple[str, float], list[Phase]] = field(default_factory=lambda: defaultdict(list))
    """By target and step; one a pass."""
    fsync_ms: list[float] = field(default_factory=list)
    busy_percent: list[float] = field(default_factory=list)
    problems: dict[str, str] = field(default_factory=dict)
    """Why a target's figures, or some of them, are not there."""
    answered: dict[str, int] = field(default_factory=lambda: defaultdict(int))


class Rounds:
    def __init__(self, targets: list[Target], plan: Plan, folder: Path, say: Say) -> None:
        self._targets = targets
        self._plan = plan
        self._folder = folder
        self._say = say
        self._requests = Requests()
        self.results = Results()

    async def run(self) -> Results:
        plan = self._plan
        for number in range(plan.rounds):
            self._say(f"round {number + 1} of {plan.rounds}")
            self.results.busy_percent.append(busy_percent())
            self.results.fsync_ms.append(fsync_ms(self._folder, _FSYNCS_EACH))
            for concurrency in CONCURRENCIES:
                for target in self._in_turn(number):
                    await self._closed(target, concurrency)
        for number in range(plan.stream_rounds):
            self._say(f"streams, round {number + 1} of {plan.stream_rounds}")
            for concurrency in STREAMED:
                for target in self._in_turn(number):
                    if concurrency > 1 or target.name not in PEERS:
                        await self._streams(target, concurrency)
        for number in range(plan.frontier_passes):
            self._say(f"rising rates, pass {number + 1} of {plan.frontier_passes}")
            rising = [target for target in self._in_turn(number) if target.name != "direct"]
            for step in FRONTIER_STEPS:
                rising = [target for target in rising if await self._frontier(target, step)]
        return self.results

    async def fill(self, target: Target) -> None:
        """Go on until the target has answered as much as the plan says."""
        while (missing := self._plan.requests_before_rss - self.results.answered[target.name]) > 0:
            if not await self._closed(target, 16, min(missing, 5000), 30.0, keep=False):
                return

    def _in_turn(self, number: int) -> list[Target]:
        """Another one first in every round."""
        first = number % len(self._targets)
        usable = [*self._targets[first:], *self._targets[:first]]
        return [target for target in usable if target.name not in self.results.problems]

    async def _closed(
        self, target: Target, concurrency: int, most: int = 0, seconds: float = 0.0, keep: bool = True
    ) -> bool:
        requests = self._requests.chat(target.form, most or self._plan.requests)
        try:
            async with Clients.connected(target.port, concurrency, self._warm_up(target, concurrency)) as clients:
                before = cpu_s(target.pid)
                phase = await clients.closed_loop(requests, seconds or self._plan.seconds)
                await asyncio.sleep(_SETTLE_S)
                phase.cpu_s = cpu_s(target.pid) - before
        except (Wrong, OSError) as error:
            self.results.problems[target.name] = f"{concurrency} at once: {error}"
            return False
        self._count(target, concurrency, phase)
        if keep:
            self.results.phases[target.name, concurrency].append(phase)
        return True

    async def _streams(self, target: Target, concurrency: int) -> None:
        name = f"{target.name}, streams"
        if name in self.results.problems:
            return
        count = concurrency if concurrency > 1 else self._plan.streams_alone
        requests = self._requests.chat(target.form, count, stream=True)
        try:
            async with Clients.connected(target.port, concurrency, self._warm_up(target, concurrency)) as clients:
                streams = await clients.streams(requests)
        except (Wrong, OSError) as error:
            self.results.problems[name] = f"{concurrency} at once: {error}"
            return
        self.results.streams[target.name, concurrency].append(streams)

    async def _frontier(self, target: Target, step: float) -> bool:
        """Is a higher rate worth trying?"""
        name = f"{target.name}, rising rates"
        known = self.results.phases[target.name, FRONTIER_IN_FLIGHT]
        if name in self.results.problems or not known:
            return False
        rate = step * max(phase.rps for phase in known)
        seconds = min(max(self._plan.frontier_s, _FRONTIER_REQUESTS / rate), _FRONTIER_MOST_S)
        requests = self._requests.chat(target.form, int(rate * seconds * 1.2) + 10)
        try:
            warm_up = self._warm_up(target, FRONTIER_IN_FLIGHT)
            async with Clients.connected(target.port, FRONTIER_IN_FLIGHT, warm_up) as clients:
                phase = await clients.open_loop(requests, rate, seconds)
        except (Wrong, OSError) as error:
            self.results.problems[name] = f"{rate:.0f} a second: {error}"
            return False
        self._count(target, FRONTIER_IN_FLIGHT, phase)
        self.results.frontier[target.name, step].append(phase)
        return phase.share_within(FRONTIER_BOUNDS_MS[-1]) >= _HOPELESS

    def _warm_up(self, target: Target, concurrency: int) -> list[bytes]:
        return self._requests.chat(target.form, concurrency + _WARM_UP_MORE)

    def _count(self, target: Target, concurrency: int, phase: Phase) -> None:
        self.results.answered[target.name] += len(phase.ns) + concurrency + _WARM_UP_MORE
