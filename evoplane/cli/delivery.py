"""`evoplane deliver`, `evoplane promote`: what users get."""

from __future__ import annotations

import getpass
from typing import Annotated

import typer

from evoplane.cli.following import mirror, proven, tell
from evoplane.cli.output import Json, show
from evoplane.cli.permission import require
from evoplane.settings import settings
from registry import approvals, candidates, control, pointers, prefect_runs
from registry.tenants import RegistryError

Agent = Annotated[str, typer.Option(help="The agent.")]


def deliver(
    agent: Agent,
    version: Annotated[str, typer.Option(help="The version to bring to users.")],
    skip_shadow: Annotated[bool, typer.Option(help="Go straight to the canary; audited.")] = False,
    json: Json = False,
) -> None:
    """Start a delivery: shadow, canary, approval, promotion, watch.

    Example: evoplane deliver --agent support --version 4
    """
    config = settings()
    if version not in pointers.versions(control.connect(config.control_db), agent):
        raise RegistryError(f"{agent} has no version {version!r}: see `evoplane agent show {agent}`")
    payload = {"agent": agent, "version": version, "skip_shadow": skip_shadow}
    prefect_runs.emit_event(config, "evoplane.candidate.accepted", agent, payload)
    show({"agent": agent, "version": version, "watch": f"http://127.0.0.1:{config.prefect.port}/runs"}, json)


def promote(
    agent: Agent, version: Annotated[str, typer.Option(help="An approved version.")], json: Json = False
) -> None:
    """Make an approved version the champion. Without an approval this refuses.

    Example: evoplane promote --agent support --version 3
    """
    config = settings()
    connection = control.connect(config.control_db)
    require(config, connection, "promote", agent)
    with control.transaction(connection):
        approved = [
            a
            for a in approvals.list_approvals(connection, agent)
            if a.version == version and approvals.in_force(connection, a)
        ]
        if not approved:
            raise RegistryError(
                f"version {version} of {agent} has no approval in force (it ends with its delivery, and with a"
                " rollback): `evoplane deliver` asks for one"
            )
        why = f"approval {approved[-1].id}"
        candidates.settle(connection, agent, version, "promoted", why, getpass.getuser())
        route = pointers.set_champion(connection, agent, version, why, getpass.getuser())
    served = proven(config, agent, version)
    mirror(config, agent)
    tell(route, served, json)
