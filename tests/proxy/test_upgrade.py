"""What Evoplane 0.1.0 left goes on: its tables, its records, its spool."""

from __future__ import annotations

import sqlite3
import zlib
from pathlib import Path

import msgspec
import orjson

from atdp import chain
from services.proxy.engines import sqlite as engine
from services.proxy.packing import unpack
from services.proxy.spool import Job
from services.proxy.store import EventStore, StoreReader
from tests.proxy.drafting import CONTEXT, event, header, signal

PACKED = bytes.fromhex("0103862072dec0de28c20822b08fcc896903242629d50200")
RECORD = b'{"atdp":"1.0","kind":"user_message","record":"event","seq":7,"y":{"status":"ok"},"hash":"sha256:ab"}'


def an_old_log(root: Path) -> None:
    opening = msgspec.to_builtins(msgspec.structs.replace(header(), ext={"purpose": "evaluate"}))
    records = [chain.seal(opening, 0, None)]
    records.append(chain.seal(msgspec.to_builtins(event("e1")), 1, records[0]["hash"]))
    connection = sqlite3.connect(root / "a.sqlite")
    connection.executescript(engine._VERSIONS[0])
    for record in records:
        connection.execute(
            "INSERT INTO records (id,trajectory_id,seq,record,kind,agent,committed,body) VALUES (?,?,?,?,?,?,?,?)",
            (record.get("id", "t1"), "t1", record["seq"], record["record"], "k", "support", 1.0, orjson.dumps(record)),
        )
    connection.execute("INSERT INTO contexts VALUES (?,?)", (CONTEXT.id, msgspec.json.encode(CONTEXT)))
    connection.execute(
        "INSERT INTO trajectories VALUES ('t1','s1','support',?,?,NULL,2,?)",
        (records[0]["time"], records[1]["time"], records[1]["hash"]),
    )
    connection.execute("INSERT INTO parts VALUES ('sha256:x','text/plain',x'7a')")
    connection.commit()
    connection.close()


async def test_a_log_of_the_first_version_is_read_and_written_on(tmp_path: Path) -> None:
    an_old_log(tmp_path)
    reader = StoreReader(tmp_path)
    assert reader.verify("a", "t1") == []
    assert reader.part("a", "sha256:x") == b"z"
    opened = EventStore(tmp_path)
    await opened.start()
    wrong = msgspec.structs.replace(signal("n1", "session", "s1"), purpose="serve")
    right = msgspec.structs.replace(signal("n2", "session", "s1"), purpose="evaluate")
    stored = await opened.append("a", [event("e2"), wrong, right])
    await opened.close()
    assert [item.bound for item in stored] == [True, False, True]
    assert [record.get("id") for record in reader.records("a", "t1")] == [None, "e1", "e2", "n2"]
    assert reader.verify("a", "t1") == []


async def test_the_first_versions_spool_is_drained(tmp_path: Path) -> None:
    job = msgspec.json.encode(Job("a", [CONTEXT, header(), event("e1")]))
    line = b"%08x %b\n" % (zlib.crc32(job), job)
    (tmp_path / "spool.jsonl").write_bytes(line + line[:40])
    opened = EventStore(tmp_path)
    await opened.start()
    await opened.close()
    assert [record.get("id") for record in StoreReader(tmp_path).records("a", "t1")] == [None, "e1"]
    assert not (tmp_path / "spool.jsonl").exists()


def test_a_record_that_was_packed_with_the_first_dictionary_can_be_read_for_ever() -> None:
    assert unpack(PACKED) == RECORD
    assert len(PACKED) < len(RECORD) / 2
