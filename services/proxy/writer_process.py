"""`python -m services.proxy.writer_process FD`: redacts what a gateway has captured, and writes its logs, beside it.

Redacting, placing, packing and SQL need Python's lock, some of it for every statement; in a thread of the gateway each
of them would wait for whatever request is computing, and requests for it. The gateway (`process_store`) holds the
other end of the socket: when that closes, for whatever reason, what has come is written and the process ends.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import select
import signal
import socket
import sys
import time
from collections import deque
from dataclasses import dataclass, field

from msgspec.structs import replace

from evoplane.settings import Settings
from services.proxy import writer_frames as frames
from services.proxy.drafts import InvalidDraft, StoreUnavailable
from services.proxy.engines.base import Misconfigured
from services.proxy.governor import Governor
from services.proxy.reader import open_reader
from services.proxy.tenant_writer import Result
from services.proxy.writing import CROWD, GATHER_S, MAX_BATCH, LogWriter, Submission, open_writer

_RECEIVED_AT_ONCE = 2**20
_MAX_BATCH_BYTES = 2**20
"""Of jobs in one commit: to search that much takes seconds at worst, and nobody is answered before it is done."""
_MOST_AHEAD = 64
"""Jobs to come that are kept ready: what their upstreams take long over may be pushed out and is then made anew."""
_FEW = 2
"""With no more exchanges under way than this, a job is journaled before it is written."""
_IDLE_S = 0.25
"""Without work for so long, the journal is cleared."""
_COLLECTOR = (5_000, 20, 250)
"""`gc.set_threshold`: jobs leave no cycles behind."""


@dataclass
class InForce:
    """The policies and keys that records are stored under: without any, they are stored without payload."""

    now: frames.Govern = field(default_factory=frames.Govern)


class WriterProcess:
    """One end of the socket: takes orders, commits, answers."""

    def __init__(self, connection: socket.socket, writer: LogWriter, in_force: InForce) -> None:
        self._connection = connection
        self._writer = writer
        self._in_force = in_force
        self._frames = frames.Frames()
        self._inbox: deque[tuple[bytes, memoryview]] = deque()
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)
        self._ended = False
        """Has everything come that will come?"""
        self._expecting = 0
        self._placed: list[tuple[int, Result]] = []
        """What became of jobs whose senders know them to be safe, and are to know this, too."""
        self._ahead: dict[bytes, Submission] = {}
        """What was made ready of jobs to come."""
        self._told = self._health()

    def run(self) -> None:
        """Until the gateway says so or is gone."""
        self._answer(frames.Opened(self._told))
        while not (self._ended and not self._inbox):
            self._receive()
            self._work()
            self._writer.recover(entirely=self._ended and not self._inbox)
            self._tell_placed()
            if self._writer.journal_due:
                self._writer.settle()
            if self._writer.in_trouble() != self._told.in_trouble:
                self._answer(self._health())

    def _receive(self) -> None:
        """Wait for work, unless there is some, and take what is there."""
        if self._ended:
            return
        if not self._readable(self._wait_s()):
            if not self._inbox:
                self._writer.settle()
            return
        self._take()
        if self._expecting > CROWD and self._inbox and self._inbox[-1][0] == frames.JOB:
            time.sleep(GATHER_S)
        while not self._ended and len(self._inbox) < MAX_BATCH and self._readable(0.0):
            self._take()

    def _wait_s(self) -> float | None:
        """How long to wait for work; None is until there is some."""
        if self._inbox:
            return 0.0
        soon = [self._writer.wait_s(), _IDLE_S if self._writer.journal_waits else None]
        return min((wait_s for wait_s in soon if wait_s is not None), default=None)

    def _readable(self, wait_s: float | None) -> bool:
        return bool(self._poll.poll(None if wait_s is None else 1000 * wait_s))

    def _take(self) -> None:
        try:
            data = self._connection.recv(_RECEIVED_AT_ONCE)
        except ConnectionError:
            data = b""
        if not data:
            self._ended = True
            return
        ahead: memoryview | None = None
        for kind, body in self._frames.feed(data):
            if kind == frames.AHEAD:
                ahead = body
            else:
                self._inbox.append((kind, body))
        if self._inbox:
            if self._inbox[-1][0] == frames.JOB:
                self._expecting = frames.job_of(self._inbox[-1][1])[0].expecting
        elif ahead is not None:
            self._prepare(bytes(ahead))

    def _work(self) -> None:
        """Do what has come, in its order: jobs that follow each other in one commit."""
        while self._inbox:
            numbers: list[int] = []
            jobs: list[Submission | InvalidDraft] = []
            size = 0
            while self._inbox and self._inbox[0][0] == frames.JOB and len(jobs) < MAX_BATCH and size < _MAX_BATCH_BYTES:
                head, body = frames.job_of(self._inbox.popleft()[1])
                job = self._job(body)
                if not jobs and not self._inbox and self._journaled(head, body, job):
                    return
                size += len(body)
                numbers.append(head.number)
                jobs.append(job)
            if jobs:
                self._write(numbers, jobs)
                return
            self._obey(frames.order_of(self._inbox.popleft()[1]))

    def _prepare(self, packed: bytes) -> None:
        with contextlib.suppress(InvalidDraft):  # said when the job is there
            self._ahead[packed] = self._writer.prepare(_submission(frames.part_of(packed)))
        while len(self._ahead) > _MOST_AHEAD:
            del self._ahead[next(iter(self._ahead))]

    def _journaled(self, head: frames.JobHead, body: memoryview, job: Submission | InvalidDraft) -> bool:
        """Have it safe, tell its sender, then write it, if few wait: many are served better by one commit for all."""
        if not head.early or head.expecting > _FEW or isinstance(job, InvalidDraft):
            return False
        if not self._writer.journal(job.tenant, body):
            return False
        self._answer(frames.Safe(head.number))
        self._writer.write_journaled(job, lambda result: self._placed.append((head.number, result)))
        if not self._placed:
            self._answer(frames.Owes(head.number))
        self._tell_placed()
        return True

    def _tell_placed(self) -> None:
        if self._placed:
            numbers, results = zip(*self._placed, strict=True)
            self._placed.clear()
            self._answer(frames.written([*numbers], [*results], self._health()))

    def _job(self, body: memoryview) -> Submission | InvalidDraft:
        first, rest = frames.parts_of(body)
        try:
            submitted = _submission(frames.part_of(rest))
            if not first:
                return submitted
            begun = self._ahead.pop(first, None) or _submission(frames.part_of(first))
        except InvalidDraft as error:
            return error
        return replace(begun, drafts=[*begun.drafts, *submitted.drafts])

    def _write(self, numbers: list[int], jobs: list[Submission | InvalidDraft]) -> None:
        done = iter(self._writer.write([job for job in jobs if isinstance(job, Submission)]))
        results: list[Result] = [next(done) if isinstance(job, Submission) else job for job in jobs]
        self._answer(frames.written(numbers, results, self._health()))

    def _health(self) -> frames.Health:
        self._told = frames.Health(self._writer.counters, self._writer.in_trouble())
        return self._told

    def _obey(self, order: frames.Order) -> None:
        match order:
            case frames.Govern():
                self._in_force.now = order
            case frames.CloseIdle(number, tenants, before):
                self._answer(frames.Closed(number, self._writer.close_idle(tenants, before)))
            case frames.TellFound(number, tenant, trajectories):
                self._answer(frames.Told(number, self._writer.found(tenant, trajectories)))
            case frames.EraseKey(number, tenant, trajectory_id):
                try:
                    self._writer.erase_key(tenant, trajectory_id)
                    self._answer(frames.Erased(number))
                except (StoreUnavailable, ValueError) as error:
                    self._answer(frames.Erased(number, str(error)))
            case frames.Open():
                raise ValueError("the logs are open already")

    def _answer(self, message: frames.Answer) -> None:
        try:
            self._connection.sendall(frames.frame(message))
        except ConnectionError:
            self._ended = True  # nobody is there to be told; what has come is written all the same


def _submission(part: frames.Part) -> Submission:
    return Submission(part.tenant, part.drafts, part.found)


def _first_order(connection: socket.socket) -> frames.Open:
    reading = frames.Frames()
    while True:
        data = connection.recv(_RECEIVED_AT_ONCE)
        if not data:
            raise SystemExit(0)
        for _, body in reading.feed(data):
            order = frames.order_of(body)
            assert isinstance(order, frames.Open), "nothing else is sent before it is answered"
            return order


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # a supervisor may signal every process; the gateway still has answers to give
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with socket.socket(fileno=int(sys.argv[1])) as connection:
        order = _first_order(connection)
        settings, in_force = Settings.model_validate(order.settings), InForce(order.governed or frames.Govern())
        reader = open_reader(settings)
        governor = Governor(lambda: in_force.now, reader.trajectory_key, succeeds=order.succeeds)
        writer = open_writer(settings, governor if order.governed is not None else None)
        try:
            writer.open()
        except Exception as error:
            with contextlib.suppress(ConnectionError):
                connection.sendall(frames.frame(frames.NotOpened(str(error), isinstance(error, Misconfigured))))
            return
        gc.collect()
        gc.freeze()
        gc.set_threshold(*_COLLECTOR)
        try:
            WriterProcess(connection, writer, in_force).run()
        finally:
            writer.close()
            reader.close()


if __name__ == "__main__":
    main()
