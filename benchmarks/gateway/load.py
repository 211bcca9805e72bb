"""The load generator: raw protocols on keep-alive connections, requests encoded beforehand, times in nanoseconds.

What it costs itself is in the direct runs too, and so falls out of every difference.
"""

from __future__ import annotations

import asyncio
import gc
import random
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import quantiles
from time import perf_counter_ns
from typing import cast

import httptools

from benchmarks.gateway.upstream import FRAME_S, FRAMES, MARK

_TICK_S = 0.001
"""Arrivals of an open loop are looked at this often."""
_WARM_UP_S = 2.0
"""A warm-up ends then at the latest."""
_NS_PER_MS = 1e6


class Wrong(Exception):
    """A target did not answer as the upstream did."""


@dataclass
class Phase:
    """Answered requests of one phase."""

    ns: list[int] = field(default_factory=list)
    seconds: float = 0.0
    cpu_s: float = 0.0
    """Computing time of the target."""

    def percentile_ms(self, percent: int) -> float:
        """Of the time from sending a request to its answer's last byte."""
        return percentile(self.ns, percent) / _NS_PER_MS

    def share_within(self, ms: float) -> float:
        """Of the requests, those answered within so many milliseconds."""
        return sum(ns <= ms * _NS_PER_MS for ns in self.ns) / len(self.ns) if self.ns else 0.0

    @property
    def rps(self) -> float:
        return len(self.ns) / self.seconds


@dataclass
class Streams:
    """Streamed answers of one phase."""

    ttft_ns: list[int] = field(default_factory=list)
    """From sending a request to the first piece of its answer."""
    gaps_ns: list[int] = field(default_factory=list)
    """Between a piece and the next."""


Answered = Callable[["Connection", int], None]


class Connection(asyncio.Protocol):
    """One client; one request at a time. `answered` is called with it and the nanoseconds since it asked."""

    def __init__(self, answered: Answered, lost: Callable[[Exception], None]) -> None:
        self._answered = answered
        self._lost = lost
        self.open = True
        self.waits = False
        """Has it a request that is not answered?"""
        self.asked_ns = 0
        self.frames_ns: list[int] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._parser = httptools.HttpResponseParser(self)

    def ask(self, request: bytes, asked_ns: int | None = None) -> None:
        """`asked_ns` is when the client wanted to ask, if it had to wait for a connection."""
        self._body = b""
        self.frames_ns = []
        self.waits = True
        self.asked_ns = asked_ns or perf_counter_ns()
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._lost(Wrong(f"no HTTP: {error}"))

    def connection_lost(self, error: Exception | None) -> None:
        self.open = False
        if self.waits:
            self._lost(Wrong(f"the connection was closed before the answer ({error})"))

    def on_body(self, body: bytes) -> None:
        self._body += body
        pieces = self._body.count(MARK) - len(self.frames_ns)
        if pieces > 0:
            self.frames_ns += [perf_counter_ns()] * pieces

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if status != 200 or not self.frames_ns:
            self._lost(Wrong(f"status {status}: {self._body[:300].decode(errors='replace')}"))
            return
        self.waits = False
        self._answered(self, perf_counter_ns() - self.asked_ns)

    def close(self) -> None:
        self.waits = False
        self._transport.close()


