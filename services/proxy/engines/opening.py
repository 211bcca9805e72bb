"""Which database and which blob store a deployment uses: the one place that names them."""

from __future__ import annotations

from typing import Any

from pydantic import SecretStr

from evoplane.settings import Settings, SettingsError
from services.proxy.blobs import Blobs
from services.proxy.engines.base import Engine
from services.proxy.engines.sqlite import SqliteEngine


def open_engine(settings: Settings) -> Engine:
    """The engine that `store.engine` names; connects to nothing yet. Raises `SettingsError`."""
    if settings.store.engine == "sqlite":
        return SqliteEngine(settings.store_dir)
    from services.proxy.engines.postgres import PostgresEngine  # psycopg is for those who use it

    return PostgresEngine(dsn(settings))


def open_blobs(settings: Settings) -> Blobs:
    return Blobs(settings.store.blobs or str(settings.store_dir / "blobs"), settings.store.inline_bytes)


def dsn(settings: Settings) -> str:
    """The connection string of PostgreSQL; raises `SettingsError` when there is none."""
    if settings.store.dsn is None:
        raise SettingsError('store.engine is "postgres": set EVOPLANE_STORE__DSN, such as postgresql://user@host/name')
    return _checked("DSN", settings.store.dsn)


def dsn_of_owner(settings: Settings) -> str | None:
    """That of the tables' owner, when it is another role; raises `SettingsError` when it is none."""
    return None if settings.store.owner_dsn is None else _checked("OWNER_DSN", settings.store.owner_dsn)


def _checked(key: str, secret: SecretStr) -> str:
    """The connection string; where libpq would quote parts of it, and of the password, it is refused here."""
    from psycopg import Error
    from psycopg.conninfo import conninfo_to_dict

    text = secret.get_secret_value()
    try:
        parts = conninfo_to_dict(text)
    except (Error, ValueError):
        parts = None
    if parts is None or "@" in f"{parts.get('host', '')}{parts.get('dbname', '')}" or not _are_ports(parts.get("port")):
        raise SettingsError(
            f"EVOPLANE_STORE__{key} is no connection string of PostgreSQL, such as postgresql://user:password@host/name"
            " (what is special in a password, as %, @, / and #, is percent-encoded)"
        )
    return text


def _are_ports(given: Any) -> bool:
    return given is None or all(not port or port.isdecimal() for port in str(given).split(","))
