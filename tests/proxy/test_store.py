"""The event store keeps what it said it keeps, in order, once, per tenant."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from atdp.records import Action, Outcome
from services.proxy import parts, spool, store, tables
from services.proxy.drafts import Content, InvalidDraft, StoreUnavailable
from services.proxy.log import TenantLog
from services.proxy.store import EventStore, StoreReader
from tests.proxy.drafting import CONTEXT, event, header, signal


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[EventStore]:
    opened = EventStore(tmp_path)
    await opened.start()
    yield opened
    await opened.close()


async def test_what_was_appended_can_be_read_by_another_reader_and_verifies(log: EventStore, tmp_path: Path) -> None:
    stored = await log.append("a", [CONTEXT, header(), event("e1"), event("e2")])
    reader = StoreReader(tmp_path)
    assert [item.seq for item in stored] == [None, 0, 1, 2]
    assert [record["seq"] for record in reader.records("a", "t1")] == [0, 1, 2]
    assert reader.verify("a", "t1") == []
    assert reader.find_event("e2") == ("a", "t1")
    assert reader.contexts("a", CONTEXT.id)["body"] == {"harness": {"name": "support"}}


async def test_concurrent_appends_share_commits_and_leave_no_gap(log: EventStore, tmp_path: Path) -> None:
    await log.append("a", [CONTEXT, header()])
    before = log.counters.commits
    await asyncio.gather(*(log.append("a", [event(f"e{i}")]) for i in range(300)))
    assert log.counters.commits - before < 30
    records = StoreReader(tmp_path).records("a", "t1")
    assert [record["id"] for record in records[1:]] == [f"e{i}" for i in range(300)]
    assert StoreReader(tmp_path).verify("a", "t1") == []


async def test_appending_the_same_drafts_again_changes_nothing(log: EventStore, tmp_path: Path) -> None:
    drafts = [CONTEXT, header(), event("e1"), signal("n1", "event", "e1")]
    first = await log.append("a", drafts)
    second = await log.append("a", drafts)
    assert first == second
    assert len(StoreReader(tmp_path).records("a", "t1")) == 3


async def test_an_event_of_a_trajectory_that_was_never_opened_is_refused_alone(log: EventStore) -> None:
    results = await asyncio.gather(
        log.append("a", [event("lost", "nowhere")]),
        log.append("a", [CONTEXT, header(), event("kept")]),
        return_exceptions=True,
    )
    assert isinstance(results[0], InvalidDraft)
    assert not isinstance(results[1], BaseException)


@pytest.mark.parametrize(("kind", "target"), [("event", "e1"), ("trajectory", "t1"), ("session", "s1")])
async def test_a_signal_before_its_target_waits_and_binds(
    log: EventStore, tmp_path: Path, kind: str, target: str
) -> None:
    (early,) = await log.append("a", [signal("n1", kind, target)])
    (again,) = await log.append("a", [signal("n1", kind, target)])
    assert not early.bound
    assert not again.bound
    await log.append("a", [CONTEXT, header(), event("e1")])
    annotations = [r for r in StoreReader(tmp_path).records("a", "t1") if r["record"] == "annotation"]
    assert [(a["id"], a["trajectory_id"]) for a in annotations] == [("n1", "t1")]
    assert annotations[0]["targets"][0].get("event_id") == ("e1" if kind == "event" else None)
    assert StoreReader(tmp_path).verify("a", "t1") == []


async def test_a_waiting_signal_survives_a_restart(tmp_path: Path) -> None:
    first = EventStore(tmp_path)
    await first.start()
    await first.append("a", [signal("n1", "event", "e1")])
    await first.close()
    second = EventStore(tmp_path)
    await second.start()
    await second.append("a", [CONTEXT, header(), event("e1")])
    await second.close()
    assert [r.get("id") for r in StoreReader(tmp_path).records("a", "t1")] == [None, "e1", "n1"]


async def test_a_signal_long_after_the_end_still_lands(log: EventStore, tmp_path: Path) -> None:
    await log.append("a", [CONTEXT, header(), event("e1"), signal("n1", "trajectory", "t1", "resolved")])
    assert StoreReader(tmp_path).trajectories("a")[0].closed == "outcome"
    (late,) = await log.append("a", [signal("n2", "event", "e1", "ticket_reopened")])
    assert late.bound
    assert late.seq == 3


async def test_tenants_share_nothing(log: EventStore, tmp_path: Path) -> None:
    await log.append("a", [CONTEXT, header(), event("e1", text="s" * 5000)])
    (foreign,) = await log.append("b", [signal("n1", "event", "e1")])
    reader = StoreReader(tmp_path)
    ref = parts.references(reader.records("a", "t1"))[0]
    assert not foreign.bound
    assert reader.part("a", ref) == b"s" * 5000
    with pytest.raises(KeyError):
        reader.part("b", ref)
    assert reader.records("b", "t1") == []
    assert reader.events("support", tenant="b")[0] == []
    assert reader.record("b", "e1") is None


async def test_a_tenant_id_that_is_a_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no tenant id"):
        tables.database(tmp_path, "../other")


async def test_large_content_is_stored_once_and_comes_back(log: EventStore, tmp_path: Path) -> None:
    text = "x" * 100_000
    await log.append("a", [CONTEXT, header(), event("e1", text=text), event("e2", text=text)])
    reader = StoreReader(tmp_path)
    records = reader.records("a", "t1")[1:]
    assert all(len(str(record)) < 2000 for record in records)
    assert len(set(parts.references(records))) == 1
    assert reader.resolve("a", records[1])["o"]["messages"][0]["parts"][0]["content"] == text


LOOKALIKES: list[Any] = [
    {"ref": {}, "bytes": 1, "media_type": "x"},
    {"ref": "sha256:" + "0" * 64, "bytes": 1, "media_type": "text/plain"},
    {"ref": "a", "bytes": 1, "media_type": "b", "deep": {"ref": [], "bytes": None, "media_type": None}},
]


@pytest.mark.parametrize("given", [*LOOKALIKES, {"filler": ["w" * 40] * 100, "x": LOOKALIKES[0]}])
async def test_what_a_client_sent_in_the_form_of_a_stand_in_comes_back_as_it_was(
    log: EventStore, tmp_path: Path, given: dict[str, Any]
) -> None:
    text = orjson.dumps(given).decode()
    action = Action(name="t", arguments=given, params=given)
    await log.append("a", [CONTEXT, header(), event("e1", a=action, y=Outcome(status="ok", result=[given, text]))])
    reader = StoreReader(tmp_path)
    assert reader.verify("a", "t1") == []
    whole = reader.resolve("a", reader.records("a", "t1")[1])
    assert (whole["a"]["arguments"], whole["a"]["params"]) == (given, given)
    assert whole["y"]["result"] == [given, text]


async def test_content_inside_content_that_is_kept_apart_comes_back(log: EventStore, tmp_path: Path) -> None:
    given = {str(index): "v" * 3000 for index in range(40)}
    await log.append("a", [CONTEXT, header(), event("e1", ext={"x": given})])
    reader = StoreReader(tmp_path)
    assert reader.resolve("a", reader.records("a", "t1")[1])["ext"]["x"] == given


async def test_events_are_read_on_from_a_cursor_across_tenants(log: EventStore, tmp_path: Path) -> None:
    for index in range(6):
        tenant = "ab"[index % 2]
        await log.append(tenant, [CONTEXT, header(), event(f"{tenant}{index}")])
    reader = StoreReader(tmp_path)
    first, cursor = reader.events("support", limit=4)
    rest, end = reader.events("support", after=cursor)
    assert [record["id"] for _, record in first + rest] == ["a0", "b1", "a2", "b3", "a4", "b5"]
    assert reader.events("support", after=end) == ([], end)
    assert reader.events("support", kinds=["reward"])[0] == []
    assert reader.events("other")[0] == []


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE records SET body = replace(body, 'hi', 'ho') WHERE id='e1'",
        "DELETE FROM records WHERE id='e1'",
        "DELETE FROM records WHERE id='e2'",
        "UPDATE contexts SET body = replace(body, 'support', 'another')",
        "DELETE FROM parts",
    ],
)
async def test_verify_finds_what_was_changed_behind_the_stores_back(tmp_path: Path, damage: str) -> None:
    opened = EventStore(tmp_path)
    await opened.start()
    await opened.append("a", [CONTEXT, header(), event("e1"), event("e2", text="y" * 5000)])
    await opened.close()
    assert StoreReader(tmp_path).verify("a", "t1") == []
    with sqlite3.connect(tmp_path / "a.sqlite") as connection:
        connection.execute(damage)
    assert StoreReader(tmp_path).verify("a", "t1") != []


async def test_verify_takes_what_is_written_meanwhile_for_no_alteration(
    log: EventStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await log.append("a", [CONTEXT, header(), event("e1")])
    loop = asyncio.get_running_loop()
    reading = StoreReader.records

    def while_writing(self: StoreReader, tenant: str, trajectory_id: str) -> list[dict[str, Any]]:
        asyncio.run_coroutine_threadsafe(log.append("a", [event("e2")]), loop).result(5)
        return reading(self, tenant, trajectory_id)

    monkeypatch.setattr(StoreReader, "records", while_writing)
    assert await asyncio.to_thread(StoreReader(tmp_path).verify, "a", "t1") == []


async def test_an_integer_that_json_cannot_hold_does_not_lose_the_event(log: EventStore, tmp_path: Path) -> None:
    await log.append("a", [CONTEXT, header(), event("e1", ext={"seed": 2**60})])
    assert StoreReader(tmp_path).records("a", "t1")[1]["ext"] == {"seed": str(2**60)}


async def test_a_draft_that_has_no_json_is_refused_alone_and_the_writer_goes_on(
    log: EventStore, tmp_path: Path
) -> None:
    await log.append("a", [CONTEXT, header()])
    bad, good = await asyncio.gather(
        log.append("a", [event("bad", ext={"x": object()})]),
        log.append("a", [event("good")]),
        return_exceptions=True,
    )
    assert isinstance(bad, InvalidDraft)
    assert not isinstance(good, BaseException)
    assert [r.get("id") for r in StoreReader(tmp_path).records("a", "t1")] == [None, "good"]
    assert log.state == "ok"


async def test_idle_trajectories_close_and_later_records_still_land(log: EventStore, tmp_path: Path) -> None:
    await log.append("a", [CONTEXT, header(), event("e1")])
    assert await log.close_idle(["a"], "2000-01-01T00:00:00.000Z") == {"a": []}
    assert await log.close_idle(["a"], "2999-01-01T00:00:00.000Z") == {"a": ["t1"]}
    assert StoreReader(tmp_path).trajectories("a")[0].closed == "idle"
    await log.append("a", [signal("n1", "trajectory", "t1", "resolved")])
    assert StoreReader(tmp_path).trajectories("a")[0].closed == "outcome"


async def test_looking_for_idle_trajectories_does_not_read_those_that_have_ended(
    log: EventStore, tmp_path: Path
) -> None:
    await log.append("a", [CONTEXT, header()])
    with sqlite3.connect(tmp_path / "a.sqlite") as connection:
        plan = connection.execute(
            "EXPLAIN QUERY PLAN UPDATE trajectories SET closed='idle' WHERE closed IS NULL AND last_at<?"
            " RETURNING trajectory_id",
            ("2000",),
        ).fetchall()
    assert "trajectories_open" in plan[0][-1]


async def test_contents_can_be_kept_by_themselves(log: EventStore, tmp_path: Path) -> None:
    (stored,) = await log.append("a", [Content("application/json", b"{}")])
    assert StoreReader(tmp_path).part("a", stored.id) == b"{}"


# -- when the disk says no


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_BUSY_TIMEOUT_S", 0.02)
    monkeypatch.setattr(store, "_RETRY_S", 0.05)


class Locked:
    """Holds the tenant's database so that nobody else can write."""

    def __init__(self, root: Path, tenant: str = "a") -> None:
        self._connection = sqlite3.connect(root / f"{tenant}.sqlite", isolation_level=None)
        self._connection.execute("BEGIN IMMEDIATE")

    def release(self) -> None:
        self._connection.execute("ROLLBACK")
        self._connection.close()


