"""The store whose records another process writes promises the same, whatever becomes of that process."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import shutil
import socket
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from signal import SIGKILL, SIGSTOP
from typing import Any, cast

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atdp.records import Action, Outcome
from evoplane.settings import Settings
from services.proxy import process_store, writer_process
from services.proxy import writer_frames as frames
from services.proxy.drafts import InvalidDraft, SealedBlob, StoreUnavailable, TrajectoryKey
from services.proxy.engines.base import StorageFailed
from services.proxy.process_store import ProcessStore
from services.proxy.store import EventStore, StoreReader
from services.proxy.tenant_writer import StoreCounters
from services.proxy.writer_process import InForce, WriterProcess
from services.proxy.writing import LogWriter, Submission
from tests.proxy.drafting import CONTEXT, event, header, signal


@pytest.fixture
def reader(settings: Settings) -> StoreReader:
    return StoreReader(settings.store_dir)


@pytest.fixture
async def log(settings: Settings) -> AsyncIterator[ProcessStore]:
    store = ProcessStore(settings)
    await store.start()
    yield store
    await store.close()


def writer_of(store: ProcessStore) -> int:
    assert store._writer is not None
    return store._writer._process.pid


@contextlib.contextmanager
def standing_still(store: ProcessStore) -> Iterator[None]:
    """Its writer does nothing inside the block."""
    writer = psutil.Process(writer_of(store))
    writer.suspend()
    try:
        yield
    finally:
        writer.resume()


async def test_what_was_appended_is_in_the_log_in_its_order_and_verifies(
    log: ProcessStore, reader: StoreReader
) -> None:
    first = await log.append("a", [CONTEXT, header(), event("e1"), signal("n1", "event", "e1")])
    assert [item.seq for item in first] == [None, 0, 1, 2]
    assert await log.append("a", [CONTEXT, header(), event("e1"), signal("n1", "event", "e1")]) == first
    await asyncio.gather(*(log.append("a", [event(f"f{i}")]) for i in range(300)))
    assert [record["id"] for record in reader.records("a", "t1")[1:]] == ["e1", "n1", *(f"f{i}" for i in range(300))]
    assert reader.verify("a", "t1") == []
    assert log.counters.jobs == 302
    assert log.counters.commits < 60


async def test_callers_are_told_in_the_order_in_which_their_drafts_were_sent(log: ProcessStore) -> None:
    told = list[int]()
    await log.append("a", [CONTEXT, header()])
    for number in range(100):
        log.submit("a", [event(f"e{number}")]).add_done_callback(lambda _, number=number: told.append(number))
    await log.append("a", [event("last")])
    assert told == list(range(100))


@pytest.mark.parametrize(
    "odd",
    [
        pytest.param({"n": math.nan}, id="no number"),
        pytest.param({"n": 2**70}, id="more than 64 bits"),
        pytest.param({"n": 2**60}, id="more than a double holds"),
        pytest.param({"text": "\ud800"}, id="half a character"),
        pytest.param({"name\0": 1}, id="NUL in a name"),
        pytest.param({"pair": (1, b"bytes")}, id="bytes"),
        pytest.param({1: "a key that is no text"}, id="number as a key"),
        pytest.param({"set": {1}}, id="a set"),
        pytest.param({"thing": object()}, id="what nothing can encode"),
    ],
)
async def test_odd_values_fare_as_they_do_where_a_thread_writes(
    log: ProcessStore, reader: StoreReader, tmp_path: Path, odd: dict[str, Any]
) -> None:
    async def fares(store: ProcessStore | EventStore, found: StoreReader) -> Any:
        drafts = [event("e1", a=Action(name="f", arguments=odd), y=Outcome(status="ok", result=odd))]
        outcome: Any
        try:
            outcome = (await store.append("a", drafts))[0]
        except InvalidDraft:
            outcome = "refused"
        await store.append("a", [event("e2")])  # it suffers alone
        records = found.records("a", "t1")
        return outcome, [(r.get("a"), r["y"]) for r in records if r.get("id") == "e1"], found.verify("a", "t1")

    beside = EventStore(tmp_path / "beside")
    await beside.start()
    for store in (log, beside):
        await store.append("a", [CONTEXT, header()])
    expected = await fares(beside, StoreReader(tmp_path / "beside"))
    await beside.close()
    assert await fares(log, reader) == expected


async def test_what_can_not_be_encoded_is_refused_by_its_future_when_it_is_large(log: ProcessStore) -> None:
    """As a thread does it: whoever submits it is told where a record is waited for."""
    await log.append("a", [CONTEXT, header()])
    refused = await log.submit_large("a", [event("e1", text="my secret \ud800")])
    with pytest.raises(InvalidDraft, match="UnicodeEncodeError") as told:
        await refused
    assert "secret" not in str(told.value)  # it goes to the log, and nothing has redacted it


class Noting:
    """Writes nothing and notes how many jobs came together."""

    def __init__(self) -> None:
        self.counters = StoreCounters()
        self.together: list[int] = []

    def write(self, submitted: Sequence[Submission]) -> list[Any]:
        self.together.append(len(submitted))
        return [[] for _ in submitted]

    def wait_s(self) -> float | None:
        return None

    def prepare(self, begun: Submission) -> Submission:
        return begun

    def recover(self, entirely: bool = False) -> None: ...

    def settle(self) -> None: ...

    journal_due = journal_waits = False

    def in_trouble(self) -> dict[str, Any]:
        return {}


def test_of_long_jobs_that_come_together_only_some_are_answered_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """To search them all may take longer than the gateway waits for any answer."""
    monkeypatch.setattr(writer_process, "_MAX_BATCH_BYTES", 1500)
    job = frames.job(b"", frames.packed(frames.Part("a", [event("e1", text="x" * 700)])))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(b"".join(frames.job_frame(frames.JobHead(number, 1, False), job) for number in range(7)))
        ours.shutdown(socket.SHUT_WR)
        noting = Noting()
        WriterProcess(theirs, cast(LogWriter, noting), InForce()).run()
    assert noting.together == [2, 2, 2, 1]


def test_of_what_is_sent_ahead_and_never_submitted_the_writer_keeps_only_the_latest() -> None:
    parts = [frames.packed(frames.Part("a", [event(f"e{number}")])) for number in range(200)]
    ours, theirs = socket.socketpair()
    with ours, theirs:
        writer = WriterProcess(theirs, cast(LogWriter, Noting()), InForce())
        for part in parts:
            ours.sendall(frames.ahead_frame(part))
            writer._take()
    assert list(writer._ahead) == parts[-64:]


async def test_a_name_that_is_no_tenants_is_refused_and_the_writer_goes_on(log: ProcessStore) -> None:
    with pytest.raises(InvalidDraft, match="no tenant id"):
        await log.append("../a", [CONTEXT])
    assert await log.append("a", [CONTEXT])


async def test_a_writer_that_is_killed_is_replaced_and_its_jobs_are_there_once(
    log: ProcessStore, reader: StoreReader
) -> None:
    await log.append("a", [CONTEXT, header()])
    under_way = [log.submit("a", [event(f"e{number}")]) for number in range(400)]
    os.kill(writer_of(log), SIGKILL)
    under_way += [log.submit("a", [event(f"e{number}")]) for number in range(400, 500)]
    await asyncio.gather(*under_way)
    assert [record["id"] for record in reader.records("a", "t1")[1:]] == [f"e{number}" for number in range(500)]
    assert reader.verify("a", "t1") == []


async def test_a_job_over_which_writers_die_is_refused_in_the_end_and_the_next_is_not(
    log: ProcessStore, reader: StoreReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_store, "_PAUSE_S", 0.01)
    await log.append("a", [CONTEXT, header()])
    monkeypatch.setenv("EVOPLANE_FAULT", "before_commit:0")
    os.kill(writer_of(log), SIGKILL)
    with pytest.raises(StoreUnavailable, match="ended 3 times"):
        await log.append("a", [event("e1")])
    monkeypatch.delenv("EVOPLANE_FAULT")
    with contextlib.suppress(StoreUnavailable):  # the writer that is starting now may still have the fault
        await log.append("a", [event("e2")])
    await log.append("a", [event("e3")])
    assert reader.records("a", "t1")[-1]["id"] == "e3"
    assert reader.record("a", "e1") is None


async def test_while_a_writer_stands_still_no_more_than_so_many_bytes_wait_for_it(
    log: ProcessStore, reader: StoreReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_store, "_MAX_WAITING_BYTES", 100_000)
    await log.append("a", [CONTEXT, header()])
    writer = psutil.Process(writer_of(log))
    writer.suspend()
    waiting = [log.submit("a", [event(f"e{number}", text="x" * 40_000)]) for number in range(3)]
    with pytest.raises(StoreUnavailable, match="queue is full"):
        log.submit("a", [event("refused")])
    writer.resume()
    await asyncio.gather(*waiting)
    await log.append("a", [event("e3")])
    assert [record["id"] for record in reader.records("a", "t1")[1:]] == ["e0", "e1", "e2", "e3"]


async def test_without_a_writer_the_store_refuses_and_goes_on_when_there_is_one_again(
    log: ProcessStore, reader: StoreReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    await log.append("a", [CONTEXT, header()])
    monkeypatch.setattr(process_store, "_PAUSE_S", 0.05)
    monkeypatch.setattr(sys, "executable", "/nonexistent")
    os.kill(writer_of(log), SIGKILL)
    async with asyncio.timeout(10):
        while log.state_of("a") != "refusing":
            await asyncio.sleep(0.01)
    assert log.state == "refusing"
    assert "does not start" in log.counters.failure
    with pytest.raises(StoreUnavailable, match="does not start"):
        await log.append("a", [event("e1")])
    with pytest.raises(StoreUnavailable):
        await log.erase_key("a", "t1")
    assert await log.close_idle(["a"], "2100-01-01T00:00:00Z") == {}
    monkeypatch.undo()
    async with asyncio.timeout(20):
        while log.state != "ok":
            await asyncio.sleep(0.01)
    await log.append("a", [event("e2")])
    assert [record["id"] for record in reader.records("a", "t1")[1:]] == ["e2"]


async def test_a_store_that_cannot_be_opened_says_so_and_leaves_no_process(settings: Settings) -> None:
    settings.store_dir.parent.mkdir(parents=True, exist_ok=True)
    settings.store_dir.write_text("a file where the store should be")
    before = set(psutil.Process().children())
    with pytest.raises((OSError, StorageFailed)):
        await ProcessStore(settings).start()
    assert set(psutil.Process().children()) <= before


async def test_closing_writes_what_was_sent(settings: Settings, reader: StoreReader) -> None:
    store = ProcessStore(settings)
    await store.start()
    sent = [store.submit("a", [CONTEXT, header(), event(f"e{number}")]) for number in range(200)]
    await store.close()
    assert all(len(each.result()) == 3 for each in sent)
    assert len(reader.records("a", "t1")) == 201
    with pytest.raises(StoreUnavailable, match="not running"):
        await store.append("a", [event("late")])


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a tenant one job is sent at a time."""
    monkeypatch.setattr(process_store, "_WINDOW_BYTES", 1)


