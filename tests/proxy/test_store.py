"""The event store keeps what it said it keeps, in order, once, per tenant."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from pathlib import Path
from typing import Any

import orjson
import pytest

from atdp.records import Action, Outcome
from services.proxy import parts
from services.proxy.drafts import Content, InvalidDraft
from services.proxy.engines.sqlite import SqliteEngine
from services.proxy.store import EventStore, StoreReader, _Queued
from services.proxy.writing import Submission
from tests.proxy.backends import Backend, store_of
from tests.proxy.drafting import CONTEXT, event, header, signal


async def test_what_was_appended_can_be_read_by_another_reader_and_verifies(
    log: EventStore, reader: StoreReader
) -> None:
    stored = await log.append("a", [CONTEXT, header(), event("e1"), event("e2")])
    assert [item.seq for item in stored] == [None, 0, 1, 2]
    assert [record["seq"] for record in reader.records("a", "t1")] == [0, 1, 2]
    assert reader.verify("a", "t1") == []
    assert reader.find_event("e2") == ("a", "t1")
    assert reader.contexts("a", CONTEXT.id)["body"] == {"harness": {"name": "support"}}


async def test_concurrent_appends_share_commits_and_leave_no_gap(log: EventStore, reader: StoreReader) -> None:
    await log.append("a", [CONTEXT, header()])
    before = log.counters.commits
    await asyncio.gather(*(log.append("a", [event(f"e{i}")]) for i in range(300)))
    assert log.counters.commits - before < 30
    records = reader.records("a", "t1")
    assert [record["id"] for record in records[1:]] == [f"e{i}" for i in range(300)]
    assert reader.verify("a", "t1") == []


async def test_appending_the_same_drafts_again_changes_nothing(log: EventStore, reader: StoreReader) -> None:
    drafts = [CONTEXT, header(), event("e1"), signal("n1", "event", "e1")]
    first = await log.append("a", drafts)
    second = await log.append("a", drafts)
    assert first == second
    assert len(reader.records("a", "t1")) == 3


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
    log: EventStore, reader: StoreReader, kind: str, target: str
) -> None:
    (early,) = await log.append("a", [signal("n1", kind, target)])
    (again,) = await log.append("a", [signal("n1", kind, target)])
    assert not early.bound
    assert not again.bound
    await log.append("a", [CONTEXT, header(), event("e1")])
    annotations = [r for r in reader.records("a", "t1") if r["record"] == "annotation"]
    assert [(a["id"], a["trajectory_id"]) for a in annotations] == [("n1", "t1")]
    assert annotations[0]["targets"][0].get("event_id") == ("e1" if kind == "event" else None)
    assert reader.verify("a", "t1") == []


async def test_a_waiting_signal_survives_a_restart(backend: Backend, reader: StoreReader) -> None:
    first = store_of(backend)
    await first.start()
    await first.append("a", [signal("n1", "event", "e1")])
    await first.close()
    second = store_of(backend)
    await second.start()
    await second.append("a", [CONTEXT, header(), event("e1")])
    await second.close()
    assert [r.get("id") for r in reader.records("a", "t1")] == [None, "e1", "n1"]


async def test_a_signal_long_after_the_end_still_lands(log: EventStore, reader: StoreReader) -> None:
    await log.append("a", [CONTEXT, header(), event("e1"), signal("n1", "trajectory", "t1", "resolved")])
    assert reader.trajectories("a")[0].closed == "outcome"
    (late,) = await log.append("a", [signal("n2", "event", "e1", "ticket_reopened")])
    assert late.bound
    assert late.seq == 3


async def test_tenants_share_nothing(log: EventStore, reader: StoreReader) -> None:
    await log.append("a", [CONTEXT, header(), event("e1", text="s" * 5000)])
    (foreign,) = await log.append("b", [signal("n1", "event", "e1")])
    ref = parts.references(reader.records("a", "t1"))[0]
    assert not foreign.bound
    assert reader.part("a", ref) == b"s" * 5000
    with pytest.raises(KeyError):
        reader.part("b", ref)
    assert reader.records("b", "t1") == []
    assert reader.events("support", tenant="b")[0] == []
    assert reader.record("b", "e1") is None


async def test_a_tenant_id_that_is_a_path_is_refused(log: EventStore) -> None:
    with pytest.raises(InvalidDraft, match="no tenant id"):
        await log.append("../other", [CONTEXT])


async def test_large_content_is_stored_once_and_comes_back(log: EventStore, reader: StoreReader) -> None:
    text = "x" * 100_000
    await log.append("a", [CONTEXT, header(), event("e1", text=text), event("e2", text=text)])
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
    log: EventStore, reader: StoreReader, given: dict[str, Any]
) -> None:
    text = orjson.dumps(given).decode()
    action = Action(name="t", arguments=given, params=given)
    await log.append("a", [CONTEXT, header(), event("e1", a=action, y=Outcome(status="ok", result=[given, text]))])
    assert reader.verify("a", "t1") == []
    whole = reader.resolve("a", reader.records("a", "t1")[1])
    assert (whole["a"]["arguments"], whole["a"]["params"]) == (given, given)
    assert whole["y"]["result"] == [given, text]


async def test_content_inside_content_that_is_kept_apart_comes_back(log: EventStore, reader: StoreReader) -> None:
    given = {str(index): "v" * 3000 for index in range(40)}
    await log.append("a", [CONTEXT, header(), event("e1", ext={"x": given})])
    assert reader.resolve("a", reader.records("a", "t1")[1])["ext"]["x"] == given


async def test_events_are_read_on_from_a_cursor_across_tenants(log: EventStore, reader: StoreReader) -> None:
    for index in range(6):
        tenant = "ab"[index % 2]
        await log.append(tenant, [CONTEXT, header(), event(f"{tenant}{index}")])
    first, cursor = reader.events("support", limit=4)
    rest, end = reader.events("support", after=cursor)
    assert [record["id"] for _, record in first + rest] == ["a0", "b1", "a2", "b3", "a4", "b5"]
    assert reader.events("support", after=end) == ([], end)
    assert reader.events("support", kinds=["reward"])[0] == []
    assert reader.events("other")[0] == []


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM records WHERE id='e1'",
        "DELETE FROM records WHERE id='e2'",
        "UPDATE records SET body = {hi_to_ho} WHERE id='e1'",
        "UPDATE records SET body = {garbled} WHERE id='e1'",
        "UPDATE contexts SET body = {no_context}",
        "UPDATE parts SET packed = 1 - packed",
        "DELETE FROM parts",
    ],
)
async def test_verify_finds_what_was_changed_behind_the_stores_back(
    log: EventStore, backend: Backend, reader: StoreReader, damage: str
) -> None:
    await log.append("a", [CONTEXT, header(), event("e1"), event("e2", text="y" * 5000)])
    assert reader.verify("a", "t1") == []
    record = reader.record("a", "e1")
    altered = orjson.dumps(record).replace(b'"hi"', b'"ho"')
    changes = {
        "hi_to_ho": backend.literal(altered),
        "garbled": backend.literal(b"\x01" + altered),
        "no_context": backend.literal(b'{"body":{}}'),
    }
    backend.damage("a", damage.format(**changes))
    assert reader.verify("a", "t1") != []


async def test_verify_takes_what_is_written_meanwhile_for_no_alteration(
    log: EventStore, reader: StoreReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    await log.append("a", [CONTEXT, header(), event("e1")])
    loop = asyncio.get_running_loop()
    reading = StoreReader._readable

    def while_writing(self: StoreReader, tenant: str, trajectory_id: str) -> Any:
        asyncio.run_coroutine_threadsafe(log.append("a", [event("e2")]), loop).result(5)
        return reading(self, tenant, trajectory_id)

    monkeypatch.setattr(StoreReader, "_readable", while_writing)
    assert await asyncio.to_thread(reader.verify, "a", "t1") == []


async def test_an_integer_that_json_cannot_hold_does_not_lose_the_event(log: EventStore, reader: StoreReader) -> None:
    await log.append("a", [CONTEXT, header(), event("e1", ext={"seed": 2**60})])
    assert reader.records("a", "t1")[1]["ext"] == {"seed": str(2**60)}


async def test_a_draft_that_has_no_json_is_refused_alone_and_the_writer_goes_on(
    log: EventStore, reader: StoreReader
) -> None:
    await log.append("a", [CONTEXT, header()])
    bad, good = await asyncio.gather(
        log.append("a", [event("bad", ext={"x": object()})]),
        log.append("a", [event("good")]),
        return_exceptions=True,
    )
    assert isinstance(bad, InvalidDraft)
    assert not isinstance(good, BaseException)
    assert [r.get("id") for r in reader.records("a", "t1")] == [None, "good"]
    assert log.state == "ok"


async def test_in_a_crowd_too_an_id_that_is_no_unicode_is_refused_alone(log: EventStore, reader: StoreReader) -> None:
    await log.append("a", [CONTEXT, header()])
    ids = [f"e{n}" for n in range(40)]
    told = await asyncio.gather(*(log.append("a", [event(id)]) for id in (*ids, "e\ud800")), return_exceptions=True)
    assert [type(each) for each in told] == [list] * 40 + [InvalidDraft]
    assert [r.get("id") for r in reader.records("a", "t1")] == [None, *ids]


async def test_idle_trajectories_close_and_later_records_still_land(log: EventStore, reader: StoreReader) -> None:
    await log.append("a", [CONTEXT, header(), event("e1")])
    assert await log.close_idle(["a"], "2000-01-01T00:00:00.000Z") == {"a": []}
    assert await log.close_idle(["a"], "2999-01-01T00:00:00.000Z") == {"a": ["t1"]}
    assert reader.trajectories("a")[0].closed == "idle"
    await log.append("a", [signal("n1", "trajectory", "t1", "resolved")])
    assert reader.trajectories("a")[0].closed == "outcome"


async def test_looking_for_idle_trajectories_does_not_read_those_that_have_ended(tmp_path: Path) -> None:
    SqliteEngine(tmp_path).writing("a").close()
    with sqlite3.connect(tmp_path / "a.sqlite") as connection:
        plan = connection.execute(
            "EXPLAIN QUERY PLAN UPDATE trajectories SET closed='idle' WHERE closed IS NULL AND last_at<?"
            " RETURNING trajectory_id",
            ("2000",),
        ).fetchall()
    assert "trajectories_open" in plan[0][-1]


async def test_contents_can_be_kept_by_themselves(log: EventStore, reader: StoreReader) -> None:
    (stored,) = await log.append("a", [Content("application/json", b"{}")])
    assert reader.part("a", stored.id) == b"{}"


async def test_work_that_nobody_waits_for_any_more_does_not_end_the_writer(
    log: EventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await log.append("a", [CONTEXT, header()])
    reader = log._writer._reader
    tenants = reader.tenants
    monkeypatch.setattr(reader, "tenants", lambda: time.sleep(0.2) or tenants())
    for _ in range(2):  # one that is under way when it is given up, and one that has not begun
        closing = asyncio.create_task(log.close_idle(["a"], "2000-01-01T00:00:00Z"))
        await asyncio.sleep(0.01)
        closing.cancel()
    assert len(await log.append("a", [event("e1")])) == 1


async def test_callers_are_told_in_the_order_in_which_their_drafts_were_stored(log: EventStore) -> None:
    loop, told = asyncio.get_running_loop(), list[int]()
    commits = (
        [_Queued(loop.create_future(), [], submission=Submission("a", [])) for _ in range(n)] for n in (40, 3, 20)
    )
    for number, waiting in enumerate(each for commit in commits for each in _tell_of(log, commit)):
        waiting.future.add_done_callback(lambda _, number=number: told.append(number))
        last = waiting.future
    await last
    await asyncio.sleep(0)
    assert told == list(range(63))


def _tell_of(log: EventStore, commit: list[_Queued]) -> list[_Queued]:
    log._tell(commit)
    return commit


async def test_what_is_opened_again_and_is_there_already_goes_on_where_it_was(
    log: EventStore, backend: Backend, reader: StoreReader
) -> None:
    await log.append("a", [CONTEXT, header(), event("e1")])
    other = store_of(backend)  # knows nothing of what the first has written
    await other.start()
    stored = await asyncio.gather(
        other.append("a", [event("e2")]),
        other.append("a", [header(), event("e1"), event("e3")]),
        other.append("a", [header("t2", "s2"), event("f1", "t2"), signal("n1", "event", "e1")]),
    )
    await other.close()
    assert [[item.seq for item in each] for each in stored] == [[2], [0, 1, 3], [0, 1, 4]]
    assert [record.get("id") for record in reader.records("a", "t1")] == [None, "e1", "e2", "e3", "n1"]
    assert reader.verify("a", "t1") == reader.verify("a", "t2") == []


async def test_a_signal_that_waited_for_an_event_is_bound_when_its_trajectory_is_opened(
    log: EventStore, reader: StoreReader
) -> None:
    (waits,) = await log.append("a", [signal("n1", "event", "e1")])
    assert not waits.bound
    await log.append("a", [CONTEXT, header(), event("e1")])
    assert [record.get("id") for record in reader.records("a", "t1")] == [None, "e1", "n1"]


async def test_what_goes_on_in_a_trajectory_is_stored_though_a_job_that_opens_it_again_is_no_good(
    log: EventStore, backend: Backend, reader: StoreReader
) -> None:
    await log.append("a", [CONTEXT, header(), event("e1")])
    other = store_of(backend)  # knows nothing of what the first has written
    await other.start()
    bad, good = await asyncio.gather(
        other.append("a", [header(), event("e\0")]), other.append("a", [event("e2")]), return_exceptions=True
    )
    await other.close()
    assert isinstance(bad, InvalidDraft)
    assert isinstance(good, list)
    assert [record.get("id") for record in reader.records("a", "t1")] == [None, "e1", "e2"]


async def test_a_signal_is_bound_though_a_later_transaction_of_the_same_batch_opens_its_trajectory_again(
    log: EventStore, backend: Backend, reader: StoreReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    await log.append("a", [CONTEXT, header(), event("e1")])
    monkeypatch.setattr("services.proxy.log._MAX_TRANSACTION_BYTES", 1)
    other = store_of(backend)  # knows nothing of what the first has written
    await other.start()
    stored = await asyncio.gather(
        other.append("a", [header("t2", "s2"), signal("n1", "trajectory", "t1")]),
        other.append("a", [header(), event("e1"), event("e2")]),
    )
    await other.close()
    assert [[item.seq for item in each] for each in stored] == [[0, 2], [0, 1, 3]]
    assert [record.get("id") for record in reader.records("a", "t1")] == [None, "e1", "n1", "e2"]
