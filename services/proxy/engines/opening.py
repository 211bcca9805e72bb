"""Which database and which blob store a deployment uses: the one place that names them."""

from __future__ import annotations

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
    return settings.store.dsn.get_secret_value()
