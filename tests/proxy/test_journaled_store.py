"""Who waits alone is told that its job is safe before this has its place; what follows is as if it had waited."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from signal import SIGKILL
from typing import Any

import orjson
import pytest

from evoplane.settings import Settings
from registry.tenant_policy import TenantPolicy
from services.proxy import writer_frames as frames
from services.proxy import writer_process
from services.proxy.drafts import InvalidDraft, StoreUnavailable
from services.proxy.governor import Governor
from services.proxy.journal import Reading, journals
from services.proxy.process_store import ProcessStore
from services.proxy.store import StoreReader, open_store
from services.proxy.tenant_writer import TenantWriter
from services.proxy.writer_process import InForce, WriterProcess
from services.proxy.writing import open_writer, submission_of
from tests.governance.drafting import Governance, call, opened
from tests.proxy.at_rest import every_byte
from tests.proxy.backends import Sqlite
from tests.proxy.drafting import CONTEXT
from tests.proxy.test_process_store import writer_of

MAIL = "anna.berg@example.com"
KEY = "sk-" + "proj-" + "A1b2C3d4E5f6G7h8I9j0K1l2M3n4"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings.model_validate({"paths": {"var": tmp_path}})


@pytest.fixture
def reader(settings: Settings) -> StoreReader:
    return StoreReader(settings.store_dir)


@pytest.fixture
def governance() -> Governance:
    return Governance()


@pytest.fixture
async def store(settings: Settings, governance: Governance) -> AsyncIterator[ProcessStore]:
    store = ProcessStore(settings, lambda: governance)
    await store.start()
    await store.append("a", [CONTEXT, opened(), call("e0")])
    yield store
    await store.close()


async def until(true: Callable[[], Any]) -> None:
    async with asyncio.timeout(10):
        while not true():
            await asyncio.sleep(0.01)


def left(settings: Settings) -> list[Path]:
    return [path for slot in settings.store_dir.glob("spool/*") for path in journals(slot)]


def jobs_in(path: Path, governance: Governance) -> int:
    return len(list(Reading(path, governance.tenant_keys.__getitem__)))


async def test_a_job_is_safe_before_it_has_its_place_and_nothing_of_it_is_in_the_clear(
    store: ProcessStore, reader: StoreReader, settings: Settings, governance: Governance
) -> None:
    with Sqlite(settings.store_dir).locked():
        submitted = store.keep("a", [call("e1", text=f"I am {MAIL}, {KEY}")])
        await submitted.safe
        assert not submitted.placed.done()
        assert [jobs_in(path, governance) for path in left(settings)] == [1]
        assert MAIL.encode() not in every_byte(settings.store_dir)
        assert KEY.encode() not in every_byte(settings.store_dir)
    assert [item.id for item in await submitted.placed] == ["e1"]
    assert [r["id"] for r in reader.records("a", "t1")[1:]] == ["e0", "e1"]
    assert KEY.encode() not in every_byte(settings.store_dir)


async def test_without_work_for_a_moment_the_journal_is_overwritten(store: ProcessStore, settings: Settings) -> None:
    await store.keep("a", [call("e1")]).placed
    await until(lambda: [any(path.read_bytes()) for path in left(settings)] == [False])
    await store.close()
    assert left(settings) == []


@pytest.mark.parametrize(
    "policy",
    [{"redaction": "strict"}, {"seal": False}, {"on_failure": "block"}, {"reasoning": "drop"}],
    ids=lambda policy: next(iter(policy)),
)
async def test_what_a_tenant_wants_nowhere_but_redacted_waits_for_its_place(
    settings: Settings, governance: Governance, policy: dict[str, Any]
) -> None:
    governance.policies["a"] = TenantPolicy(**policy)
    store = ProcessStore(settings, lambda: governance)
    await store.start()
    submitted = store.keep("a", [CONTEXT, opened(), call("e1")])
    await submitted.safe
    assert submitted.placed.done()
    assert store.counters.journaled == 0
    await store.close()
    assert left(settings) == []


async def test_when_many_wait_one_commit_serves_them_all(store: ProcessStore) -> None:
    store.expecting = lambda: 3
    submitted = store.keep("a", [call("e1")])
    await submitted.safe
    assert submitted.placed.done()
    assert store.counters.journaled == 0


async def test_a_writer_that_dies_with_what_is_safe_is_replaced_and_it_is_there_once(
    store: ProcessStore, reader: StoreReader, settings: Settings
) -> None:
    with Sqlite(settings.store_dir).locked():
        submitted = store.keep("a", [call("e1")])
        await submitted.safe
        os.kill(writer_of(store), SIGKILL)
    assert [item.id for item in await submitted.placed] == ["e1"]
    assert [r["id"] for r in reader.records("a", "t1")[1:]] == ["e0", "e1"]
    assert store.counters.restarts == 1


async def die_together(store: ProcessStore, settings: Settings, *drafts: Any) -> None:
    """A gateway and its writer, as soon as these are safe."""
    with Sqlite(settings.store_dir).locked():
        submitted = store.keep("a", drafts)
        submitted.placed.add_done_callback(lambda placed: placed.exception())
        await submitted.safe
        store._running = False
        os.kill(writer_of(store), SIGKILL)
        await until(lambda: store._writer is None)


async def test_what_a_crash_left_is_stored_by_the_next_start_under_the_policy_it_was_sent_under(
    store: ProcessStore, reader: StoreReader, settings: Settings, governance: Governance
) -> None:
    await die_together(store, settings, call("e1", text=f"I am {MAIL}"))
    later = Governance({"a": TenantPolicy(redaction="off")}, governance.tenant_keys)
    again = ProcessStore(settings, lambda: later)
    await again.start()
    assert [r["id"] for r in reader.records("a", "t1")[1:]] == ["e0", "e1"]
    assert MAIL.encode() not in every_byte(settings.store_dir)
    assert left(settings) == []
    assert reader.verify("a", "t1") == []
    await again.close()


async def test_what_a_power_cut_takes_from_the_log_is_in_the_journal(
    store: ProcessStore, reader: StoreReader, settings: Settings, governance: Governance
) -> None:
    """Acted: the log is what it was when it was last forced to the disk, though what came since had been read there."""
    files = [settings.store_dir / f"a.sqlite{end}" for end in ("", "-wal")]
    synced = {file: file.read_bytes() for file in files}
    for number in range(1, 6):
        await store.keep("a", [call(f"e{number}")]).placed
    assert [r["id"] for r in reader.records("a", "t1")[1:]] == [f"e{n}" for n in range(6)]
    store._running = False
    os.kill(writer_of(store), SIGKILL)
    await until(lambda: store._writer is None)
    reader.close()
    for file in settings.store_dir.glob("a.sqlite*"):
        file.unlink()
    for file, data in synced.items():
        file.write_bytes(data)
    assert [r["id"] for r in StoreReader(settings.store_dir).records("a", "t1")[1:]] == ["e0"]
    again = ProcessStore(settings, lambda: governance)
    await again.start()
    await again.close()
    found = StoreReader(settings.store_dir)
    assert [r["id"] for r in found.records("a", "t1")[1:]] == [f"e{n}" for n in range(6)]
    assert found.verify("a", "t1") == []


async def test_another_process_that_runs_on_takes_over_what_a_dead_one_left(
    store: ProcessStore, reader: StoreReader, settings: Settings, governance: Governance
) -> None:
    other = open_store(settings, Governor(lambda: governance, reader.trajectory_key))
    await other.start()
    await die_together(store, settings, call("e1"))
    await other.close_idle(["a"], "2000-01-01T00:00:00Z")
    assert [r["id"] for r in reader.records("a", "t1")[1:]] == ["e0", "e1"]
    assert left(settings) == []
    await other.close()


@pytest.mark.parametrize("why", ["no keys", "no governor"])
async def test_who_can_not_read_a_journal_leaves_it_to_who_can(
    store: ProcessStore, reader: StoreReader, settings: Settings, governance: Governance, why: str
) -> None:
    await die_together(store, settings, call("e1"))
    (path,) = left(settings)
    blind = open_store(settings, Governor(lambda: Governance(tenant_keys={})) if why == "no keys" else None)
    await blind.start()
    await blind.close()
    assert path.exists()
    sees = open_store(settings, Governor(lambda: governance, reader.trajectory_key))
    await sees.start()
    await sees.close()
    assert [r["id"] for r in reader.records("a", "t1")[1:]] == ["e0", "e1"]


async def test_what_turns_out_to_have_no_place_is_put_aside_redacted_and_told(
    store: ProcessStore, settings: Settings
) -> None:
    submitted = store.keep("a", [call("e1", text=f"I am {MAIL}", trajectory="t-unknown")])
    await submitted.safe
    with pytest.raises(InvalidDraft, match="never opened"):
        await submitted.placed
    (aside,) = settings.store_dir.glob("spool/*/a/rejected.jsonl")
    assert b"e1" in aside.read_bytes()
    assert MAIL.encode() not in aside.read_bytes()


async def test_an_erased_trajectory_is_not_in_the_journal_either(
    store: ProcessStore, settings: Settings, governance: Governance
) -> None:
    await store.keep("a", [call("e1", text=MAIL)]).placed
    await store.erase_key("a", "t1")
    assert [any(path.read_bytes()) for path in left(settings)] == [False]


async def test_what_nothing_takes_after_it_was_told_to_be_safe_is_tried_again(
    settings: Settings, governance: Governance, reader: StoreReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the log nor the spool, for a while: it stays in the journal, and its sender is told when it is placed."""
    monkeypatch.setattr(writer_process, "_OWED_S", 0.05)
    refusing = 3
    write = TenantWriter.write

    def written(self: TenantWriter, jobs: Any, journaled: bool = False) -> Any:
        nonlocal refusing
        refusing -= 1
        return [StoreUnavailable("full") for _ in jobs] if refusing >= 0 else write(self, jobs, journaled)

    monkeypatch.setattr(TenantWriter, "write", written)
    writer = open_writer(settings, Governor(lambda: governance, reader.trajectory_key))
    writer.open()
    told: list[frames.Answer] = []
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = WriterProcess(theirs, writer, InForce())
        monkeypatch.setattr(process, "_answer", told.append)
        job = frames.job(b"", frames.packed(frames.Part("a", [CONTEXT, opened(), call("e1")])))
        ours.sendall(frames.job_frame(frames.JobHead(1, 1, True), job))
        until_s = time.monotonic() + 5
        while not any(isinstance(answer, frames.Written) for answer in told) and time.monotonic() < until_s:
            process._receive()
            process._work()
            process._place_owed()
            assert jobs_in(left(settings)[0], governance) == 1
    assert [type(answer) for answer in told] == [frames.Safe, frames.Written]
    assert refusing == -1
    assert [r["id"] for r in reader.records("a", "t1")[1:]] == ["e1"]
    assert writer.settle()
    writer.close()
    assert left(settings) == []