async def until_ok(opened: EventStore) -> None:
    async with asyncio.timeout(5):
        while opened.state != "ok":
            await asyncio.sleep(0.01)


@pytest.mark.usefixtures("impatient")
async def test_while_the_store_cannot_commit_drafts_wait_in_the_spool_in_order(log: EventStore, tmp_path: Path) -> None:
    await log.append("a", [CONTEXT, header(), event("e0")])
    locked = Locked(tmp_path)
    receipts = [(await log.append("a", [event(f"e{index}")]))[0] for index in range(1, 6)]
    assert all(receipt.spooled for receipt in receipts)
    assert log.state == "spooling"
    locked.release()
    await until_ok(log)
    await log.append("a", [event("e6")])
    records = StoreReader(tmp_path).records("a", "t1")
    assert [record["id"] for record in records[1:]] == [f"e{index}" for index in range(7)]
    assert StoreReader(tmp_path).verify("a", "t1") == []
    assert (tmp_path / "spool.jsonl").stat().st_size == 0


@pytest.mark.usefixtures("impatient")
async def test_a_spool_that_was_left_by_a_crash_is_drained_at_the_next_start(tmp_path: Path) -> None:
    first = EventStore(tmp_path)
    await first.start()
    await first.append("a", [CONTEXT, header(), event("e0")])
    locked = Locked(tmp_path)
    await first.append("a", [event("e1")])
    left = (tmp_path / "spool.jsonl").read_bytes()
    await first.close()
    locked.release()
    (tmp_path / "spool.jsonl").write_bytes(left + b"1234abcd {cut sho")
    second = EventStore(tmp_path)
    await second.start()
    await until_ok(second)
    await second.close()
    assert [r.get("id") for r in StoreReader(tmp_path).records("a", "t1")] == [None, "e0", "e1"]


