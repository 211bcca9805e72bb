"""Bring the tables up to date. Alembic and SQLAlchemy are imported only here: no request needs them."""

from __future__ import annotations

from pathlib import Path

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from evoplane.settings import Settings
from services.proxy.engines.base import Misconfigured, StorageFailed
from services.proxy.engines.opening import dsn, dsn_of_owner

_LOCK = 0x65766F70
"""Advisory lock: of several gateways that start together, one migrates and the others wait."""

_GRANTS = {
    "alembic_version": "SELECT",
    "tenants": "SELECT, INSERT",
    "logs": "SELECT, INSERT, UPDATE",
    "records": "SELECT, INSERT",
    "contexts": "SELECT, INSERT",
    "parts": "SELECT, INSERT",
    "trajectories": "SELECT, INSERT, UPDATE",
    "pending": "SELECT, INSERT, DELETE",
    "sealed": "SELECT, INSERT, DELETE",
    "trajectory_keys": "SELECT, INSERT, UPDATE",
    "answers": "SELECT, INSERT",
    "consumers": "SELECT, INSERT, UPDATE",
    "probe": "SELECT, INSERT, DELETE",
}
"""What a gateway that does not own the tables may do: records are never changed."""


def migrate_deployment(settings: Settings) -> str | None:
    """Run what is missing in the database that is configured; gives its version, None for SQLite.

    SQLite files bring themselves up to date when they are opened. Raises `SettingsError` and `StorageFailed`.
    """
    if settings.store.engine == "sqlite":
        return None
    gateway = dsn(settings)
    return migrate(dsn_of_owner(settings) or gateway, gateway)


def migrate(owner_dsn: str, gateway_dsn: str | None = None) -> str:
    """Run what is missing as the owner of the tables; gives the version they are at.

    When the gateway connects as another role, that role is granted what it needs and no more. Raises `StorageFailed`.
    """
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory
    from sqlalchemy import create_engine
    from sqlalchemy.exc import DBAPIError
    from sqlalchemy.pool import NullPool

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent))
    try:
        # SQLAlchemy looks at the URL for the dialect only: the connection is made from the DSN as it is
        engine = create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(owner_dsn), poolclass=NullPool)
        with psycopg.connect(owner_dsn, autocommit=True) as waiting, engine.connect() as connection:
            waiting.execute("SELECT pg_advisory_lock(%s)", (_LOCK,))
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
            connection.commit()
            if gateway_dsn is not None:
                _grant(waiting, str(conninfo_to_dict(gateway_dsn).get("user", "")))
    except (psycopg.Error, DBAPIError) as error:
        cause = error.orig if isinstance(error, DBAPIError) else error
        if isinstance(cause, psycopg.errors.InsufficientPrivilege):
            raise Misconfigured(f"{cause}: run `evoplane store migrate` with EVOPLANE_STORE__OWNER_DSN") from error
        raise StorageFailed(f"the event log's tables can't be brought up to date: {cause}") from error
    head = ScriptDirectory.from_config(config).get_current_head()
    assert head is not None
    return head


def _grant(connection: psycopg.Connection, role: str) -> None:
    row = connection.execute("SELECT current_user").fetchone()
    if not role or (row and row[0] == role):
        return
    for table, rights in _GRANTS.items():
        statement = sql.SQL("GRANT {} ON {} TO {}")  # rights are the words above
        connection.execute(statement.format(sql.SQL(rights), sql.Identifier(table), sql.Identifier(role)))
