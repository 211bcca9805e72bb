"""`evoplane store`: the event log's database."""

from __future__ import annotations

from typing import Annotated

import typer

from evoplane.cli.output import Json, show
from evoplane.settings import settings
from services.proxy.engines.opening import open_blobs, open_engine
from services.proxy.log import TenantLog
from services.proxy.migrations.run import migrate_deployment

app = typer.Typer(no_args_is_help=True, help="The event log's database.")


@app.command("migrate")
def migrate(json: Json = False) -> None:
    """Bring PostgreSQL's tables up to date, as their owner. SQLite files do that by themselves.

    Example: EVOPLANE_STORE__OWNER_DSN=postgresql://owner@db/evoplane evoplane store migrate
    """
    config = settings()
    show({"engine": config.store.engine, "version": migrate_deployment(config)}, json)


@app.command("sweep")
def sweep(
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's.")] = None,
    json: Json = False,
) -> None:
    """Remove blobs that no record names: a crash between writing one and committing its event leaves it.

    Example: evoplane store sweep
    """
    config = settings()
    engine, blobs = open_engine(config), open_blobs(config)
    reading = engine.reading()
    removed: dict[str, int] = {}
    try:
        for name in [tenant] if tenant is not None else reading.tenants():
            log = TenantLog(engine.writing(name), blobs, name)
            try:
                removed[name] = log.sweep()
            finally:
                log.close()
    finally:
        reading.close()
        engine.close()
    show([{"tenant": name, "removed": count} for name, count in removed.items()], json)