@pytest.mark.usefixtures("impatient")
async def test_when_the_spool_is_full_too_nothing_is_acknowledged(tmp_path: Path) -> None:
    opened = EventStore(tmp_path, spool_bytes=1500)
    await opened.start()
    await opened.append("a", [CONTEXT, header(), event("e0")])
    locked = Locked(tmp_path)
    acknowledged, refused = ["e0"], 0
    for index in range(1, 12):
        try:
            await opened.append("a", [event(f"e{index}")])
            acknowledged.append(f"e{index}")
        except StoreUnavailable:
            refused += 1
    assert refused
    assert opened.state == "refusing"
    locked.release()
    await until_ok(opened)
    await opened.append("a", [event("after")])
    await opened.close()
    assert [r["id"] for r in StoreReader(tmp_path).records("a", "t1")[1:]] == [*acknowledged, "after"]


@pytest.mark.usefixtures("impatient")
async def test_a_full_disk_loses_nothing_that_was_acknowledged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opening = tables.open_for_writing
    pages = {"limit": 40}

    def limited(root: Path, tenant: str) -> sqlite3.Connection:
        connection = opening(root, tenant)
        connection.execute(f"PRAGMA max_page_count={pages['limit']}")
        return connection

    monkeypatch.setattr(tables, "open_for_writing", limited)
    opened = EventStore(tmp_path, spool_bytes=200_000)
    await opened.start()
    await opened.append("a", [CONTEXT, header()])
    acknowledged, refused = [], 0
    for index in range(60):
        try:
            await opened.append("a", [event(f"e{index}", text=f"{index}" * 4000)])
            acknowledged.append(f"e{index}")
        except StoreUnavailable:
            refused += 1
    assert refused
    assert opened.counters.spooled
    pages["limit"] = 1_000_000
    await until_ok(opened)
    await opened.close()
    reader = StoreReader(tmp_path)
    assert [r["id"] for r in reader.records("a", "t1")[1:]] == acknowledged
    assert reader.verify("a", "t1") == []


