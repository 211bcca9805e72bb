"""From a real gateway's log to a job: what of one tenant, and what that is sealed, can the job of another read?"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from evaluators.dataset import NONE_HELD_OUT
from flows import row_sets, snapshot
from flows.row_sets import Wanted
from registry import tenants
from services.proxy.reader import StoreReader
from tests.gateway.conftest import MODEL, Running, running, upstream, user  # noqa: F401  (fixtures)

CARD = "4111 1111 1111 1111"
SECRETS = ("Zanzibar merger", CARD)


@pytest.fixture
async def told(running: Running) -> Running:  # noqa: F811
    """Both tenants' agents worked: plainly, on something private, and with a card number in it; all went well."""
    for tenant in ("northwind", "lumen"):
        tenants.create_tenant(running.connection, tenant, train="allow")
    await running.wait_for_control()
    for tenant, private in (("northwind", "our own plans"), ("lumen", "the Zanzibar merger")):
        for said in ("Is it open today?", f"Tell me about {private}.", f"Charge {CARD} please."):
            answer = await running.chat([user(said)], key=tenant)
            outcome = {"event_id": answer.headers["x-evoplane-event-id"], "name": "resolved", "value": 1}
            assert (await running.feedback(outcome, key=tenant)).status == 202
    await asyncio.sleep(0.2)
    return running


async def test_the_job_of_one_tenant_reads_nothing_of_another_and_nothing_sealed(told: Running, tmp_path: Path) -> None:
    taken = await asyncio.to_thread(snapshot.take, told.settings, "support")
    assert taken.tenants == ("lumen", "northwind")
    wanted = Wanted(kind="rft", tenants=["northwind"], versions=[MODEL])
    job = tmp_path / "job"
    job.mkdir()

    report = row_sets.build(snapshot.entries(Path(taken.path)), wanted, NONE_HELD_OUT, job)

    assert report["dropped"]["another tenant's"] == 3
    assert report["dropped"]["its tokens are sealed"] == 1
    assert report["train"] >= 1
    readable = b"".join(file.read_bytes() for file in job.iterdir()) + json.dumps(report).encode()
    assert b"lumen" not in readable
    whole = b"".join(file.read_bytes() for file in Path(taken.path).iterdir())
    for secret in SECRETS:
        assert secret.encode() not in readable
    assert CARD.encode() not in whole, "not even the snapshot holds what is sealed"


async def test_a_snapshot_reads_each_call_of_a_conversation_once_and_not_once_for_every_later_one(
    running: Running,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    history = []
    turns = 12
    for n in range(turns):
        history.append(user(f"Question {n}?"))
        answer = await running.chat(history)
        history.append((await answer.json())["choices"][0]["message"])
    outcome = {"event_id": answer.headers["x-evoplane-event-id"], "name": "resolved", "value": 1}
    assert (await running.feedback(outcome)).status == 202
    await asyncio.sleep(0.2)
    read: list[str] = []
    whole = StoreReader._whole
    monkeypatch.setattr(StoreReader, "_whole", lambda self, tenant, id: read.append(id) or whole(self, tenant, id))

    assert await asyncio.to_thread(snapshot.write, running.settings, "support", tmp_path) == {"northwind": 1}

    assert len(read) <= 2 * turns, "at most the call before it, for its messages and for its tokens"
    (entry,) = snapshot.entries(tmp_path)
    assert [len(case.messages) for case in entry.cases] == [2 * n + 1 for n in range(turns)]
