"""A store on each of the two databases."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from evoplane.settings import Settings
from services.proxy.store import EventStore, StoreReader
from tests.governance.drafting import Governance
from tests.proxy.backends import Backend, Sqlite, reader_of, store_of
from tests.proxy.postgres_server import database, postgres_server


@pytest.fixture(scope="session")
def postgres_admin() -> Iterator[str]:
    """The superuser's DSN of one server a session."""
    with postgres_server() as server:
        yield server.admin


@pytest.fixture(params=["sqlite", "postgres"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    yield from opened_backend(request, tmp_path)


def opened_backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    """The database that the fixture's parameter names."""
    if request.param == "sqlite":
        yield Sqlite(tmp_path)
        return
    with database(request.getfixturevalue("postgres_admin"), tmp_path) as opened:
        yield opened


@pytest.fixture
async def log(backend: Backend) -> AsyncIterator[EventStore]:
    opened = store_of(backend)
    await opened.start()
    yield opened
    await opened.close()


@pytest.fixture
def reader(backend: Backend) -> Iterator[StoreReader]:
    opened = reader_of(backend)
    yield opened
    opened.close()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings.model_validate({"paths": {"var": tmp_path}})


@pytest.fixture
def governance() -> Governance:
    return Governance()
