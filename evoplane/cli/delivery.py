"""`evoplane deliver`, `evoplane promote`, `evoplane rollback`: what users get."""

from __future__ import annotations

import getpass
import sqlite3
from typing import Annotated, Literal

import msgspec
import typer

from evoplane.cli.output import Json, err, show
from evoplane.settings import settings
from registry import approvals, candidates, control, history, pointers, policies, prefect_runs, presence, serving
from registry.lineage import explain
from registry.tenants import RegistryError
from services.proxy.store import open_reader
from services.worker import client

Agent = Annotated[str, typer.Option(help="The agent.")]
Why = Annotated[str, typer.Option(help="Why; kept in the audit log.")]


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
    connection = control.connect(settings().control_db)
    _require(connection, "promote", agent)
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
    served = _proven(agent, version)
    _mirror(agent)
    show({**msgspec.to_builtins(route), "served_in_s": served}, json)


def rollback(
    agent: Agent,
    to: Annotated[str, typer.Option(help="`previous`, a version, or `before EVENT_ID`.")] = "previous",
    why: Why = "asked by an operator",
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
    _require(connection, "rollback", agent)
    to = _named(connection, agent, to)
    try:
        client.load_version(config, connection, agent, to)
    except client.PolicyRefused as error:
        raise RegistryError(f"version {to} of {agent} cannot be served: {error}") from error
    route = pointers.rollback(connection, agent, to, why, getpass.getuser())
    served = _proven(agent, route.champion) if verify else None
    _mirror(agent)
    show({**msgspec.to_builtins(route), "served_in_s": served}, json)


def _named(connection: sqlite3.Connection, agent: str, to: str) -> str:
    """`before EVENT_ID` as a version; anything else as it is."""
    event_id = to.removeprefix("before ").strip()
    if event_id == to.strip():
        return to
    reader = open_reader(settings())
    try:
        answer = explain(connection, reader, event_id, agent).answer
    finally:
        reader.close()
    return history.before(connection, agent, answer.agent_version, answer.time)


def _proven(agent: str, version: str) -> float | None:
    """Seconds until every gateway answered with the version; None when none runs. Raises `NotServed`."""
    if not presence.gateways(settings()):
        err.print("no gateway runs on this machine: it will serve this version when it starts", style="yellow")
        return None
    return serving.verify(settings(), agent, version)


def _require(connection: sqlite3.Connection, action: Literal["promote", "rollback"], agent: str) -> None:
    """Raises `Forbidden` when the policies do not let this account do it."""
    who = policies.principal(connection, getpass.getuser(), local=True)
    policies.require(connection, policies.Policies.load(settings().policies_dir), who, action, f"Agent::{agent}")


def _mirror(agent: str) -> None:
    """Ask the rollback flow to bring MLflow's aliases in line; users are served right already."""
    try:
        prefect_runs.emit_event(settings(), "evoplane.rollback.requested", agent, {"agent": agent, "mirror": True})
    except (OSError, RegistryError) as error:
        err.print(f"served right already; MLflow's aliases follow when Prefect is back ({error})", style="yellow")
