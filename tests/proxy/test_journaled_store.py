"""Who waits alone is told that its job is safe before this has its place; what follows is as if it had waited."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from signal import SIGKILL
from typing import Any

import pytest

from evoplane.settings import Settings
from registry.keyring import TenantKeys
from registry.tenant_policy import TenantPolicy
from services.proxy import writer_frames as frames
from services.proxy.drafts import InvalidDraft, StoreUnavailable
from services.proxy.engines import sqlite
from services.proxy.governor import Governor
from services.proxy.journal import journals
from services.proxy.journal_reading import Reading, heads
from services.proxy.log import TenantLog
from services.proxy.process_store import ProcessStore
from services.proxy.spool import Spool
from services.proxy.store import StoreReader, open_store
from services.proxy.writing import LogWriter, Submission, open_writer
from tests.governance.drafting import Governance, call, opened
from tests.proxy.at_rest import every_byte
from tests.proxy.backends import Sqlite
from tests.proxy.drafting import CONTEXT
from tests.proxy.test_process_store import writer_of

MAIL = "anna.berg@example.com"
ROOT = Path(__file__).resolve().parents[2]
KEY = "sk-" + "proj-" + "A1b2C3d4E5f6G7h8I9j0K1l2M3n4"


@pytest.fixture
def reader(settings: Settings) -> StoreReader:
    return StoreReader(settings.store_dir)


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
    return len(list(Reading(path.read_bytes(), governance.tenant_keys.__getitem__)))


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


async def test_work_without_a_pause_does_not_keep_what_was_captured_in_the_journal(
    store: ProcessStore, settings: Settings
) -> None:
    await store.keep("a", [call("e1")]).placed
    store.expecting = lambda: 9  # so that nothing more is journaled, and nothing fills it
    number = 0
    async with asyncio.timeout(5):
        while any(any(path.read_bytes()) for path in left(settings)):
            number += 1
            await store.append("a", [call(f"more{number}")])
            await asyncio.sleep(0.02)
    assert number > 5


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
    assert reader.verify("a", "t1") == []


# -- the writer itself, where a test can get in its way


def writer(settings: Settings, governance: Governance | None, **more: Any) -> LogWriter:
    opened = open_writer(settings, None if governance is None else Governor(lambda: governance, **more))
    opened.open()
    return opened


def job(*drafts: Any, tenant: str = "a") -> bytes:
    return frames.job(b"", frames.packed(frames.Part(tenant, list(drafts))))


def put(writer: LogWriter, *drafts: Any, tenant: str = "a") -> Any:
    return writer.write([Submission(tenant, list(drafts))])[0]


def journaled(writer: LogWriter, *drafts: Any, tenant: str = "a") -> list[Any]:
    """What its sender is told, as soon as it is."""
    told: list[Any] = []
    assert writer.journal(tenant, job(*drafts, tenant=tenant))
    writer.write_journaled(Submission(tenant, list(drafts)), told.append)
    return told


def die(writer: LogWriter) -> None:
    """As `SIGKILL` leaves it: locks gone, files as they are."""
    for each in writer._writers.values():
        each.close()
    writer._slot.close()


def ids(reader: StoreReader, trajectory: str = "t1", tenant: str = "a") -> list[str]:
    return [record["id"] for record in reader.records(tenant, trajectory)[1:]]


def full(*_: Any) -> Any:
    raise OSError(errno.ENOSPC, "No space left on device")


@contextmanager
def nothing_takes_it(writer: LogWriter, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Neither the log of tenant a nor its spool."""
    with monkeypatch.context() as patched, Sqlite(settings.store_dir).locked():
        patched.setattr(sqlite, "_BUSY_TIMEOUT_S", 0.02)
        writer._writer("a").close()
        patched.setattr(Spool, "append", full)
        yield


def recovered(writer: LogWriter) -> None:
    writer._writer("a")._next_try = 0
    writer.recover()


