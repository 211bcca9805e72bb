"""A resent history is stored once."""

from __future__ import annotations

import subprocess
import sys

from benchmarks.session_size import session_size


def test_a_session_that_resends_its_history_stores_no_more_than_a_third_above_its_last_request() -> None:
    assert session_size(turns=25)["session_100_turns_ratio"] <= 1.3


def test_the_store_on_sqlite_imports_neither_postgresql_nor_migrations() -> None:
    heavy = "{'psycopg', 'sqlalchemy', 'alembic', 'fsspec', 'mlflow', 'pandas', 'torch'}"
    code = f"import sys, services.proxy.store; found = {heavy} & set(sys.modules); sys.exit(bool(found))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