@pytest.mark.usefixtures("impatient")
async def test_a_job_that_could_not_be_read_back_from_the_spool_is_refused_alone(
    log: EventStore, tmp_path: Path
) -> None:
    await log.append("a", [CONTEXT, header()])
    locked = Locked(tmp_path)
    negative, opaque, good = await asyncio.gather(
        log.append("a", [event("negative", duration_ms=-1)]),
        log.append("a", [event("opaque", ext={"x": object()})]),
        log.append("a", [event("good")]),
        return_exceptions=True,
    )
    locked.release()
    await until_ok(log)
    assert isinstance(negative, InvalidDraft)
    assert isinstance(opaque, InvalidDraft)
    assert not isinstance(good, BaseException)
    assert [r.get("id") for r in StoreReader(tmp_path).records("a", "t1")] == [None, "good"]


@pytest.mark.usefixtures("impatient")
async def test_what_the_spool_had_and_the_store_will_not_take_is_put_aside(log: EventStore, tmp_path: Path) -> None:
    await log.append("a", [CONTEXT, header()])
    locked = Locked(tmp_path)
    await asyncio.gather(log.append("a", [event("lost", "nowhere")]), log.append("a", [event("good")]))
    unreadable = spool._line(b'{"tenant": 1}')
    with (tmp_path / "spool.jsonl").open("ab") as file:
        file.write(unreadable)
    locked.release()
    await until_ok(log)
    assert [r.get("id") for r in StoreReader(tmp_path).records("a", "t1")] == [None, "good"]
    aside = (tmp_path / "spool.rejected.jsonl").read_bytes().splitlines(keepends=True)
    assert unreadable in aside
    assert any(b'"lost"' in line for line in aside)
    assert (tmp_path / "spool.jsonl").stat().st_size == 0


def test_a_spool_line_is_all_or_nothing(tmp_path: Path) -> None:
    path = tmp_path / "spool"
    first = spool.Spool(path)
    first.append([spool.Job("a", [event("e1")]), spool.Job("a", [event("e2")])])
    first.close()
    whole = path.read_bytes()
    for cut in (len(whole) - 1, len(whole) - 30, len(whole) // 2 + 5):
        path.write_bytes(whole[:cut])
        again = spool.Spool(path)
        assert [job.drafts[0].id for job in again.jobs()] in (["e1"], [])
        again.append([spool.Job("a", [event("e3")])])
        assert [job.drafts[0].id for job in again.jobs()][-1] == "e3"
        again.close()


def test_the_probe_fails_when_the_database_is_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_BUSY_TIMEOUT_S", 0.02)
    opened = TenantLog(tmp_path, "a")
    opened.probe()
    locked = Locked(tmp_path)
    with pytest.raises(sqlite3.OperationalError):
        opened.probe()
    locked.release()
    opened.probe()
    opened.close()
