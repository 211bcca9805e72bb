"""Requests at a steady rate to all gateways in turn, each its own session; what version answered each, and when."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import aiohttp

from benchmarks.delivery.fleet import MODEL

_TIMEOUT_S = 20.0


@dataclass(frozen=True)
class Answered:
    sent: float
    """`time.time()`."""
    done: float
    status: int
    """0: no answer at all."""
    version: str
    failure: str = ""
    """The client's error when there was no answer."""


@dataclass
class Traffic:
    """An open loop: a slow answer delays nobody else's request."""

    urls: Sequence[str]
    secret: str
    rate: float
    answered: list[Answered] = field(default_factory=list)
    _stop: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """Until `stop`; returns when the last request is answered."""
        timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as http, asyncio.TaskGroup() as tasks:
            started, number = time.monotonic(), 0
            while not self._stop.is_set():
                tasks.create_task(self._one(http, number))
                number += 1
                await asyncio.sleep(max(0.0, started + number / self.rate - time.monotonic()))

    def stop(self) -> None:
        self._stop.set()

    def since(self, moment: float) -> list[Answered]:
        return [each for each in self.answered if each.sent >= moment]

    async def _one(self, http: aiohttp.ClientSession, number: int) -> None:
        sent = time.time()
        headers = {"authorization": f"Bearer {self.secret}", "x-evoplane-session-id": f"s{number}"}
        body = {"model": MODEL, "messages": [{"role": "user", "content": f"Where is order {number}?"}]}
        url = f"{self.urls[number % len(self.urls)]}/v1/chat/completions"
        status, version, failure = 0, "", ""
        try:
            async with http.post(url, json=body, headers=headers) as response:
                await response.read()
                status, version = response.status, response.headers.get("x-evoplane-agent-version", "")
        except (aiohttp.ClientError, TimeoutError) as error:
            failure = type(error).__name__
        self.answered.append(Answered(sent, time.time(), status, version, failure))
