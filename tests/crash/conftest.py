"""A database to kill: SQLite quickly, PostgreSQL with the tests that need servers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.proxy.backends import Backend
from tests.proxy.conftest import opened_backend, postgres_admin

__all__ = ["backend", "postgres_admin"]


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.stack)])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    yield from opened_backend(request, tmp_path)