async def test_a_tenant_is_told_before_all_that_another_has_sent_is_written(narrow: None, log: ProcessStore) -> None:
    for tenant in "ab":
        await log.append(tenant, [CONTEXT, header()])
    told = list[str]()
    with standing_still(log):
        for name in (*(f"a{number}" for number in range(50)), "b"):
            log.submit(name[0], [event(name)]).add_done_callback(lambda _, name=name: told.append(name))
        await asyncio.sleep(0.05)
    await log.append("a", [event("last")])
    assert told.index("b") < 5
    assert [name for name in told if name != "b"] == [f"a{number}" for number in range(50)]


async def test_what_waits_for_its_turn_when_the_writer_dies_is_sent_to_the_next_in_its_order(
    narrow: None, log: ProcessStore, reader: StoreReader
) -> None:
    await log.append("a", [CONTEXT, header()])
    sent = [log.submit("a", [event(f"e{number}")]) for number in range(30)]
    await sent[3]
    os.kill(writer_of(log), SIGKILL)
    await asyncio.gather(*sent)
    assert [record["id"] for record in reader.records("a", "t1")[1:]] == [f"e{number}" for number in range(30)]


async def test_no_writers_death_counts_against_a_job_that_it_had_not_been_sent(
    narrow: None, log: ProcessStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_store, "_PAUSE_S", 0.01)
    await log.append("a", [CONTEXT, header()])
    monkeypatch.setenv("EVOPLANE_FAULT", "before_commit:0")
    os.kill(writer_of(log), SIGKILL)
    fatal, innocent = log.submit("a", [event("e1")]), log.submit("a", [event("e2")])
    with pytest.raises(StoreUnavailable, match="ended 3 times"):
        await fatal
    monkeypatch.delenv("EVOPLANE_FAULT")
    assert [item.seq for item in await innocent] == [1]


