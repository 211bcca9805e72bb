"""`evoplane tenant`, `evoplane agent`, `evoplane key`: who may talk to which agent."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import httpx
import msgspec
import typer

from evoplane.cli.output import Json, out, show
from evoplane.settings import Settings, settings
from registry import control, pointers, tenants
from registry.manifest import Harness, Manifest, MemoryItem, Policy
from registry.tenants import RegistryError

_MLFLOW_S = 10.0
"""A busy server takes its time; one that is not there says so at once."""

tenant_app = typer.Typer(no_args_is_help=True, help="Tenants: whose data is whose, and may it train.")
agent_app = typer.Typer(no_args_is_help=True, help="Agents: their model, approvers and versions.")
key_app = typer.Typer(no_args_is_help=True, help="Keys: what a client sends instead of the provider's.")


@tenant_app.command("create")
def create_tenant(
    id: Annotated[str, typer.Argument(help="Short name, used in paths and records.")],
    name: Annotated[str | None, typer.Option(help="Name for people.")] = None,
    train: Annotated[
        str | None, typer.Option(help="May its data train a policy: allow, deny or pending (a new tenant's).")
    ] = None,
    json: Json = False,
) -> None:
    """Create a tenant, or change what is given of one that exists.

    Example: evoplane tenant create northwind --name "Northwind Books" --train allow
    """
    connection = control.connect(settings().control_db)
    known = next((tenant for tenant in tenants.list_tenants(connection) if tenant.id == id), None)
    if known is not None:
        name, train = name or known.name, train or known.train
    tenant = tenants.create_tenant(connection, id, name, train or "pending")  # type: ignore[arg-type]
    show(vars(tenant), json)


@tenant_app.command("list")
def list_tenants(json: Json = False) -> None:
    """List the tenants.

    Example: evoplane tenant list --json
    """
    show([vars(t) for t in tenants.list_tenants(control.connect(settings().control_db))], json)


@agent_app.command("create")
def create_agent(
    name: Annotated[str, typer.Argument(help="The agent's name; also a model name its client may ask for.")],
    model: Annotated[str | None, typer.Option(help="Model name the agent's client asks for.")] = None,
    approver: Annotated[list[str] | None, typer.Option(help="Who may approve a promotion; repeat for more.")] = None,
    environment: Annotated[str | None, typer.Option(help="module:Class replay may run the agent's tools in.")] = None,
    memory: Annotated[
        Path | None, typer.Option(help="JSON lines of {tenant, topic, text}: what the agent knows from the start.")
    ] = None,
    system_append: Annotated[str, typer.Option(help="Text put after the agent's own system prompt.")] = "",
    json: Json = False,
) -> None:
    """Create an agent and register its first version, or change what is given of one that exists.

    Needs the stack (`evoplane up`): versions are registered in MLflow.

    Example: evoplane agent create support --approver dana --memory facts.jsonl
    """
    from registry import versions

    config = settings()
    connection = control.connect(config.control_db)
    is_new = name not in pointers.all_routes(connection)
    if is_new:
        _require_mlflow(config)
    known = next((agent for agent in tenants.list_agents(connection) if agent.name == name), None)
    if known is not None:
        model, environment = model or known.model, environment or known.environment
        approver = approver or list(known.approvers)
    tenants.create_agent(connection, name, model or config.model.name, environment, tuple(approver or ()))
    if is_new:
        manifest = Manifest(
            policy=Policy(base=config.model.name, served_name=config.model.name),
            harness=Harness(system_append=system_append),
            memory=_read_memory(memory) if memory else (),
        )
        first = versions.register(config, connection, name, manifest, description="as the agent came")
        pointers.set_champion(connection, name, first.version, "first version", "cli")
        versions.mirror_aliases(config, connection, name)
    show(_agent_row(connection, tenants.get_agent(connection, name)), json)


def _require_mlflow(config: Settings) -> None:
    """Raises `RegistryError` when MLflow does not answer: its own client would try again for minutes."""
    try:
        httpx.get(f"{config.mlflow_url}/health", timeout=_MLFLOW_S).raise_for_status()
    except httpx.HTTPError as error:
        raise RegistryError(
            f"MLflow does not answer at {config.mlflow_url} ({error}): start the stack with `evoplane up`,"
            " or, to capture alone, `evoplane down` and then `evoplane up --only gateway --only mlflow`"
        ) from error


@agent_app.command("list")
def list_agents(json: Json = False) -> None:
    """List the agents with the versions that serve.

    Example: evoplane agent list
    """
    connection = control.connect(settings().control_db)
    show([_agent_row(connection, agent) for agent in tenants.list_agents(connection)], json)


@agent_app.command("show")
def show_agent(name: str, json: Json = False) -> None:
    """Show an agent's versions: what changed, from which parent, and what serves.

    Example: evoplane agent show support --json
    """
    connection = control.connect(settings().control_db)
    tenants.get_agent(connection, name)
    route = pointers.all_routes(connection).get(name)
    roles = {getattr(route, role): role for role in ("previous", "shadow", "canary", "champion")} if route else {}
    rows = [
        {
            "version": v.version,
            "serves as": roles.get(v.version),
            "intervention": v.intervention,
            "parent": v.parent,
            "description": v.description,
            **({"manifest": msgspec.to_builtins(v.manifest), "digest": v.digest} if json else {}),
        }
        for v in pointers.versions(connection, name).values()
    ]
    show(rows, json)


@key_app.command("create")
def create_key(
    tenant: Annotated[str, typer.Option(help="The tenant the key belongs to.")],
    agent: Annotated[str, typer.Option(help="The agent the key talks to.")],
    purpose: Annotated[str, typer.Option(help="serve (agents), evaluate (never trained on) or operate.")] = "serve",
    owner: Annotated[str, typer.Option(help="Who holds it: the name approvals and audit show.")] = "",
    json: Json = False,
) -> None:
    """Create a key. The secret is printed once and stored only as a hash.

    Example: evoplane key create --tenant northwind --agent support
    """
    key, secret = tenants.create_key(control.connect(settings().control_db), tenant, agent, purpose, owner)  # type: ignore[arg-type]
    show({"id": key.id, "key": secret, "tenant": tenant, "agent": agent, "purpose": purpose}, json)
    if not json:
        out.print("Keep the key now: it cannot be shown again.", style="yellow")


@key_app.command("list")
def list_keys(json: Json = False) -> None:
    """List the keys in force (never their secrets).

    Example: evoplane key list
    """
    rows = tenants.list_keys(control.connect(settings().control_db))
    show([{**vars(k), "scopes": sorted(k.scopes)} for k in rows], json)


@key_app.command("revoke")
def revoke_key(id: Annotated[str, typer.Argument(help="The key's id.")], json: Json = False) -> None:
    """Revoke a key: gateways refuse it within a second.

    Example: evoplane key revoke key_3f2a90c1d4e5
    """
    tenants.revoke_key(control.connect(settings().control_db), id)
    show({"id": id, "revoked": True}, json)


def _agent_row(connection: object, agent: tenants.Agent) -> dict[str, object]:
    route = pointers.all_routes(connection).get(agent.name)  # type: ignore[arg-type]
    serving = {role: getattr(route, role, None) for role in ("champion", "canary", "shadow", "previous")}
    return {"agent": agent.name, "model": agent.model, "approvers": list(agent.approvers), **serving}


def _read_memory(path: Path) -> tuple[MemoryItem, ...]:
    items = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        try:
            given = msgspec.json.decode(line, type=dict[str, str])
            items.append(
                MemoryItem(
                    id=f"mem_{given['tenant']}_{number}",
                    tenant=given["tenant"],
                    topic=given["topic"],
                    text=given["text"],
                    trust="vetted",
                    created_at=control.now(),
                )
            )
        except (msgspec.DecodeError, KeyError) as error:
            raise tenants.RegistryError(f"{path}:{number}: needs tenant, topic and text ({error})") from error
    return tuple(items)
