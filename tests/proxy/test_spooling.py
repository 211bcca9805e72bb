"""When the database or the disk says no: nothing that was acknowledged is lost, and order is kept."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from services.proxy import spool, tenant_writer
from services.proxy.blobs import Blobs
from services.proxy.drafts import InvalidDraft, StoreUnavailable
from services.proxy.engines import postgres
from services.proxy.engines import sqlite as sqlite_engine
from services.proxy.engines.base import StorageFailed
from services.proxy.governor import Governor
from services.proxy.log import TenantLog
from services.proxy.sealing import Sealer
from services.proxy.store import EventStore, StoreReader
from tests.governance.drafting import Governance
from tests.proxy.backends import Backend, store_of
from tests.proxy.drafting import CONTEXT, event, header

pytestmark = pytest.mark.usefixtures("impatient")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_engine, "_BUSY_TIMEOUT_S", 0.02)
    monkeypatch.setattr(postgres, "_LOCK_TIMEOUT_MS", 20)
    monkeypatch.setattr(tenant_writer, "_RETRY_S", 0.05)


async def until_ok(opened: EventStore) -> None:
    async with asyncio.timeout(10):
        while opened.state != "ok":
            await asyncio.sleep(0.01)


def segments(root: Path) -> list[Path]:
    return sorted(root.glob("spool/*/*/[0-9]*.jsonl"))


def ids(reader: StoreReader, tenant: str = "a") -> list[str]:
    return [record["id"] for record in reader.records(tenant, "t1")[1:]]


async def test_while_the_store_cannot_commit_drafts_wait_in_the_spool_in_order(
    log: EventStore, backend: Backend, reader: StoreReader
) -> None:
    await log.append("a", [CONTEXT, header(), event("e0")])
    with backend.locked():
        receipts = [(await log.append("a", [event(f"e{index}")]))[0] for index in range(1, 6)]
        assert all(receipt.spooled for receipt in receipts)
        assert (log.state, log.state_of("a")) == ("spooling", "spooling")
    await until_ok(log)
    await log.append("a", [event("e6")])
    assert ids(reader) == [f"e{index}" for index in range(7)]
    assert reader.verify("a", "t1") == []
    assert segments(backend.root) == []


async def test_what_two_writers_sealed_while_the_log_was_away_opens_with_its_trajectorys_key(
    backend: Backend, reader: StoreReader
) -> None:
    """The second one can't know the key that the first one made: it lies in the spool."""
    governance, mail = Governance(), "anna.berg@example.com"

    def governed() -> EventStore:
        return store_of(backend, governor=Governor(lambda: governance, reader.trajectory_key))

    first, second = governed(), governed()
    await first.start()
    await first.append("a", [CONTEXT, header(), event("e0")])
    with backend.locked():
        await first.append("a", [event("e1", text=f"I am {mail}")])
        await first.close()
        await second.start()
        await second.append("a", [event("e2", text=f"I am {mail}")])
    await until_ok(second)
    await second.append("a", [event("e3", text=f"I am {mail}")])
    await second.close()
    keys = governance.tenant_keys["a"]
    sealer = Sealer("t1", keys.unwrap("t1", *(reader.trajectory_key("a", "t1") or (0, b""))))
    for id in ("e1", "e2", "e3"):
        sealed = (reader.record("a", id) or {})["ext"]["sealed"]
        assert list(sealer.open(sealed, reader.sealed("a", sealed["sealed"]) or b"").values()) == [mail]


async def test_one_tenants_trouble_is_not_anothers(log: EventStore, backend: Backend, reader: StoreReader) -> None:
    for tenant in ("a", "b"):
        await log.append(tenant, [CONTEXT, header()])
    with backend.locked("a"):
        (waits,) = await log.append("a", [event("e1")])
        (stored,) = await log.append("b", [event("e1")])
        assert (waits.spooled, stored.spooled) == (True, False)
        assert log.state_of("b") == "ok"
        assert ids(reader, "b") == ["e1"]
    await until_ok(log)
    assert ids(reader, "a") == ["e1"]


async def test_what_was_spooled_is_drained_in_order_through_many_segments_while_more_comes(
    log: EventStore, backend: Backend, reader: StoreReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tenant_writer, "_DRAINED_JOBS", 7)
    slot = log._writer._slot
    slot._spools["a"] = spool.Spool(backend.root / "spool/0/a", segment_bytes=2000)
    await log.append("a", [CONTEXT, header()])
    with backend.locked():
        for index in range(60):
            await log.append("a", [event(f"e{index}")])
        assert len(segments(backend.root)) > 3
    for index in range(60, 90):
        await log.append("a", [event(f"e{index}")])
    await until_ok(log)
    assert ids(reader) == [f"e{index}" for index in range(90)]
    assert segments(backend.root) == []