async def test_an_erasure_comes_behind_what_was_submitted_before_it(
    narrow: None, log: ProcessStore, reader: StoreReader
) -> None:
    key = TrajectoryKey("t1", 1, b"key")
    await log.append("a", [CONTEXT, header(), key])
    for number in range(10):
        log.submit("a", [SealedBlob(f"b{number}", "t1", b"sealed"), event(f"e{number}")])
    await log.erase_key("a", "t1")
    assert reader.record("a", "e9") is not None
    assert [reader.sealed("a", f"b{number}") for number in range(10)] == [None] * 10


async def test_closing_writes_what_waits_for_its_turn_too(
    narrow: None, settings: Settings, reader: StoreReader
) -> None:
    store = ProcessStore(settings)
    await store.start()
    sent = [store.submit("a", [CONTEXT, header(), event(f"e{number}")]) for number in range(20)]
    await store.close()
    assert all(len(each.result()) == 3 for each in sent)


async def test_a_signal_to_the_gateways_group_does_not_reach_its_writer(log: ProcessStore) -> None:
    assert os.getpgid(writer_of(log)) != os.getpgid(0)


async def test_a_writer_whose_gateway_is_gone_before_it_is_ready_ends_without_a_word(settings: Settings) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        writer = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "services.proxy.writer_process", str(theirs.fileno())),
            pass_fds=(theirs.fileno(),),
            stderr=asyncio.subprocess.PIPE,
        )
    with ours:
        ours.sendall(frames.frame(frames.Open(settings.model_dump(mode="json", include={"paths", "store"}))))
    _, said = await writer.communicate()
    assert (writer.returncode, said) == (0, b"")


