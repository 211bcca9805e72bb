"""A resent history is stored once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.session_size import session_size
from services.proxy.store import EventStore
from tests.proxy.at_rest import every_byte
from tests.proxy.drafting import CONTEXT, event, header


def test_a_session_that_resends_its_history_stores_no_more_than_a_third_above_its_last_request() -> None:
    assert session_size(turns=25)["session_100_turns_ratio"] <= 1.3


def test_the_store_on_sqlite_imports_neither_postgresql_nor_migrations() -> None:
    heavy = "{'psycopg', 'sqlalchemy', 'alembic', 'fsspec', 'mlflow', 'pandas', 'torch'}"
    code = f"import sys, services.proxy.store; found = {heavy} & set(sys.modules); sys.exit(bool(found))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


async def test_a_search_of_the_disk_finds_what_a_record_and_its_content_say(tmp_path: Path) -> None:
    opened = EventStore(tmp_path)
    await opened.start()
    long = "what a long message says " * 200
    await opened.append("a", [CONTEXT, header(), event("e1", text="what a short message says"), event("e2", text=long)])
    await opened.close()
    found = every_byte(tmp_path)
    assert b"what a short message says" in found
    assert long.encode() in found
