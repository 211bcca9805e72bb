"""Imports: idempotent, as the tenant's own, beside a gateway that writes the same store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import orjson
import pytest

from atdp import convert
from atdp.convert.base import Item
from atdp.eligibility import eligible
from atdp.records import EventDraft, Outcome
from services.proxy import importing
from services.proxy.drafts import InvalidDraft, Stored, StoreDraft
from services.proxy.exporting import Selection
from services.proxy.store import EventStore, StoreReader
from tests.proxy.drafting import CONTEXT, event, header


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[EventStore]:
    opened = EventStore(tmp_path)
    await opened.start()
    yield opened
    await opened.close()


def conversation(text: str = "hi") -> list[dict[str, Any]]:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    return [
        {"role": "user", "content": text},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "x" * 3000},
        {"role": "assistant", "content": "done"},
    ]


def lines(*texts: str) -> bytes:
    tools = [{"type": "function", "function": {"name": "f"}}]
    return b"".join(orjson.dumps({"messages": conversation(text), "tools": tools}) + b"\n" for text in texts)


def items(data: bytes, format: str = "openai-sft") -> Iterator[Item]:
    return convert.get(format).read(data, convert.ReadOptions("a", "file.jsonl")).records


async def import_(store: importing.Appends, *sources: Iterable[Item], train: str = "pending") -> importing.Imported:
    job = importing.Import(store, "acme", "a", train)
    for source in sources:
        await job.take(source)
    return await job.finish()


async def test_what_was_imported_verifies_and_is_there_once_however_often_it_is_imported(
    store: EventStore, tmp_path: Path
) -> None:
    first = await import_(store, items(lines("one", "two")))
    before = StoreReader(tmp_path).trajectories("acme")
    second = await import_(store, items(lines("one", "two")))
    reader = StoreReader(tmp_path)
    assert (first.trajectories, first.records) == (second.trajectories, second.records) == (2, 8)
    assert reader.trajectories("acme") == before
    assert [reader.verify("acme", row.trajectory_id) for row in before] == [[], []]


async def test_an_imported_call_reads_as_it_was_in_the_source(store: EventStore, tmp_path: Path) -> None:
    await import_(store, items(lines("one")))
    reader = StoreReader(tmp_path)
    records = reader.records("acme", reader.trajectories("acme")[0].trajectory_id)
    last = [record for record in records if record.get("kind") == "llm_call"][-1]
    roles = [message["role"] for message in reader.resolve("acme", last)["o"]["messages"]]
    assert roles == ["user", "assistant", "tool"]
    assert reader.tools("acme", last["ctx"])[0]["function"]["name"] == "f"


@pytest.mark.parametrize("train", ["pending", "allow", "deny"])
async def test_the_tenants_policy_says_whether_imports_train(store: EventStore, tmp_path: Path, train: str) -> None:
    await import_(store, items(lines("one")), train=train)
    reader = StoreReader(tmp_path)
    gov = reader.records("acme", reader.trajectories("acme")[0].trajectory_id)[0]["gov"]
    assert gov["tenant"] == "acme"
    assert gov["eligibility"]["train"] == train
    assert gov["eligibility"]["cross_tenant"] == "deny"


async def test_what_the_source_denies_stays_denied(store: EventStore, tmp_path: Path) -> None:
    records = [msgspec.to_builtins(item) for item in (CONTEXT, header("t9"), event("e9", "t9"))]
    records[1]["gov"]["eligibility"] = {"train": "deny"}
    await import_(store, items(b"".join(orjson.dumps(r) + b"\n" for r in records), "atdp"), train="allow")
    gov = StoreReader(tmp_path).records("acme", "t9")[0]["gov"]
    assert gov["eligibility"]["train"] == "deny"


async def test_imported_calls_are_no_champions_traffic(store: EventStore, tmp_path: Path) -> None:
    await import_(store, items(lines("one")))
    reader = StoreReader(tmp_path)
    records = reader.records("acme", reader.trajectories("acme")[0].trajectory_id)
    assert {r["m"]["tags"]["role"] for r in records if r.get("kind") == "llm_call"} == {"imported"}


TARGET = "0194432c-0000-7000-8000-000000000001"
EPISODE = "0194432c-0000-7000-8000-000000000002"


def inference() -> bytes:
    return orjson.dumps(
        {
            "id": TARGET,
            "episode_id": EPISODE,
            "function_name": "f",
            "variant_name": "v",
            "input": '{"messages": []}',
            "output": '[{"type": "text", "text": "yo"}]',
        }
    )


def feedback(id: int, target: str) -> bytes:
    row = {"id": f"0194432c-0000-7000-8000-00000000010{id}", "target_id": target, "metric_name": "good", "value": 1.0}
    return orjson.dumps(row)


async def test_feedback_finds_its_call_or_its_episode_whatever_the_order_of_the_files(
    store: EventStore, tmp_path: Path
) -> None:
    rows = feedback(1, TARGET) + b"\n" + feedback(2, EPISODE)
    done = await import_(store, items(rows, "tensorzero"), items(inference(), "tensorzero"))
    reader = StoreReader(tmp_path)
    records = reader.records("acme", reader.trajectories("acme")[0].trajectory_id)
    targets = [record["targets"][0] for record in records if record["record"] == "annotation"]
    assert ["event_id" in target for target in targets] == [True, False]
    assert done.waiting == 0


async def test_feedback_whose_target_came_with_an_earlier_import_is_bound(store: EventStore, tmp_path: Path) -> None:
    await import_(store, items(inference(), "tensorzero"))
    done = await import_(store, items(feedback(1, TARGET) + b"\n" + feedback(2, EPISODE), "tensorzero"))
    assert (done.records, done.waiting) == (2, 0)
    assert StoreReader(tmp_path).trajectories("acme")[0].events == 3


async def test_feedback_without_a_target_waits_for_it(store: EventStore, tmp_path: Path) -> None:
    done = await import_(store, items(feedback(1, TARGET), "tensorzero"))
    assert done.waiting == 1
    await import_(store, items(inference(), "tensorzero"))
    assert StoreReader(tmp_path).trajectories("acme")[0].events == 2


class Picky:
    """Refuses one trajectory, as a store does with drafts it can't place."""

    def __init__(self, store: EventStore, refused: str) -> None:
        self._store, self._refused = store, refused

    async def append(self, tenant: str, drafts: Iterable[StoreDraft]) -> list[Stored]:
        given = list(drafts)
        if any(getattr(draft, "trajectory_id", None) == self._refused for draft in given):
            raise InvalidDraft(f"{self._refused}: no")
        return await self._store.append(tenant, given)


