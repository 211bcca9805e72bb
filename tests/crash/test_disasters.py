"""Full disks, flipped bits, a database that is away, clocks that go backwards, two writers: nothing is lost."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.proxy import tenant_writer
from services.proxy.drafts import InvalidDraft, StoreUnavailable
from services.proxy.store import EventStore, StoreReader
from tests.crash.child import Plan
from tests.crash.harness import Run, losses, restart, run
from tests.proxy.backends import Backend, Postgres, reader_of, store_of
from tests.proxy.drafting import CONTEXT, event, header
from tests.proxy.postgres_server import database, postgres_server


def plan_of(backend: Backend, **more: object) -> Plan:
    if isinstance(backend, Postgres):
        return Plan(str(backend.root), admin=backend.admin, database=backend.database, **more)  # type: ignore[arg-type]
    return Plan(str(backend.root), **more)  # type: ignore[arg-type]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 3 MiB: what is full here is really full."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"a small disk can't be mounted here: {mounted.stderr.decode().strip()}")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


async def test_a_full_disk_refuses_clearly_and_the_store_goes_on_when_there_is_room(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tenant_writer, "_RETRY_S", 0.05)
    opened = EventStore(small_disk)
    await opened.start()
    await opened.append("a", [CONTEXT, header()])
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(2 * 2**20))
    acknowledged, refusals = [], []
    for index in range(120):
        try:
            await opened.append("a", [event(f"e{index}", text=os.urandom(5000).hex())])
            acknowledged.append(f"e{index}")
        except StoreUnavailable as error:
            refusals.append(str(error))
    assert any("No space left" in refusal for refusal in refusals)
    assert opened.state == "refusing"
    ballast.unlink()
    async with asyncio.timeout(10):
        while opened.state != "ok":
            await asyncio.sleep(0.02)
    await opened.append("a", [event("after")])
    await opened.close()
    reader = StoreReader(small_disk)
    assert [record["id"] for record in reader.records("a", "t1")[1:]] == [*acknowledged, "after"]
    assert reader.verify("a", "t1") == []


async def test_a_flipped_bit_in_the_database_is_found_and_the_store_goes_on(tmp_path: Path) -> None:
    opened = EventStore(tmp_path)
    await opened.start()
    await opened.append("a", [CONTEXT, header("t1"), header("t2")])
    await opened.append("a", [event("e1", "t1", text="look for this"), event("e2", "t2")])
    await opened.close()
    file = tmp_path / "a.sqlite"
    with sqlite3.connect(file) as connection:
        (packed,) = connection.execute("SELECT body FROM records WHERE id='e1'").fetchone()
    data = bytearray(file.read_bytes())
    data[data.index(packed) + len(packed) // 2] ^= 4
    file.write_bytes(data)
    again = EventStore(tmp_path)
    await again.start()
    await again.append("a", [event("e3", "t1"), event("e4", "t2")])
    await again.close()
    reader = StoreReader(tmp_path)
    assert any("e1" in problem for problem in reader.verify("a", "t1"))
    assert reader.verify("a", "t2") == []


async def test_a_database_file_that_is_damaged_takes_its_own_tenant_to_the_spool_and_no_other(tmp_path: Path) -> None:
    opened = EventStore(tmp_path)
    await opened.start()
    for tenant in ("a", "b"):
        await opened.append(tenant, [CONTEXT, header(), event("e0")])
    await opened.close()
    file = tmp_path / "a.sqlite"
    whole = file.read_bytes()
    file.write_bytes(b"\xff" * 100 + whole[100:])
    again = EventStore(tmp_path)
    await again.start()
    (kept,) = await again.append("a", [event("e1")])
    (stored,) = await again.append("b", [event("e1")])
    assert (kept.spooled, stored.spooled) == (True, False)
    await again.close()
    file.write_bytes(whole)  # restored from a copy
    repaired = EventStore(tmp_path)
    await repaired.start()
    await repaired.close()
    reader = StoreReader(tmp_path)
    for tenant in ("a", "b"):
        assert [record["id"] for record in reader.records(tenant, "t1")[1:]] == ["e0", "e1"]
        assert reader.verify(tenant, "t1") == []


@pytest.mark.parametrize("becomes", ["gone", "another"])
async def test_what_is_acknowledged_after_a_database_file_was_taken_away_is_in_the_file_that_is_there(
    tmp_path: Path, becomes: str
) -> None:
    store = EventStore(tmp_path)
    await store.start()
    await store.append("a", [CONTEXT, header(), event("e1")])
    file = tmp_path / "a.sqlite"
    with sqlite3.connect(file) as log, sqlite3.connect(tmp_path / "copy") as copy:
        log.backup(copy)
    for each in tmp_path.glob("a.sqlite*"):
        each.unlink()
    if becomes == "another":
        (tmp_path / "copy").replace(file)
        await store.append("a", [event("e2")])
    else:
        with pytest.raises(InvalidDraft, match="never opened"):
            await store.append("a", [event("e2")])
    await store.append("a", [CONTEXT, header("t2"), event("e3", "t2")])
    await store.close()
    reader = StoreReader(tmp_path)
    assert [record.get("id") for record in reader.records("a", "t2")] == [None, "e3"]
    assert reader.verify("a", "t2") == []


@pytest.mark.stack
def test_a_database_server_that_dies_and_comes_back_loses_nothing(tmp_path: Path) -> None:
    away_s = float(os.environ.get("EVOPLANE_AWAY_S", "1.5"))
    with postgres_server() as server, database(server.admin, tmp_path) as backend:
        done: list[Run] = []
        jobs = int(60 + away_s * 40)
        plan = plan_of(backend, jobs=jobs, pause_s=0.02)
        writing = threading.Thread(target=lambda: done.append(run(plan)))
        writing.start()
        time.sleep(1.2)
        server.kill()
        time.sleep(away_s)
        server.start()
        writing.join()
        assert done[0].finished
        assert len(done[0].acknowledged) == jobs * 4  # none was refused either
        assert not losses(plan, done[0].acknowledged).any(), losses(plan, done[0].acknowledged)


async def test_a_server_that_is_away_at_the_start_keeps_nobody_from_being_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tenant_writer, "_RETRY_S", 0.05)
    with postgres_server() as server, database(server.admin, tmp_path) as backend:
        server.kill()
        opened = store_of(backend)
        await opened.start()
        stored = await opened.append("a", [CONTEXT, header(), event("e1")])
        assert all(item.spooled for item in stored)
        server.start()
        async with asyncio.timeout(10):
            while opened.state != "ok":
                await asyncio.sleep(0.02)
        await opened.close()
        reader = reader_of(backend)
        assert [record["id"] for record in reader.records("a", "t1")[1:]] == ["e1"]
        reader.close()


def test_a_clock_that_goes_backwards_breaks_no_chain_and_no_order(backend: Backend) -> None:
    plan = plan_of(backend, jobs=20, clock_back=True)
    written = run(plan)
    assert written.finished
    assert not losses(plan, written.acknowledged).any()
    reader = reader_of(backend)
    trajectory = "r0-t0"
    said = [r["id"] for r in reader.records("a", trajectory) if r["record"] == "event" and r["id"][-1] != "+"]
    assert said == [id for tenant, id in written.acknowledged if id.startswith(f"{trajectory}-")]
    seen = []
    cursor = None
    while True:
        found, cursor = reader.events("support", tenant="a", after=cursor, limit=7)
        if not found:
            break
        seen += [record["id"] for _, record in found]
    assert len(seen) == len(set(seen))
    assert [id for id in seen if id in said] == said
    reader.close()


def test_two_processes_in_one_place_where_one_is_killed_lose_nothing(backend: Backend) -> None:
    plans = [plan_of(backend, name=name, jobs=40) for name in ("left", "right")]
    runs: dict[str, Run] = {}
    left = threading.Thread(target=lambda: runs.update(left=run(plans[0])))
    right = threading.Thread(target=lambda: runs.update(right=run(plans[1], fault="after_commit:8")))
    for thread in (left, right):
        thread.start()
    for thread in (left, right):
        thread.join()
    assert runs["left"].finished
    assert runs["right"].ended == -9
    restart(plans[0])
    acknowledged = runs["left"].acknowledged + runs["right"].acknowledged
    assert not losses(plans[0], acknowledged).any(), losses(plans[0], acknowledged)


def test_memory_stays_bounded_while_the_spool_fills_and_drains(tmp_path: Path) -> None:
    small = run(Plan(str(tmp_path / "small"), jobs=20, segment_bytes=8 * 2**20))
    plan = Plan(
        str(tmp_path / "large"), name="r1", jobs=250, tasks=8, lock_from=0, lock_to=1900, segment_bytes=8 * 2**20
    )
    large = run(plan)
    assert large.finished
    assert not losses(plan, large.acknowledged).any()
    assert large.peak_kib - small.peak_kib < 64 * 1024, (small.peak_kib, large.peak_kib)


def test_a_kill_at_any_moment_loses_nothing(backend: Backend) -> None:
    acknowledged: list[tuple[str, str]] = []
    plan = plan_of(backend)
    for round, after_s in enumerate((0.05, 0.15, 0.4)):
        plan = plan_of(backend, name=f"r{round}", jobs=10_000, lock_from=60, lock_to=120)
        acknowledged += run(plan, kill_after_s=after_s).acknowledged
    restart(plan)
    assert acknowledged
    assert not losses(plan, acknowledged).any(), losses(plan, acknowledged)
