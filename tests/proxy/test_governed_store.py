"""What captures reach the process that writes is redacted and sealed there, whatever becomes of it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from signal import SIGKILL, SIGSTOP
from typing import Any

import pytest

from evoplane.settings import Settings
from registry.tenant_policy import Dictionary, TenantPolicy
from services.proxy.drafts import Content
from services.proxy.engines import sqlite
from services.proxy.governor import Governor
from services.proxy.process_store import ProcessStore
from services.proxy.protection import Blocked
from services.proxy.sealing import Sealer
from services.proxy.store import StoreReader, open_store
from tests.governance.drafting import Governance, call, opened
from tests.proxy.at_rest import every_byte
from tests.proxy.backends import Sqlite
from tests.proxy.drafting import CONTEXT
from tests.proxy.test_process_store import writer_of

MAIL = "anna.berg@example.com"
NIGHTFALL = Dictionary(name="project", terms=("nightfall",))


@pytest.fixture
def reader(settings: Settings) -> StoreReader:
    return StoreReader(settings.store_dir)


@pytest.fixture
async def store(settings: Settings, reader: StoreReader, governance: Governance) -> AsyncIterator[ProcessStore]:
    store = ProcessStore(settings, lambda: governance)
    await store.start()
    yield store
    await store.close()


def asked(reader: StoreReader, id: str) -> str:
    record = reader.record("a", id)
    assert record is not None
    return str(record["o"]["messages"][0]["parts"][0]["content"])


def originals(reader: StoreReader, governance: Governance, id: str, trajectory: str = "t1") -> list[str]:
    """What was sealed of an event."""
    record, key = reader.record("a", id), reader.trajectory_key("a", trajectory)
    assert record is not None
    assert key is not None
    blob = reader.sealed("a", record["ext"]["sealed"]["sealed"])
    assert blob is not None
    sealer = Sealer(trajectory, governance.tenant_keys["a"].unwrap(trajectory, *key))
    return list(sealer.open(record["ext"]["sealed"], blob).values())


def changed(governance: Governance, **policy: Any) -> Governance:
    return Governance({"a": TenantPolicy(**policy)}, governance.tenant_keys)


async def test_drafts_are_redacted_and_sealed_and_answered_one_by_one(
    store: ProcessStore, reader: StoreReader, governance: Governance, settings: Settings
) -> None:
    stored = await store.append("a", [CONTEXT, opened(), call("e1", text=f"I am {MAIL}"), call("e2")])
    assert [item.seq for item in stored] == [None, 0, 1, 2]
    large = await (await store.submit_large("a", [call("e3", text=f"I am {MAIL}")]))
    assert [item.id for item in large][-1] == "e3"
    await store.close()
    assert MAIL.encode() not in every_byte(settings.store_dir)
    assert originals(reader, governance, "e1") == originals(reader, governance, "e3") == [MAIL]


@pytest.mark.parametrize("begun", ["here", "apart"])
async def test_a_trajectory_is_one_though_some_of_it_is_redacted_apart(
    store: ProcessStore, reader: StoreReader, governance: Governance, settings: Settings, begun: str
) -> None:
    """Its originals have one key, its ids are sealed once something was hidden, what was recognised stays hidden."""

    async def append(place: str, *drafts: Any) -> None:
        await (store.append("a", drafts) if place == "here" else await store.submit_large("a", drafts))

    password = "88552211-Q"
    other = "apart" if begun == "here" else "here"
    await append(begun, CONTEXT, opened(), call("e0"))
    await append(other, call("e1", text=f"I am {MAIL}, my password: {password}"))
    await append(begun, call("e2", text=f"is it {password}?"))
    await append(begun, call("e3", text=f"I am {MAIL}, again"))
    await append(other, call("e4", text=f"I am {MAIL}, again"))
    await store.close()
    assert password.encode() not in every_byte(settings.store_dir)
    assert reader.verify("a", "t1") == []
    for id in ("e1", "e3", "e4"):
        assert originals(reader, governance, id) == [MAIL]
    first, *later = [record["tokens"] for record in reader.records("a", "t1")[1:]]
    assert first["prompt_token_ids"] == [1, 2, 3]
    assert not [tokens for tokens in later if isinstance(tokens["prompt_token_ids"], list)]


async def test_what_was_redacted_apart_while_its_writer_died_opens_with_the_key_of_its_trajectory(
    store: ProcessStore, reader: StoreReader, governance: Governance
) -> None:
    await store.append("a", [CONTEXT, opened(time="2026-01-01T00:00:00.000Z"), call("e0")])
    under_way = [store.submit("a", [call("e1", text=f"I am {MAIL}")])]
    under_way.append(await store.submit_large("a", [call("e2", text=f"I am {MAIL}")]))
    os.kill(writer_of(store), SIGKILL)
    under_way.append(await store.submit_large("a", [call("e3", text=f"I am {MAIL}")]))
    await asyncio.gather(*under_way, store.append("a", [call("e4", text=f"I am {MAIL}")]))
    await store.close()
    for id in ("e1", "e2", "e3", "e4"):
        assert originals(reader, governance, id) == [MAIL]


async def test_a_policy_holds_for_what_is_sent_after_it_changed(
    settings: Settings, reader: StoreReader, governance: Governance
) -> None:
    now = governance
    store = ProcessStore(settings, lambda: now)
    await store.start()
    before = store.submit("a", [CONTEXT, opened(), call("e1", text="about nightfall")])
    now = changed(governance, dictionaries=(NIGHTFALL,))
    after = store.submit("a", [call("e2", text="about nightfall")])
    now = changed(governance, on_failure="block")
    await asyncio.gather(before, after, store.append("a", [call("e3", text="about nightfall")]))
    await store.close()
    assert [asked(reader, id) == "about nightfall" for id in ("e1", "e2", "e3")] == [True, False, True]


async def test_what_could_not_be_redacted_is_refused_alone_where_its_tenant_wants_that(
    settings: Settings, reader: StoreReader, governance: Governance
) -> None:
    keyless = Governance({"a": TenantPolicy(on_failure="block")}, {"b": governance.tenant_keys["b"]})
    store = ProcessStore(settings, lambda: keyless)
    await store.start()
    refused = store.submit("a", [CONTEXT, opened(), call(text=MAIL)])
    told = store.submit("c", [CONTEXT, opened("t2"), call("e2", text=MAIL, trajectory="t2")])
    await store.append("b", [CONTEXT, opened("t3"), call("e3", trajectory="t3")])
    with pytest.raises(Blocked, match="redaction failed"):
        await refused
    await told
    await store.close()
    assert MAIL.encode() not in every_byte(settings.store_dir)
    record = reader.record("c", "e2")
    assert record is not None
    assert record["gov"]["eligibility"] == {"train": "deny"}


async def test_what_a_replaced_writer_seals_opens_with_the_key_of_its_predecessor(
    store: ProcessStore, reader: StoreReader, governance: Governance, settings: Settings
) -> None:
    await store.append("a", [CONTEXT, opened(), call("e0", text=f"I am {MAIL}")])
    under_way = [store.submit("a", [opened(), call(f"e{n}", text=f"I am {MAIL}")]) for n in range(1, 60)]
    os.kill(writer_of(store), SIGKILL)
    await asyncio.gather(*under_way, store.append("a", [call("last", text=f"I am {MAIL}")]))
    await store.close()
    assert MAIL.encode() not in every_byte(settings.store_dir)
    assert reader.verify("a", "t1") == []
    for id in ("e0", "e1", "e59", "last"):
        assert originals(reader, governance, id) == [MAIL]


async def test_what_two_writers_sealed_into_the_spool_has_one_key_when_a_third_one_opens_it(
    settings: Settings, reader: StoreReader, governance: Governance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "_BUSY_TIMEOUT_S", 0.02)
    late = Governance(tenant_keys={})
    writers = [open_store(settings, Governor(lambda it=it: it, reader.trajectory_key)) for it in (governance, late)]
    await writers[0].start()
    await writers[0].append("a", [CONTEXT, opened(), call("e0")])
    with Sqlite(settings.store_dir).locked():
        await writers[0].append("a", [call("e1", text=f"I am {MAIL}")])
        await writers[0].close()
        await writers[1].start()  # without keys: it can't read what the first one made
        late.tenant_keys = governance.tenant_keys
        await writers[1].append("a", [call("e2", text=f"I am {MAIL}")])
        await writers[1].close()
    third = ProcessStore(settings, lambda: governance)
    await third.start()
    await third.close()
    assert originals(reader, governance, "e1") == originals(reader, governance, "e2") == [MAIL]


@pytest.mark.parametrize("answer", ["hello", f"write to {MAIL}"])
async def test_a_job_whose_beginning_was_prepared_is_stored_like_any_other(
    store: ProcessStore, reader: StoreReader, settings: Settings, answer: str
) -> None:
    first = [CONTEXT, Content("text/plain", b"a tool"), opened(), call("e0", text="my order", kind="user_message")]
    assert store.idle
    ahead = store.prepare("a", first)
    assert ahead is not None
    stored = await store.submit("a", [*first, call("e1", answer=answer)], ahead)
    assert [item.seq for item in stored] == [None, None, 0, 1, 2]
    # what was prepared, but is not what the job begins with, is not stored
    other = store.prepare("a", [call("e2", text="not this")])
    await store.submit("a", [call("e3", text="but this")], other)
    os.kill(writer_of(store), SIGKILL)
    again = store.prepare("a", late := [call("e4", text="made for one that is gone")])
    await store.submit("a", [*late, call("e5")], again)
    await store.close()
    assert [record.get("id") for record in reader.records("a", "t1")[1:]] == ["e0", "e1", "e3", "e4", "e5"]
    assert reader.verify("a", "t1") == []
    assert MAIL.encode() not in every_byte(settings.store_dir)


async def test_a_job_is_stored_whether_or_not_what_was_prepared_of_it_was_pushed_out(
    store: ProcessStore, reader: StoreReader
) -> None:
    await store.append("a", [CONTEXT, opened()])
    aheads = [(drafts, store.prepare("a", drafts)) for drafts in ([call(f"e{n}")] for n in range(300))]
    for drafts, ahead in (aheads[0], aheads[-1]):
        await store.submit("a", drafts, ahead)
    assert [record.get("id") for record in reader.records("a", "t1")[1:]] == ["e0", "e299"]


async def test_what_a_replaced_writer_is_given_again_is_stored_under_the_policy_it_was_sent_under(
    settings: Settings, reader: StoreReader, governance: Governance
) -> None:
    now = governance
    store = ProcessStore(settings, lambda: now)
    await store.start()
    await store.append("a", [CONTEXT, opened()])
    os.kill(writer_of(store), SIGSTOP)
    before = store.submit("a", [call("e1", text=f"I am {MAIL}")])
    now = changed(governance, redaction="off")
    after = store.submit("a", [call("e2", text=f"I am {MAIL}")])
    os.kill(writer_of(store), SIGKILL)
    await asyncio.gather(before, after, store.append("a", [call("e3", text=f"I am {MAIL}")]))
    await store.close()
    assert [MAIL in asked(reader, id) for id in ("e1", "e2", "e3")] == [False, True, True]