class Clients:
    """Connections to one port for one phase. Servers close what idles, so each phase begins with new ones."""

    def __init__(self) -> None:
        self._connections: list[Connection] = []
        self._done: asyncio.Future[None]
        self._on_answer: Answered

    @classmethod
    @asynccontextmanager
    async def connected(cls, port: int, count: int, warm_up: list[bytes]) -> AsyncIterator[Clients]:
        """So many connections, over which the warm-up requests have been answered."""
        loop = asyncio.get_running_loop()
        clients = cls()
        clients._done = loop.create_future()
        try:
            for _ in range(count):
                _, connection = await loop.create_connection(clients._new, "127.0.0.1", port)
                clients._connections.append(connection)
            await clients.closed_loop(warm_up, _WARM_UP_S)
            yield clients
        finally:
            for connection in clients._connections:
                connection.close()

    async def closed_loop(self, requests: list[bytes], seconds: float) -> Phase:
        """Each client asks again when it is answered; ends with the requests or the time, whichever is first."""
        phase = Phase()
        left = iter(requests)
        open = 0

        def answered(connection: Connection, ns: int) -> None:
            phase.ns.append(ns)
            ask_next(connection)

        def ask_next(connection: Connection) -> None:
            nonlocal open
            request = next(left, None) if perf_counter_ns() < ends else None
            if request is not None:
                connection.ask(request)
                return
            open -= 1
            if open == 0:
                self._done.set_result(None)

        async with self._running(answered):
            started = perf_counter_ns()
            ends = started + int(seconds * 1e9)
            open = len(self._connections)
            for connection in self._connections:
                ask_next(connection)
            await self._done
        phase.seconds = (perf_counter_ns() - started) / 1e9
        return phase

    async def open_loop(self, requests: list[bytes], rate: float, seconds: float) -> Phase:
        """Requests arrive at random (Poisson) at `rate` a second, whether or not earlier ones are answered.

        What arrives while every connection is taken waits, and its waiting counts.
        """
        phase = Phase()
        left = iter(requests)
        idle = list(self._connections)
        waiting: deque[int] = deque()
        arrivals = deque(_poisson(rate, seconds, len(requests)))
        expected = len(arrivals)

        def answered(connection: Connection, ns: int) -> None:
            phase.ns.append(ns)
            idle.append(connection)
            dispatch()
            if len(phase.ns) == expected:
                self._done.set_result(None)

        def dispatch() -> None:
            while waiting and idle:
                # those that have idled longest are the first that a server closes, and the last that are used
                connection = idle.pop()
                if connection.open:
                    connection.ask(next(left), waiting.popleft())
            if waiting and not any(connection.open for connection in self._connections):
                self._fail(Wrong("every connection was closed"))

        def tick() -> None:
            now = perf_counter_ns()
            while arrivals and started + arrivals[0] <= now:
                arrivals.popleft()
                waiting.append(now)
            dispatch()
            if arrivals and not self._done.done():
                loop.call_later(_TICK_S, tick)

        loop = asyncio.get_running_loop()
        async with self._running(answered):
            started = perf_counter_ns()
            tick()
            await self._done
        phase.seconds = (perf_counter_ns() - started) / 1e9
        return phase

    async def streams(self, requests: list[bytes]) -> Streams:
        """Every answer as a stream, one after the other on each connection; their beginnings are spread evenly."""
        result = Streams()
        left = iter(requests)
        open = len(self._connections)

        def answered(connection: Connection, ns: int) -> None:
            frames = connection.frames_ns
            if len(frames) != FRAMES:
                self._fail(Wrong(f"{len(frames)} pieces of {FRAMES}"))
                return
            result.ttft_ns.append(frames[0] - connection.asked_ns)
            result.gaps_ns.extend(after - before for before, after in pairwise(frames))
            ask_next(connection)

        def ask_next(connection: Connection) -> None:
            nonlocal open
            if self._done.done():  # another one was answered wrongly before this one's turn
                return
            request = next(left, None)
            if request is not None:
                connection.ask(request)
                return
            open -= 1
            if open == 0:
                self._done.set_result(None)

        loop = asyncio.get_running_loop()
        async with self._running(answered):
            for number, connection in enumerate(self._connections):
                loop.call_later(number * FRAMES * FRAME_S / open, ask_next, connection)
            await self._done
        return result

    @asynccontextmanager
    async def _running(self, answered: Answered) -> AsyncIterator[None]:
        """The generator's own garbage collection would look like the target's latency: it waits."""
        self._on_answer = answered
        self._done = asyncio.get_running_loop().create_future()
        gc.collect()
        gc.disable()
        try:
            yield
        finally:
            gc.enable()

    def _new(self) -> Connection:
        return Connection(lambda connection, ns: self._on_answer(connection, ns), self._fail)

    def _fail(self, error: Exception) -> None:
        if not self._done.done():
            self._done.set_exception(error)


def percentile(values: list[int], percent: int) -> float:
    """By linear interpolation between the two nearest values."""
    if len(values) < 2:
        return float(values[0]) if values else float("nan")
    return quantiles(values, n=100, method="inclusive")[percent - 1]


def _poisson(rate: float, seconds: float, most: int) -> Iterator[int]:
    """Nanoseconds from the beginning."""
    chance = random.Random(rate)
    at = 0.0
    for _ in range(most):
        at += chance.expovariate(rate)
        if at > seconds:
            return
        yield int(at * 1e9)
