"""A process that writes through the real store until it is killed, and says what was acknowledged.

`python -m tests.crash.child '{"root": …}'`, see `Plan`. On standard output, a line each: `ack TENANT ID`,
`rss KIB`, `done`.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from signal import SIGKILL
from typing import Any

import msgspec

from evoplane.settings import Settings
from registry.tenant_policy import TenantPolicy
from services.proxy import spool, tenant_writer
from services.proxy.blobs import Blobs
from services.proxy.drafts import Content, SealedBlob, Stored, StoreDraft, StoreUnavailable, TrajectoryKey
from services.proxy.engines import postgres, sqlite
from services.proxy.process_store import ProcessStore
from services.proxy.store import EventStore
from services.proxy.writer_link import WriterLink
from tests.governance.drafting import Governance
from tests.proxy.backends import Backend, Postgres, Sqlite
from tests.proxy.drafting import CONTEXT, event, header, signal

TENANTS = ("a", "b")

_CAUGHT_UP_S = 120
"""A log that is back has taken what waited within this long, or something is wrong."""


class Plan(msgspec.Struct, frozen=True):
    root: str
    admin: str = ""
    """The superuser's DSN, for PostgreSQL."""
    database: str = ""
    name: str = "r0"
    """Makes this run's ids its own."""
    jobs: int = 40
    """Appends by each of the tasks."""
    tasks: int = 4
    lock_from: int = -1
    """Nobody can write tenant a's log from this acknowledged job on…"""
    lock_to: int = -1
    """…until this one."""
    segment_bytes: int = 4000
    clock_back: bool = False
    """The wall clock jumps back an hour, again and again."""
    pause_s: float = 0.0
    apart: bool = False
    """A process beside this one writes, as a gateway's does: `root` is a deployment's then."""
    journaled: bool = False
    """It does, an acknowledgement says only that a job is safe, and when the process dies so does this one."""


def settings_of(plan: Plan) -> Settings:
    store: dict[str, Any] = {"inline_bytes": 20_000}
    if plan.database:
        of = Postgres(Path(plan.root), plan.admin, plan.database)
        store |= {"engine": "postgres", "dsn": of.dsn}
    return Settings.model_validate({"paths": {"var": plan.root}, "store": store})


def governance() -> Governance:
    """Everything is stored as it comes, and may lie in the journal first."""
    return Governance({tenant: TenantPolicy(redaction="off") for tenant in TENANTS})


class Journaled(ProcessStore):
    """Acknowledges what is safe; its writer's death is its own."""

    async def append(self, tenant: str, drafts: Iterable[StoreDraft]) -> list[Stored]:
        submitted = self.keep(tenant, drafts)
        submitted.placed.add_done_callback(lambda placed: placed.cancelled() or placed.exception())
        await submitted.safe
        return []

    async def start(self) -> None:
        try:
            await super().start()
        except StoreUnavailable:
            os.kill(os.getpid(), SIGKILL)

    def _lost(self, writer: WriterLink) -> None:
        if self._running:
            os.kill(os.getpid(), SIGKILL)


def backend_of(plan: Plan) -> Backend:
    root = settings_of(plan).store_dir if plan.apart or plan.journaled else Path(plan.root)
    return Postgres(root, plan.admin, plan.database) if plan.database else Sqlite(root)


async def write(plan: Plan) -> None:
    spool.SEGMENT_BYTES = plan.segment_bytes
    spool.Spool.__init__.__defaults__ = (spool.MAX_BYTES, plan.segment_bytes)
    tenant_writer._RETRY_S = 0.05
    sqlite._BUSY_TIMEOUT_S = 0.1 if plan.lock_from >= 0 else 2.0
    postgres._LOCK_TIMEOUT_MS = 100 if plan.lock_from >= 0 else 2000
    backend = backend_of(plan)
    opened: EventStore | ProcessStore
    if plan.journaled:
        opened = Journaled(settings_of(plan), governance)
    elif plan.apart:
        opened = ProcessStore(settings_of(plan))
    else:
        opened = EventStore(backend.root, engine=backend.engine(), blobs=Blobs(str(backend.root / "blobs"), 20_000))
    await opened.start()
    for tenant in TENANTS:
        await opened.append(tenant, [CONTEXT])
    acknowledged = 0
    finished = asyncio.Event()

    async def task(number: int) -> None:
        nonlocal acknowledged
        tenant, trajectory = TENANTS[number % 2], f"{plan.name}-t{number}"
        opening = [header(trajectory, trajectory), TrajectoryKey(trajectory, 1, b"key")]
        for index in range(plan.jobs):
            first = f"{trajectory}-{index}"
            text = "x" * (50_000 if index % 13 == 5 else 5000 if index % 5 == 1 else 50)
            drafts = [
                *opening,
                event(first, trajectory, text=f"{first} {text}"),
                event(f"{first}+", trajectory),
                SealedBlob(f"{first}*", trajectory, first.encode()),
                Content("text/plain", first.encode()),
                signal(f"{first}!", "event", f"{first}+" if index % 2 else f"{trajectory}-{index + 1}"),
            ]
            try:
                await opened.append(tenant, drafts)
            except StoreUnavailable:
                await asyncio.sleep(0.02)
                continue
            opening = []
            say(f"ack {tenant} {first}")
            acknowledged += 1
            if plan.pause_s:
                await asyncio.sleep(plan.pause_s)

    async def trouble() -> None:
        while acknowledged < plan.lock_from:
            await asyncio.sleep(0)
        with backend.locked("a") if plan.lock_from >= 0 else nullcontext():
            while acknowledged < plan.lock_to and not finished.is_set():
                await asyncio.sleep(0.001)

    locker = asyncio.create_task(trouble())
    if plan.clock_back:
        locker_of_time = asyncio.create_task(_turn_back_the_clock())
    await asyncio.gather(*(task(number) for number in range(plan.tasks)))
    finished.set()
    await locker
    async with asyncio.timeout(_CAUGHT_UP_S):
        while opened.state != "ok":
            await asyncio.sleep(0.01)
    await opened.close()
    if plan.clock_back:
        locker_of_time.cancel()
    say(f"rss {peak_kib()}")
    say(f"restarts {opened.counters.restarts}")
    say("done")


async def _turn_back_the_clock() -> None:
    real, shift = time.time, 0.0

    def earlier() -> float:
        return real() - shift

    time.time = earlier
    while True:
        await asyncio.sleep(0.005)
        shift += 3600.0


def say(line: str) -> None:
    """One write: whoever reads gets whole lines, also from one who is killed."""
    os.write(1, f"{line}\n".encode())


def peak_kib() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1])
    return 0


if __name__ == "__main__":
    asyncio.run(write(msgspec.json.decode(sys.argv[1], type=Plan)))