@pytest.mark.parametrize("between", ["a job without a place", "a job that is there"])
def test_the_journal_is_cleared_only_when_the_log_was_forced_to_the_disk(
    settings: Settings, governance: Governance, monkeypatch: pytest.MonkeyPatch, between: str
) -> None:
    """A commit with nothing to write forces nothing."""
    log = writer(settings, governance)
    put(log, CONTEXT, opened(), call("e0"))
    journaled(log, call("e1"))
    put(log, call("e0") if between == "a job that is there" else call("x", trajectory="nope"))
    synced: list[str] = []
    sync = os.fdatasync

    def noted(file: int) -> None:
        synced.append(Path(f"/proc/self/fd/{file}").readlink().name)
        sync(file)

    monkeypatch.setattr(os, "fdatasync", noted)
    log.settle()
    assert synced == ["a.sqlite-wal", "journal-1"]
    log.close()


def test_what_nothing_takes_after_it_was_told_to_be_safe_is_placed_when_something_does(
    settings: Settings, governance: Governance, reader: StoreReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before what was spooled behind it, and under the policy it was sent under."""
    log = writer(settings, governance)
    put(log, CONTEXT, opened("t0"))
    with nothing_takes_it(log, settings, monkeypatch):
        told = journaled(log, opened(), call("e1", text=f"I am {MAIL}"))
        assert told == []
        assert log.in_trouble() == {"a": "refusing"}
        log.settle()
        assert jobs_in(left(settings)[0], governance) == 1
        with pytest.raises(StoreUnavailable):  # what is erased would come back
            log.erase_key("a", "t1")
    monkeypatch.setattr(sqlite, "_BUSY_TIMEOUT_S", 0.02)
    with Sqlite(settings.store_dir).locked():
        (spooled,) = put(log, call("e2"))
        assert spooled.spooled
    governance.policies["a"] = TenantPolicy(redaction="off")
    recovered(log)
    assert [item.id for item in told[0]][-1] == "e1"
    assert ids(reader) == ["e1", "e2"]
    log.settle()
    log.close()
    assert MAIL.encode() not in every_byte(settings.store_dir)
    assert left(settings) == []


def test_what_a_stopped_writer_still_owes_is_placed_by_the_next_start_before_what_was_spooled_behind_it(
    settings: Settings, governance: Governance, reader: StoreReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = writer(settings, governance)
    put(log, CONTEXT, opened("t0"))
    with nothing_takes_it(log, settings, monkeypatch):
        assert journaled(log, opened(), call("e1")) == []
    monkeypatch.setattr(sqlite, "_BUSY_TIMEOUT_S", 0.02)
    with Sqlite(settings.store_dir).locked():
        put(log, call("e2"))
        log.close()
    blind = writer(settings, None)  # who can't read the journal leaves the spool behind it, too
    blind.close_idle([], "2000-01-01T00:00:00Z")
    blind.close()
    assert ids(reader) == []
    writer(settings, governance).close()
    assert ids(reader) == ["e1", "e2"]
    assert left(settings) == []


def test_one_tenants_trouble_keeps_no_others_jobs_in_the_journal(
    settings: Settings, governance: Governance, reader: StoreReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = writer(settings, governance)
    put(log, CONTEXT, opened(), call("e0"))
    put(log, CONTEXT, opened("u1"), call("f0", trajectory="u1"), tenant="b")
    with nothing_takes_it(log, settings, monkeypatch):
        journaled(log, call("e1"))
        assert len(journaled(log, call("f1", trajectory="u1", text=MAIL), tenant="b")) == 1
        log.erase_key("b", "u1")
        (path,) = left(settings)
        assert {head.tenant for head in heads(path.read_bytes())} == {"a"}
    recovered(log)
    log.close()
    assert ids(reader) == ["e0", "e1"]


def test_a_fault_of_ours_over_what_is_safe_puts_it_aside_redacted_and_the_writer_goes_on(
    settings: Settings, governance: Governance, reader: StoreReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = writer(settings, governance)
    put(log, CONTEXT, opened(), call("e0"))
    with monkeypatch.context() as patched:
        patched.setattr(TenantLog, "write", lambda *_: 1 / 0)
        (told,) = journaled(log, call("e1", text=MAIL))
    assert isinstance(told, InvalidDraft)
    put(log, call("e2"))
    log.close()
    assert ids(reader) == ["e0", "e2"]
    (aside,) = settings.store_dir.glob("spool/*/a/rejected.jsonl")
    assert b"e1" in aside.read_bytes()
    assert MAIL.encode() not in aside.read_bytes()


def test_nothing_is_told_to_be_safe_in_a_journal_that_was_taken_away(
    settings: Settings, governance: Governance, reader: StoreReader
) -> None:
    log = writer(settings, governance)
    journaled(log, CONTEXT, opened("t0"), call("e0", trajectory="t0"))
    shutil.rmtree(settings.store_dir)
    assert not log.journal("a", job(CONTEXT, opened(), call("e1")))
    log.close()


@pytest.mark.parametrize("stale", ["the tenant is not known yet", "its key is an older version"])
def test_who_lacks_the_key_now_leaves_the_journal_for_who_has_it(
    settings: Settings, reader: StoreReader, stale: str
) -> None:
    old, both = {1: b"1" * 32}, {1: b"1" * 32, 2: b"2" * 32}
    knows = Governance(tenant_keys={"a": TenantKeys("a", both)})
    log = writer(settings, knows)
    assert log.journal("a", job(CONTEXT, opened(), call("e1")))
    die(log)
    writer(settings, Governance(tenant_keys={} if "tenant" in stale else {"a": TenantKeys("a", old)})).close()
    writer(settings, knows).close()
    assert ids(reader) == ["e1"]


def test_what_is_recognised_in_one_entry_is_hidden_in_the_next_when_both_are_placed_after_a_crash(
    settings: Settings, governance: Governance, reader: StoreReader
) -> None:
    log = writer(settings, governance)
    assert log.journal("a", job(CONTEXT, opened(), call("e1", text="my password: 88552211-Q")))
    assert log.journal("a", job(call("e2", text="is it 88552211-Q?")))
    die(log)
    writer(settings, governance).close()
    assert ids(reader) == ["e1", "e2"]
    assert b"88552211-Q" not in every_byte(settings.store_dir)


_DIES = """
import os, sys
from evoplane.settings import Settings
from services.proxy.governor import Governor
from services.proxy.writing import open_writer
from tests.governance.drafting import Governance

protect = Governor.protect

def dies(self, tenant, drafts, ready=None):
    drafts = list(drafts)
    if "POISON" in repr(drafts):
        os.kill(os.getpid(), 9)
    return protect(self, tenant, drafts, ready)

Governor.protect = dies
governance = Governance()
opened = open_writer(Settings.model_validate({"paths": {"var": sys.argv[1]}}), Governor(lambda: governance))
opened.open()
opened.close()
"""


def test_an_entry_over_which_processes_die_is_put_aside_in_the_end_and_the_others_are_placed(
    settings: Settings, governance: Governance, reader: StoreReader
) -> None:
    log = writer(settings, governance)
    for number, text in enumerate(["hi", "POISON", "hi"]):
        assert log.journal("a", job(CONTEXT, opened(), call(f"e{number}", text=text)))
    die(log)
    command = [sys.executable, "-c", _DIES, str(settings.paths.var)]
    ended = [subprocess.run(command, check=False, cwd=ROOT).returncode for _ in range(4)]
    assert ended == [-SIGKILL, -SIGKILL, -SIGKILL, 0]
    assert ids(reader) == ["e0", "e2"]
    assert left(settings) == []
    (aside,) = settings.store_dir.glob("spool/0/damaged-*")
    ((_, entry),) = Reading(aside.read_bytes(), governance.tenant_keys.__getitem__)
    assert b"POISON" in entry.job


def test_a_log_that_is_away_while_entries_are_placed_is_no_process_that_died(
    settings: Settings, governance: Governance, reader: StoreReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = writer(settings, governance)
    put(log, CONTEXT, opened(), call("e0"))
    assert log.journal("a", job(call("e1")))
    die(log)
    monkeypatch.setattr(sqlite, "_BUSY_TIMEOUT_S", 0.02)
    with Sqlite(settings.store_dir).locked(), monkeypatch.context() as patched:
        patched.setattr(Spool, "append", full)
        for _ in range(5):
            writer(settings, governance).close()
    writer(settings, governance).close()
    assert ids(reader) == ["e0", "e1"]
    assert left(settings) == []


def test_a_log_that_is_broken_keeps_only_its_own_tenants_entries_waiting_and_takes_them_once(
    settings: Settings, governance: Governance, reader: StoreReader, caplog: pytest.LogCaptureFixture
) -> None:
    log = writer(settings, governance)
    for tenant in ("a", "b"):
        put(log, CONTEXT, opened(f"{tenant}1"), call("e0", trajectory=f"{tenant}1"), tenant=tenant)
    for number in range(1, 6):
        assert log.journal("a", job(call(f"e{number}", trajectory="a1")))
    assert log.journal("b", job(call("e1", trajectory="b1"), tenant="b"))
    die(log)
    file = settings.store_dir / "a.sqlite"
    whole = file.read_bytes()
    for each in settings.store_dir.glob("a.sqlite*"):
        each.unlink()
    file.write_bytes(b"\xff" * 5000)
    spooled = set[int]()
    for _ in range(5):
        log = writer(settings, governance)
        log.erase_key("b", "b1")
        log.close()
        spooled.add(sum(path.stat().st_size for path in settings.store_dir.glob("spool/*/a/*.jsonl")))
    assert len(spooled) == 1
    assert left(settings) == []
    assert "died over" not in caplog.text
    assert ids(reader, "b1", "b") == ["e0", "e1"]
    file.write_bytes(whole)
    writer(settings, governance).close()
    assert ids(reader, "a1") == [f"e{number}" for number in range(6)]


@pytest.mark.parametrize("why", ["nothing takes them", "the key is missing"])
def test_entries_that_have_to_wait_are_tried_for_ever_and_the_others_are_gone(
    settings: Settings, governance: Governance, reader: StoreReader, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    log = writer(settings, governance)
    for tenant in ("a", "b"):
        put(log, CONTEXT, opened(f"{tenant}1"), tenant=tenant)
        for number in range(2):
            assert log.journal(tenant, job(call(f"e{number}", trajectory=f"{tenant}1"), tenant=tenant))
    die(log)
    (path,) = left(settings)
    if why == "the key is missing":
        for _ in range(4):
            writer(settings, Governance(tenant_keys={"b": governance.tenant_keys["b"]})).close()
    else:
        with Sqlite(settings.store_dir).locked(), monkeypatch.context() as patched:
            patched.setattr(sqlite, "_BUSY_TIMEOUT_S", 0.02)
            patched.setattr(Spool, "append", full)
            for _ in range(4):
                writer(settings, governance).close()
    assert {head.tenant for head in heads(path.read_bytes())} == {"a"}
    assert ids(reader, "b1", "b") == ["e0", "e1"]
    writer(settings, governance).close()
    assert ids(reader, "a1") == ["e0", "e1"]
    assert left(settings) == []


def test_an_erasure_waits_for_what_other_processes_have_in_their_journals(
    settings: Settings, governance: Governance
) -> None:
    other = writer(settings, governance)
    put(other, CONTEXT, opened(), call("e0"))
    journaled(other, call("e1", text=MAIL))
    log = writer(settings, governance)
    with pytest.raises(StoreUnavailable, match="journal"):
        log.erase_key("a", "t1")
    clearing = threading.Timer(0.2, other.settle)
    clearing.start()
    log.erase_key("a", "t1")
    clearing.join()
    journaled(other, call("e2", text=MAIL))
    die(other)
    log.erase_key("a", "t1")  # what a dead process left is placed first
    assert left(settings) == []
    log.close()
