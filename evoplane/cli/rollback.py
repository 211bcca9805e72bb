"""`evoplane rollback`: users get the version from before.

Users wait for everything that comes before the flip, so only what it needs is imported by then; what proves it to
the operator and what names other versions than the previous one comes when it is needed.
"""

from __future__ import annotations

import getpass
import sqlite3
from typing import Annotated

import typer

from evoplane.cli.output import Json
from evoplane.cli.permission import require
from evoplane.settings import Settings, settings
from registry import control, pointers
from registry.tenants import RegistryError


def rollback(
    agent: Annotated[str, typer.Option(help="The agent.")],
    to: Annotated[str, typer.Option(help="`previous`, a version, or `before EVENT_ID`.")] = "previous",
    why: Annotated[str, typer.Option(help="Why; kept in the audit log.")] = "asked by an operator",
    verify: Annotated[bool, typer.Option(help="Wait until every gateway answers with it.")] = True,
    json: Json = False,
) -> None:
    """Serve the previous version again, at once and without gates; ends canary and shadow.

    A version named with --to is loaded first if the model server does not have it. `--to "before EVENT_ID"` is the
    version that served before the one that said this came to users.

    Example: evoplane rollback --agent support --why "wrong refunds since noon"
    """
    config = settings()
    connection = control.connect(config.control_db)
    require(config, connection, "rollback", agent)
    if to != "previous":  # that one is always loaded
        to = _named(config, connection, agent, to)
        _loaded(config, connection, agent, to)
    route = pointers.rollback(connection, agent, to, why, getpass.getuser())

    from evoplane.cli import following

    served = following.proven(config, agent, route.champion) if verify else None
    following.mirror(config, agent)
    following.tell(route, served, json)


def _named(config: Settings, connection: sqlite3.Connection, agent: str, to: str) -> str:
    """`before EVENT_ID` as a version; anything else as it is."""
    event_id = to.removeprefix("before ").strip()
    if event_id == to.strip():
        return to

    from registry import history
    from registry.lineage import explain
    from services.proxy.store import open_reader

    reader = open_reader(config)
    try:
        answer = explain(connection, reader, event_id, agent).answer
    finally:
        reader.close()
    return history.before(connection, agent, answer.agent_version, answer.time)


def _loaded(config: Settings, connection: sqlite3.Connection, agent: str, version: str) -> None:
    from services.worker import client

    try:
        client.load_version(config, connection, agent, version)
    except client.PolicyRefused as error:
        raise RegistryError(f"version {version} of {agent} cannot be served: {error}") from error
