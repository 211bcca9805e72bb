"""Sealed content goes with its key, large content goes to the blob store, and chains verify all the same."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from services.proxy import parts
from services.proxy.blobs import Blobs
from services.proxy.drafts import SealedBlob, StoreUnavailable, TrajectoryKey
from services.proxy.engines.sqlite import SqliteEngine
from services.proxy.store import EventStore, StoreReader
from tests.proxy.backends import Backend, reader_of, store_of
from tests.proxy.drafting import CONTEXT, event, header


async def test_sealed_content_and_keys_come_back_for_their_tenant_alone(log: EventStore, reader: StoreReader) -> None:
    drafts = [TrajectoryKey("t1", 1, b"\x00wrapped"), SealedBlob("s1", "t1", b"\xffcipher")]
    await log.append("a", [CONTEXT, header(), *drafts, event("e1")])
    await log.append("a", [TrajectoryKey("t1", 2, b"another"), SealedBlob("s1", "t1", b"another")])
    await log.append("b", [CONTEXT, header()])
    assert reader.sealed("a", "s1") == b"\xffcipher"
    assert reader.trajectory_key("a", "t1") == (1, b"\x00wrapped")
    assert reader.sealed("b", "s1") is None
    assert reader.trajectory_key("b", "t1") is None


async def test_an_erased_key_stays_erased_and_the_chain_verifies(log: EventStore, reader: StoreReader) -> None:
    drafts = [TrajectoryKey("t1", 1, b"key"), SealedBlob("s1", "t1", b"one"), SealedBlob("s2", "t2", b"two")]
    await log.append("a", [CONTEXT, header(), *drafts, event("e1")])
    await log.erase_key("a", "t1")
    await log.append("a", [TrajectoryKey("t1", 1, b"key"), event("e2")])
    assert reader.trajectory_key("a", "t1") is None
    assert (reader.sealed("a", "s1"), reader.sealed("a", "s2")) == (None, b"two")
    assert reader.verify("a", "t1") == []


async def test_an_erased_key_is_in_no_file_of_the_store(tmp_path: Path) -> None:
    opened = EventStore(tmp_path)
    await opened.start()
    key = b"this-key-must-not-be-found-again"
    await opened.append("a", [CONTEXT, header(), TrajectoryKey("t1", 1, key), SealedBlob("s1", "t1", key)])
    assert any(key in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    await opened.erase_key("a", "t1")
    assert not any(key in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    await opened.close()


async def test_keys_are_wrapped_anew_and_erased_ones_are_left(log: EventStore, reader: StoreReader) -> None:
    await log.append("a", [TrajectoryKey(f"t{number}", 1, b"%d" % number) for number in range(453)])
    await log.erase_key("a", "t1")
    assert await log.rewrap("a", 2, lambda id, version, wrapped: b"%d:" % version + wrapped) == 452
    assert reader.trajectory_key("a", "t2") == (2, b"1:2")
    assert reader.trajectory_key("a", "t1") is None
    assert await log.rewrap("a", 2, lambda *_: b"") == 0


async def test_no_key_is_erased_while_drafts_wait_in_the_spool(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.proxy.engines.sqlite._BUSY_TIMEOUT_S", 0.02)
    monkeypatch.setattr("services.proxy.engines.postgres._LOCK_TIMEOUT_MS", 20)
    opened = store_of(backend)
    await opened.start()
    await opened.append("a", [CONTEXT, header()])
    with backend.locked():
        await opened.append("a", [TrajectoryKey("t1", 1, b"key")])
        with pytest.raises(StoreUnavailable, match="spooling"):
            await opened.erase_key("a", "t1")
    await opened.close()


async def test_large_content_is_a_blob_and_small_content_a_row(backend: Backend) -> None:
    blobs = Blobs(str(backend.root / "blobs"), inline_bytes=10_000)
    opened = store_of(backend, blobs=blobs)
    await opened.start()
    large, small = "large " * 5000, "small " * 1000
    await opened.append("a", [CONTEXT, header(), event("e1", text=large), event("e2", text=small)])
    await opened.append("b", [CONTEXT, header(), event("e1", text=large)])
    (path, _) = sorted(path for path in (backend.root / "blobs").rglob("*") if path.is_file())
    assert path.read_text() == large
    reader = reader_of(backend)
    (record, _) = reader.records("a", "t1")[1:]
    assert reader.resolve("a", record)["o"]["messages"][0]["parts"][0]["content"] == large
    assert reader.verify("a", "t1") == []
    path.write_text("something else")
    assert reader.verify("a", "t1") == [f"{parts.references(record)[0]}: the content is missing or was altered"]
    path.unlink()
    assert reader.verify("a", "t1") != []
    reader.close()
    await opened.close()


async def test_a_sweep_removes_what_no_record_names_and_nothing_else(backend: Backend, reader: StoreReader) -> None:
    blobs = Blobs(str(backend.root / "blobs"), inline_bytes=1000)
    opened = store_of(backend, blobs=blobs)
    await opened.start()
    await opened.append("a", [CONTEXT, header(), event("e1", text="kept " * 1000)])
    blobs.put("a", "sha256:" + "0" * 64, b"a crash left this")
    (backend.root / "blobs/a/00/half.new").write_bytes(b"and this")
    assert await opened.sweep("a") == 2
    assert await opened.sweep("a") == 0
    assert reader.verify("a", "t1") == []
    await opened.close()


async def test_blobs_go_to_any_fsspec_url(tmp_path: Path) -> None:
    blobs = Blobs("memory://bucket/evoplane", inline_bytes=1000)
    opened = EventStore(tmp_path, blobs=blobs)
    await opened.start()
    await opened.append("a", [CONTEXT, header(), event("e1", text="kept " * 1000)])
    reader = StoreReader(tmp_path, engine=SqliteEngine(tmp_path), blobs=blobs)
    assert reader.verify("a", "t1") == []
    assert await opened.sweep("a") == 0
    assert reader.verify("a", "t1") == []
    await opened.close()
    reader.close()


async def test_while_the_blob_store_is_away_drafts_wait_in_the_spool(
    backend: Backend, reader: StoreReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.proxy.tenant_writer._RETRY_S", 0.02)
    blobs = Blobs("memory://away/evoplane", inline_bytes=1000)
    opened = store_of(backend, blobs=blobs)
    await opened.start()
    await opened.append("a", [CONTEXT, header()])
    storing = type(blobs._fs).pipe_file

    def refuse(*_: object) -> None:
        raise RuntimeError("no route to the bucket")

    monkeypatch.setattr(type(blobs._fs), "pipe_file", refuse)
    (kept,) = await opened.append("a", [event("e1", text="large " * 1000)])
    assert kept.spooled
    assert reader.record("a", "e1") is None
    monkeypatch.setattr(type(blobs._fs), "pipe_file", storing)
    async with asyncio.timeout(5):
        while opened.state != "ok":
            await asyncio.sleep(0.01)
    assert reader.record("a", "e1") is not None
    await opened.close()
