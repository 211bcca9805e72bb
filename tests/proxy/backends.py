"""The two databases a store test runs on, and how a test gets behind the store's back in each."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

import psycopg
from psycopg.conninfo import make_conninfo

from services.proxy.consumers import Consumers
from services.proxy.engines.base import Engine
from services.proxy.engines.postgres import PostgresEngine
from services.proxy.engines.sqlite import SqliteEngine
from services.proxy.store import EventStore, StoreReader

GATEWAY = "evoplane_gateway"
TEMPLATE = "evoplane_template"


class Backend(Protocol):
    name: str
    root: Path

    def engine(self) -> Engine: ...

    def literal(self, data: bytes) -> str:
        """Bytes in a statement."""

    def damage(self, tenant: str, statement: str) -> None:
        """Run a statement as somebody whom nothing keeps from it."""

    def locked(self, tenant: str = "a") -> AbstractContextManager[None]:
        """Nobody can write the tenant's log in here."""


class Sqlite:
    name = "sqlite"

    def __init__(self, root: Path) -> None:
        self.root = root

    def engine(self) -> Engine:
        return SqliteEngine(self.root)

    def literal(self, data: bytes) -> str:
        return f"x'{data.hex()}'"

    def damage(self, tenant: str, statement: str) -> None:
        with sqlite3.connect(self.root / f"{tenant}.sqlite") as connection:
            connection.execute(statement)
        connection.close()

    @contextmanager
    def locked(self, tenant: str = "a") -> Iterator[None]:
        connection = sqlite3.connect(self.root / f"{tenant}.sqlite", isolation_level=None)
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:
            connection.execute("ROLLBACK")
            connection.close()


class Postgres:
    name = "postgres"

    def __init__(self, root: Path, admin: str, database: str) -> None:
        self.root = root
        self.database = database
        self.admin = make_conninfo(admin, dbname=database)
        self.dsn = make_conninfo(admin, dbname=database, user=GATEWAY)

    def engine(self) -> Engine:
        return PostgresEngine(self.dsn)

    def literal(self, data: bytes) -> str:
        return f"'\\x{data.hex()}'::bytea"

    def damage(self, tenant: str, statement: str) -> None:
        with psycopg.connect(self.admin) as connection:
            connection.execute(statement.encode())

    @contextmanager
    def locked(self, tenant: str = "a") -> Iterator[None]:
        with psycopg.connect(self.admin) as connection:
            connection.execute("SELECT 1 FROM logs WHERE tenant=%s FOR UPDATE", (tenant,))
            yield
            connection.rollback()


def store_of(backend: Backend, **options: Any) -> EventStore:
    return EventStore(backend.root, engine=backend.engine(), **options)


def reader_of(backend: Backend) -> StoreReader:
    return StoreReader(backend.root, engine=backend.engine())


def consumers_of(backend: Backend) -> Consumers:
    return Consumers(backend.root, engine=backend.engine())
