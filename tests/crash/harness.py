"""Run a child that writes, kill it, start again, and count what is there."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import msgspec

from services.proxy.blobs import Blobs
from services.proxy.governor import Governor
from services.proxy.store import EventStore, StoreReader
from tests.crash.child import Plan, backend_of, governance

ROOT = Path(__file__).resolve().parents[2]


class Run(msgspec.Struct):
    """What a child said before it ended."""

    acknowledged: list[tuple[str, str]]
    """(tenant, id) of jobs."""
    ended: int
    """Exit status; -9 when it was killed."""
    finished: bool
    peak_kib: int
    restarts: int
    """Of the process that writes, where there is one."""


def run(plan: Plan, fault: str = "", kill_after_s: float | None = None) -> Run:
    """One child, until it ends or is killed: at a fault point, or some time after its first acknowledgement."""
    with tempfile.TemporaryFile() as told, tempfile.TemporaryFile() as errors:
        child = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.child", msgspec.json.encode(plan).decode()],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "EVOPLANE_FAULT": fault},
            stdout=told,
            stderr=errors,
        )
        if kill_after_s is not None:
            while os.fstat(told.fileno()).st_size == 0 and child.poll() is None:
                time.sleep(0.005)
            time.sleep(kill_after_s)
            child.send_signal(signal.SIGKILL)
        child.wait(timeout=300)
        told.seek(0)
        errors.seek(0)
        said = [line.split() for line in told.read().decode().splitlines()]
        if child.returncode not in (0, -signal.SIGKILL):
            raise AssertionError(errors.read().decode()[-3000:])
    return Run(
        acknowledged=[(words[1], words[2]) for words in said if words[0] == "ack"],
        ended=child.returncode,
        finished=["done"] in said,
        peak_kib=max((int(words[1]) for words in said if words[0] == "rss"), default=0),
        restarts=max((int(words[1]) for words in said if words[0] == "restarts"), default=0),
    )


class Losses(msgspec.Struct):
    """What is wrong after a restart; nothing may be."""

    missing: list[tuple[str, str]] = []
    twice: list[str] = []
    halves: list[str] = []
    broken: list[str] = []
    left_in_spool: list[str] = []

    def any(self) -> bool:
        return bool(self.missing or self.twice or self.halves or self.broken or self.left_in_spool)


def restart(plan: Plan) -> None:
    """Start the store on what is there, let it drain, stop it."""

    async def settle() -> None:
        backend = backend_of(plan)
        governor = Governor(governance) if plan.journaled else None
        opened = EventStore(backend.root, engine=backend.engine(), blobs=_blobs(plan), governor=governor)
        await opened.start()
        async with asyncio.timeout(30):
            while opened.state != "ok":
                await asyncio.sleep(0.01)
        await opened.close()

    asyncio.run(settle())


def losses(plan: Plan, acknowledged: list[tuple[str, str]]) -> Losses:
    """Every acknowledged job whole and once, every chain sound, nothing left to drain."""
    backend = backend_of(plan)
    reader = StoreReader(backend.root, engine=backend.engine(), blobs=_blobs(plan))
    left = [*backend.root.glob("spool/*/*/[0-9]*.jsonl"), *backend.root.glob("spool/*/*journal-*")]
    found = Losses(left_in_spool=[str(path) for path in left])
    try:
        for tenant in reader.tenants():
            ids = _ids(reader, tenant, found)
            found.twice += [id for id, count in ids.items() if count > 1]
            firsts = {id for id in ids if id[-1] not in "+!"}
            found.missing += [(t, id) for t, id in acknowledged if t == tenant and id not in firsts]
            found.halves += [id for id in firsts if f"{id}+" not in ids or not _whole(reader, tenant, id)]
    finally:
        reader.close()
    return found


def _ids(reader: StoreReader, tenant: str, found: Losses) -> Counter[str]:
    ids: Counter[str] = Counter()
    for row in reader.trajectories(tenant):
        found.broken += reader.verify(tenant, row.trajectory_id)
        ids.update(record["id"] for record in reader.records(tenant, row.trajectory_id)[1:])
        if reader.trajectory_key(tenant, row.trajectory_id) != (1, b"key"):
            found.halves.append(row.trajectory_id)
    return ids


def _whole(reader: StoreReader, tenant: str, id: str) -> bool:
    """The job's other drafts are there, and the event says what was sent."""
    record = reader.record(tenant, id)
    assert record is not None
    content = reader.resolve(tenant, record)["o"]["messages"][0]["parts"][0]["content"]
    return reader.sealed(tenant, f"{id}*") == id.encode() and content.startswith(f"{id} x") and content.endswith("x")


def _blobs(plan: Plan) -> Blobs:
    return Blobs(str(backend_of(plan).root / "blobs"), 20_000)