async def test_closing_while_a_writer_starts_waits_for_nothing_but_that_it_ends(log: ProcessStore) -> None:
    os.kill(writer_of(log), SIGKILL)
    async with asyncio.timeout(20):
        while log._writer is not None:
            await asyncio.sleep(0.01)
        await asyncio.sleep(process_store._PAUSE_S + 0.1)  # it is on its way and has not read its first order
        await log.close()


async def test_a_writer_that_hangs_is_replaced_and_until_then_nothing_more_is_taken(
    settings: Settings, reader: StoreReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_store, "_SLOW_S", 0.3)
    monkeypatch.setattr(process_store, "_SILENT_S", 2.0)
    monkeypatch.setattr(process_store, "_LOOK_S", 0.1)
    log = ProcessStore(settings)
    await log.start()
    await log.append("a", [CONTEXT, header()])
    hung = writer_of(log)
    os.kill(hung, SIGSTOP)
    waits = log.submit("a", [event("e1")])
    async with asyncio.timeout(20):
        while log.state_of("a") != "refusing":
            await asyncio.sleep(0.01)
        assert "answered nothing" in log.counters.failure
        with pytest.raises(StoreUnavailable, match="answered nothing"):
            await log.append("a", [event("e2")])
        assert (await waits)[0].seq == 1
    assert writer_of(log) != hung
    assert log.state == "ok"
    await log.append("a", [event("e3")])
    await log.close()
    assert [record["id"] for record in reader.records("a", "t1")[1:]] == ["e1", "e3"]


async def test_trouble_and_its_end_are_told_without_being_asked(log: ProcessStore, settings: Settings) -> None:
    await log.append("a", [CONTEXT, header()])
    psutil.Process(writer_of(log)).rlimit(psutil.RLIMIT_FSIZE, (4096, -1))
    with pytest.raises(StoreUnavailable):
        for number in range(20):
            await log.append("a", [event(f"e{number}", text=os.urandom(5000).hex())])
    assert log.state_of("a") == "refusing"
    assert log.state_of("b") == "ok"
    psutil.Process(writer_of(log)).rlimit(psutil.RLIMIT_FSIZE, (-1, -1))
    async with asyncio.timeout(10):
        while log.state_of("a") != "ok":
            await asyncio.sleep(0.01)


async def test_idle_trajectories_are_closed_and_keys_erased_by_the_process_that_writes(
    log: ProcessStore, reader: StoreReader
) -> None:
    key, blob = TrajectoryKey("t1", 1, b"key"), SealedBlob("b1", "t1", b"sealed")
    await log.append("a", [CONTEXT, header(), key, blob, event("e1")])
    assert await log.close_idle(["a", "nobody"], "2100-01-01T00:00:00Z") == {"a": ["t1"]}
    await log.erase_key("a", "t1")
    assert reader.sealed("a", "b1") is None
    with pytest.raises(StoreUnavailable, match="no tenant id"):
        await log.erase_key("../a", "t1")


@given(st.lists(st.integers(0, 300), max_size=8), st.data())
def test_a_stream_cut_anywhere_is_the_same_frames(sizes: list[int], data: st.DataObject) -> None:
    health = frames.Health(StoreCounters(), {})
    heads = [frames.JobHead(n, n + 1, bool(n % 2)) for n in range(len(sizes))]
    whole = [frames.job_frame(head, bytes(size)) for head, size in zip(heads, sizes, strict=True)]
    whole.append(frames.frame(health))
    stream = b"".join(whole)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    reading, found = frames.Frames(), []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += [(kind, bytes(body)) for kind, body in reading.feed(stream[start:end])]
    jobs = [frames.job_of(memoryview(body)) for _, body in found[:-1]]
    assert [(head, len(job)) for head, job in jobs] == list(zip(heads, sizes, strict=True))
    assert frames.answer_of(memoryview(found[-1][1])) == health


def test_a_stream_that_is_none_of_ours_is_refused() -> None:
    with pytest.raises(ValueError, match="damaged"):
        frames.Frames().feed(b"\xff" * 64)


async def test_a_store_directory_that_is_taken_away_ends_no_writer_that_closes_idle_trajectories(
    log: ProcessStore, settings: Settings
) -> None:
    await log.append("a", [CONTEXT, header()])
    writer = writer_of(log)
    shutil.rmtree(settings.store_dir)
    assert not any((await log.close_idle(["a"], "2100-01-01T00:00:00Z")).values())
    assert writer_of(log) == writer
    assert log.counters.restarts == 0