async def test_a_spool_that_was_left_by_a_crash_is_drained_at_the_next_start(
    backend: Backend, reader: StoreReader
) -> None:
    first = store_of(backend)
    await first.start()
    await first.append("a", [CONTEXT, header(), event("e0")])
    with backend.locked():
        await first.append("a", [event("e1")])
        (left,) = segments(backend.root)
        with left.open("ab") as file:
            file.write(b"1234abcd 00000100 {cut sho")
        await first.close()
    second = store_of(backend)
    await second.start()
    await until_ok(second)
    await second.close()
    assert ids(reader) == ["e0", "e1"]
    assert not list(backend.root.glob("spool/*/*/rejected.jsonl"))


async def test_work_that_was_drained_and_not_yet_forgotten_is_done_once(
    backend: Backend, reader: StoreReader, tmp_path: Path
) -> None:
    first = store_of(backend)
    await first.start()
    await first.append("a", [CONTEXT, header(), event("e0")])
    with backend.locked():
        await first.append("a", [event("e1"), event("e2")])
        (left,) = segments(backend.root)
        copy = shutil.copy(left, tmp_path / "copy")
    await until_ok(first)
    await first.close()
    shutil.copy(copy, left)  # as a crash between commit and removal leaves it
    second = store_of(backend)
    await second.start()
    await second.close()
    assert ids(reader) == ["e0", "e1", "e2"]
    assert reader.verify("a", "t1") == []


async def test_when_the_spool_is_full_too_nothing_is_acknowledged(backend: Backend, reader: StoreReader) -> None:
    opened = store_of(backend, spool_bytes=1500)
    await opened.start()
    await opened.append("a", [CONTEXT, header(), event("e0")])
    acknowledged, refused = ["e0"], 0
    with backend.locked():
        for index in range(1, 12):
            try:
                await opened.append("a", [event(f"e{index}")])
                acknowledged.append(f"e{index}")
            except StoreUnavailable:
                refused += 1
        assert refused
        assert opened.state == "refusing"
    await until_ok(opened)
    await opened.append("a", [event("after")])
    await opened.close()
    assert ids(reader) == [*acknowledged, "after"]


async def test_a_full_disk_loses_nothing_that_was_acknowledged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connecting = sqlite3.connect
    pages = {"limit": 60}

    def limited(*args: Any, **options: Any) -> sqlite3.Connection:
        connection = connecting(*args, **options)
        connection.execute(f"PRAGMA max_page_count={pages['limit']}")
        return connection

    monkeypatch.setattr(sqlite3, "connect", limited)
    opened = EventStore(tmp_path, spool_bytes=200_000)
    await opened.start()
    await opened.append("a", [CONTEXT, header()])
    acknowledged, refused = [], 0
    for index in range(80):
        try:
            await opened.append("a", [event(f"e{index}", text=os.urandom(4000).hex())])
            acknowledged.append(f"e{index}")
        except StoreUnavailable:
            refused += 1
    assert refused
    assert opened.counters.spooled
    pages["limit"] = 1_000_000
    await until_ok(opened)
    await opened.close()
    reader = StoreReader(tmp_path)
    assert ids(reader) == acknowledged
    assert reader.verify("a", "t1") == []


async def test_a_job_that_could_not_be_read_back_from_the_spool_is_refused_alone(
    log: EventStore, backend: Backend, reader: StoreReader
) -> None:
    await log.append("a", [CONTEXT, header()])
    with backend.locked():
        negative, opaque, good = await asyncio.gather(
            log.append("a", [event("negative", duration_ms=-1)]),
            log.append("a", [event("opaque", ext={"x": object()})]),
            log.append("a", [event("good")]),
            return_exceptions=True,
        )
    await until_ok(log)
    assert isinstance(negative, InvalidDraft)
    assert isinstance(opaque, InvalidDraft)
    assert not isinstance(good, BaseException)
    assert ids(reader) == ["good"]