async def test_what_a_stopped_writer_still_owes_is_left_for_the_next_start(
    settings: Settings, governance: Governance, reader: StoreReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = open_writer(settings, Governor(lambda: governance, reader.trajectory_key))
    writer.open()
    with monkeypatch.context() as patched:
        patched.setattr(TenantWriter, "write", lambda self, jobs, journaled: [StoreUnavailable("full") for _ in jobs])
        job = frames.job(b"", frames.packed(frames.Part("a", [CONTEXT, opened(), call("e1")])))
        assert writer.journal("a", job)
        (refused,) = writer.write([submission_of(job)], journaled=True)
        assert isinstance(refused, StoreUnavailable)
        with pytest.raises(StoreUnavailable, match="journal"):  # what is erased would come back
            writer.on_the_log("a", lambda log: log.erase_key("t1"))
        writer.close()
    again = open_writer(settings, Governor(lambda: governance, reader.trajectory_key))
    again.open()
    again.close()
    assert [r["id"] for r in reader.records("a", "t1")[1:]] == ["e1"]
    assert left(settings) == []


async def test_a_damaged_journal_is_put_aside_and_the_rest_of_it_is_stored(
    store: ProcessStore, reader: StoreReader, settings: Settings, governance: Governance
) -> None:
    with Sqlite(settings.store_dir).locked():
        submitted = store.keep("a", [call("e1")])
        submitted.placed.add_done_callback(lambda placed: placed.exception())
        await submitted.safe
    await submitted.placed
    await store.keep("a", [call("e2")]).placed
    store._running = False
    os.kill(writer_of(store), SIGKILL)
    await until(lambda: store._writer is None)
    (path,) = left(settings)
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(data)
    again = ProcessStore(settings, lambda: governance)
    await again.start()
    await again.close()
    assert left(settings) == []
    assert len(list(path.parent.glob("damaged-*"))) == 1
    assert [r["id"] for r in reader.records("a", "t1")[1:]] == ["e0", "e1", "e2"]
    assert orjson.dumps(reader.verify("a", "t1")) == b"[]"