async def test_a_trajectory_that_is_refused_does_not_take_others_with_it(store: EventStore, tmp_path: Path) -> None:
    ids = [item.trajectory_id for item in items(lines("one", "two")) if type(item).__name__ == "TrajectoryDraft"]  # type: ignore[union-attr]
    done = await import_(Picky(store, ids[0]), items(lines("one", "two")))
    assert done.refused == [f"{ids[0]}: no"]
    assert [row.trajectory_id for row in StoreReader(tmp_path).trajectories("acme")] == ids[1:]


async def test_an_import_and_a_gateway_write_the_same_store_at_once(store: EventStore, tmp_path: Path) -> None:
    gateway = EventStore(tmp_path)
    await gateway.start()
    await gateway.append("acme", [CONTEXT, header("live")])

    async def serve() -> None:
        for number in range(40):
            await gateway.append("acme", [event(f"live{number}", "live")])

    serving = asyncio.create_task(serve())
    done = await import_(store, items(lines(*map(str, range(60)))))
    await serving
    assert gateway.state == "ok"
    await gateway.close()
    reader = StoreReader(tmp_path)
    assert done.trajectories == 60
    rows = {row.trajectory_id: row for row in reader.trajectories("acme")}
    assert rows["live"].events == 40
    assert all(reader.verify("acme", id) == [] for id in rows)


def gov(**eligibility: str) -> dict[str, Any]:
    return {"record": "trajectory", "gov": {"eligibility": eligibility}}


def patch(**eligibility: str) -> dict[str, Any]:
    time = "2026-01-01T00:00:00.000Z"
    return {
        "record": "annotation",
        "kind": "governance",
        "id": "n",
        "time": time,
        "patch": {"eligibility": eligibility},
    }


@pytest.mark.parametrize(
    ("records", "purpose", "may"),
    [
        ([gov(train="allow")], "train", True),
        ([gov(train="pending")], "train", False),
        ([gov()], "train", False),
        ([gov()], "debug", True),
        ([gov(debug="deny")], "debug", False),
        ([gov(train="pending"), patch(train="allow")], "train", True),
        ([gov(train="allow"), patch(train="deny")], "train", False),
        ([gov(train="deny"), patch(train="allow")], "train", False),
    ],
)
def test_deny_wins_and_training_needs_an_allow(records: list[dict[str, Any]], purpose: str, may: bool) -> None:
    assert eligible(records, purpose) is may


async def test_only_what_may_be_used_for_a_purpose_leaves_and_the_rest_is_counted(
    store: EventStore, tmp_path: Path
) -> None:
    await import_(store, items(lines("one")))
    selection = Selection(StoreReader(tmp_path), ["acme"], None, None, "train")
    assert list(selection.records(whole=True)) == []
    assert selection.withheld == 1
    debugging = Selection(StoreReader(tmp_path), ["acme"], None, "openai-sft", "debug")
    records = list(debugging.records(whole=True))
    assert [record["record"] for record in records[:2]] == ["context", "trajectory"]
    assert "x" * 3000 in str(records)
    assert list(Selection(StoreReader(tmp_path), ["acme"], None, "atif", "debug").records(whole=True)) == []


@pytest.mark.parametrize(("purpose", "answers"), [("train", 1), ("debug", 2)])
async def test_an_answer_that_broke_off_is_in_nothing_that_is_trained_on(
    store: EventStore, tmp_path: Path, purpose: str, answers: int
) -> None:
    def some() -> Iterator[Item]:
        calls = 0
        for item in items(lines("one")):
            if isinstance(item, EventDraft) and item.kind == "llm_call":
                calls += 1
                if calls == 2:
                    item = msgspec.structs.replace(item, y=Outcome(status="cancelled"))
            yield item

    await import_(store, some(), train="allow")
    selection = Selection(StoreReader(tmp_path), ["acme"], None, None, purpose)
    calls = [record for record in selection.records(whole=True) if record.get("kind") == "llm_call"]
    assert (len(calls), selection.broken_off) == (answers, 2 - answers)


async def test_an_import_into_either_database_verifies_and_is_there_once(log: EventStore, reader: StoreReader) -> None:
    for _ in range(2):
        await import_(log, items(lines("one", "two")))
    rows = reader.trajectories("acme")
    assert [row.events for row in rows] == [4, 4]
    assert [reader.verify("acme", row.trajectory_id) for row in rows] == [[], []]