async def test_what_the_spool_had_and_the_store_will_not_take_is_put_aside(
    log: EventStore, backend: Backend, reader: StoreReader
) -> None:
    await log.append("a", [CONTEXT, header()])
    with backend.locked():
        await asyncio.gather(log.append("a", [event("lost", "nowhere")]), log.append("a", [event("good")]))
    await until_ok(log)
    assert ids(reader) == ["good"]
    (aside,) = backend.root.glob("spool/*/a/rejected.jsonl")
    assert b'"lost"' in aside.read_bytes()
    assert segments(backend.root) == []


async def test_two_writers_in_one_place_leave_whole_chains_and_no_event_twice(
    backend: Backend, reader: StoreReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_engine, "_BUSY_TIMEOUT_S", 2.0)
    monkeypatch.setattr(postgres, "_LOCK_TIMEOUT_MS", 2000)
    both = [store_of(backend), store_of(backend)]
    for opened in both:
        await opened.start()
    await both[0].append("a", [CONTEXT, header()])

    async def feed(number: int) -> None:
        for index in range(40):
            await both[number].append("a", [event(f"e{number}-{index}"), event(f"shared-{index}")])

    await asyncio.gather(feed(0), feed(1))
    for opened in both:
        await until_ok(opened)
        await opened.close()
    found = ids(reader)
    assert len(found) == len(set(found)) == 120
    assert [id for id in found if id.startswith("e0")] == [f"e0-{index}" for index in range(40)]
    assert reader.verify("a", "t1") == []


async def test_each_process_has_a_spool_of_its_own_and_a_dead_ones_is_taken_over_by_one_that_runs(
    backend: Backend, reader: StoreReader
) -> None:
    first, second = store_of(backend), store_of(backend)
    await first.start()
    await second.start()
    await first.append("a", [CONTEXT, header()])
    with backend.locked():
        await first.append("a", [event("e1")])
        await second.append("a", [event("e2")])
        assert [path.parent.parent.name for path in segments(backend.root)] == ["0", "1"]
        await second.close()
    await until_ok(first)
    assert ids(reader) == ["e1"]
    await first.close_idle([], "2000-01-01T00:00:00.000Z")
    assert ids(reader) == ["e1", "e2"]
    assert segments(backend.root) == []
    await first.close()


async def test_a_folder_that_is_no_tenants_keeps_no_store_from_writing(backend: Backend, reader: StoreReader) -> None:
    for slot in ("0", "7"):  # its own, and one that a dead process left
        copy = backend.root / "spool" / slot / "a.copy"
        copy.mkdir(parents=True)
        (copy / "00000001.jsonl").write_bytes(b"somebody's notes\n")
    store = store_of(backend)
    await store.start()
    await store.append("a", [CONTEXT, header(), event("e1")])
    assert await store.close_idle(["a"], "2100-01-01T00:00:00Z") == {"a": ["t1"]}
    await store.close()
    assert [record.get("id") for record in reader.records("a", "t1")] == [None, "e1"]
    assert (backend.root / "spool" / "0" / "a.copy" / "00000001.jsonl").read_bytes() == b"somebody's notes\n"


def test_the_probe_fails_when_the_log_is_locked(backend: Backend) -> None:
    opened = TenantLog(backend.engine().writing("a"), Blobs(str(backend.root / "blobs")), "a")
    opened.probe()
    with backend.locked(), pytest.raises(StorageFailed):
        opened.probe()
    opened.probe()
    opened.close()


async def test_after_a_log_was_lost_what_names_a_context_it_lacks_is_refused_and_what_was_spooled_is_kept(
    tmp_path: Path,
) -> None:
    opened = EventStore(tmp_path)
    await opened.start()
    await opened.append("a", [CONTEXT, header(), event("e0")])
    for file in tmp_path.glob("a.sqlite*"):
        file.unlink()
    (tmp_path / "a.sqlite").mkdir()
    assert (await opened.append("a", [header("t2"), event("e2", "t2")]))[0].spooled
    (tmp_path / "a.sqlite").rmdir()
    await until_ok(opened)
    with pytest.raises(InvalidDraft, match="has no context"):
        await opened.append("a", [header("t3"), event("e3", "t3")])
    await opened.append("a", [CONTEXT, header("t4"), event("e4", "t4")])
    await opened.append("a", [header("t5"), event("e5", "t5")])
    await opened.close()
    reader = StoreReader(tmp_path)
    assert [id for id in ("e0", "e2", "e3", "e4", "e5") if reader.record("a", id)] == ["e2", "e4", "e5"]
    assert [reader.verify("a", trajectory) for trajectory in ("t2", "t4", "t5")] == [[], [], []]
    reader.close()
