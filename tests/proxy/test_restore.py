"""After a restart sessions go on from the log, each on its own."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import msgspec

from registry.tenants import Key
from services.proxy.restore import restore
from services.proxy.store import EventStore, StoreReader
from tests.proxy.drafting import CONTEXT, event, header

KEY = Key(id="k1", tenant="a", agent="support", purpose="serve", scopes=frozenset({"infer"}), owner="o")


async def _stored(root: Path) -> None:
    opened = EventStore(root)
    await opened.start()
    for number in (1, 2, 3):
        first = msgspec.structs.replace(header(f"t{number}", f"s{number}"), ext={"key": "k1", "purpose": "serve"})
        await opened.append("a", [CONTEXT, first, event(f"e{number}", f"t{number}")])
    await opened.close()


async def test_a_trajectory_that_cannot_be_read_does_not_keep_the_others_from_going_on(tmp_path: Path) -> None:
    await _stored(tmp_path)
    with sqlite3.connect(tmp_path / "a.sqlite") as connection:
        connection.execute("UPDATE records SET body='{' WHERE id='e1'")
        connection.execute("DELETE FROM records WHERE trajectory_id='t2'")
    sessions = restore(StoreReader(tmp_path), {"k1": KEY}, "2000-01-01T00:00:00.000Z")
    assert [session.session_id for session in sessions] == ["s3"]


async def test_a_log_that_cannot_be_read_does_not_keep_the_other_tenants_from_going_on(tmp_path: Path) -> None:
    await _stored(tmp_path)
    with sqlite3.connect(tmp_path / "0.sqlite") as connection:
        connection.execute("CREATE TABLE records (id TEXT)")
    assert len(restore(StoreReader(tmp_path), {"k1": KEY}, "2000-01-01T00:00:00.000Z")) == 3
