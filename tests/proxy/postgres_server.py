"""A PostgreSQL server for tests, with a gateway's role that row-level security holds for."""

from __future__ import annotations

import itertools
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

from services.proxy.migrations.run import migrate
from tests.proxy.backends import GATEWAY, TEMPLATE, Postgres

_numbers = itertools.count()


class PostgresServer:
    """A server whose files are in memory."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self.admin: str = server.get_uri()
        """The superuser's DSN."""

    def kill(self) -> None:
        """Stop at once, as in a crash."""
        commands = import_module("pgserver._commands")
        arguments = ["-w", "-m", "immediate", "stop"]
        commands.pg_ctl(arguments, pgdata=self._server.pgdata, user=self._server.system_user)

    def start(self) -> None:
        self._server.ensure_postgres_running()


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """A server; a template database in it has the tables."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import pgserver
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="evoplane-pg-", dir=memory if memory.exists() else None))
    server = pgserver.get_server(folder)
    try:
        admin = server.get_uri()
        with psycopg.connect(admin, autocommit=True) as connection:
            connection.execute("CREATE ROLE evoplane_owner LOGIN")
            connection.execute(f"CREATE ROLE {GATEWAY} LOGIN")
            connection.execute(f"CREATE DATABASE {TEMPLATE} OWNER evoplane_owner")
        owner = make_conninfo(admin, dbname=TEMPLATE, user="evoplane_owner")
        migrate(owner, make_conninfo(admin, dbname=TEMPLATE, user=GATEWAY))
        yield PostgresServer(server)
    finally:
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def database(admin: str, root: Path) -> Iterator[Postgres]:
    """A database of its own, with the tables."""
    name = f"test_{next(_numbers)}"
    with psycopg.connect(admin, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {TEMPLATE} STRATEGY FILE_COPY")
    try:
        yield Postgres(root, admin, name)
    finally:
        with psycopg.connect(admin, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
