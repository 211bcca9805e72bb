"""Customers who keep coming: live traffic in the background while a delivery needs it."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Iterator

from examples.support.desk import Desk, Ticket
from examples.support.scenario import Request, requests

_BATCH = 60


class Customers:
    """Serve customers in a thread of its own between `__enter__` and `__exit__`.

    Args:
        desk: who serves them; outcomes are reported as feedback.
        seed: the first batch of requests; every batch has other customers.
    """

    def __init__(self, desk: Desk, seed: int):
        self._desk = desk
        self._seed = seed
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="customers", daemon=True)
        self._failure: BaseException | None = None
        self.tickets: list[Ticket] = []

    def __enter__(self) -> Customers:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=120)

    def check(self) -> None:
        """Raise what stopped the traffic, if anything did."""
        if self._failure is not None:
            raise RuntimeError(f"the demo's traffic stopped: {self._failure}") from self._failure

    def _run(self) -> None:
        try:
            asyncio.run(self._desk.serve(self._endless(), self.tickets.append, self._stop.is_set))
        except BaseException as failure:  # the thread's owner reports it
            self._failure = failure

    def _endless(self) -> Iterator[Request]:
        for batch in itertools.count(self._seed):
            yield from requests("train", _BATCH, batch)
