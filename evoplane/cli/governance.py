"""`evoplane tenant policy|rotate-key|retain|withdraw`, `evoplane grant`, `evoplane role`: who may see and keep what."""

from __future__ import annotations

import asyncio
import getpass
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import typer

from evoplane.cli.identity import tenant_app
from evoplane.cli.output import Json, out, readable, show
from evoplane.settings import settings
from registry import control, grants, keyring, policies, roles, tenant_policy, tenants
from registry.tenants import RegistryError
from services.proxy import retention
from services.proxy.opening import Opener
from services.proxy.redaction import catalogue
from services.proxy.store import EventStore, StoreReader, open_reader, open_store

policy_app = typer.Typer(no_args_is_help=True, help="What a tenant hides, keeps, and may use.")
grant_app = typer.Typer(no_args_is_help=True, help="Leave to open sealed content: who, what, why, until when.")
role_app = typer.Typer(no_args_is_help=True, help="Roles of people, as policies ask for them.")
tenant_app.add_typer(policy_app, name="policy")

Tenant = Annotated[str, typer.Argument(help="The tenant's id.")]
T = TypeVar("T")


@policy_app.command("show")
def show_policy(tenant: Tenant, json: Json = False) -> None:
    """Show a tenant's policy, defaults included.

    Example: evoplane tenant policy show northwind --json
    """
    connection = control.connect(settings().control_db)
    tenants.require_tenant(connection, tenant)
    policy = tenant_policy.get(connection, tenant)
    told = {name: msgspec.to_builtins(getattr(policy, name)) for name in policy.__struct_fields__}
    told["reasoning"] = policy.hides_reasoning  # unset, it is what the level says
    unset = [name for name in told if getattr(policy, name) == getattr(tenant_policy.DEFAULT, name)]
    if json:
        show({**told, "defaults": unset}, json)
    else:
        show({name: f"{readable(value)} (default)" if name in unset else value for name, value in told.items()}, json)


@policy_app.command("set")
def set_policy(
    tenant: Tenant,
    file: Annotated[Path, typer.Argument(help="TOML; see docs/governance.md.")],
    json: Json = False,
) -> None:
    """Set a tenant's policy from a TOML file, and say what that changes.

    Gateways follow within a second; what is stored stays as it is.

    Example: evoplane tenant policy set northwind policy.toml
    """
    try:
        policy = tenant_policy.parse(file.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise RegistryError(f"{file} is no text in UTF-8") from error
    catalogue.check(policy)
    before = tenant_policy.put(control.connect(settings().control_db), tenant, policy, getpass.getuser())
    changed = {
        name: {"old": msgspec.to_builtins(getattr(before, name)), "new": msgspec.to_builtins(getattr(policy, name))}
        for name in tenant_policy.changes(before, policy)
    }
    show({"tenant": tenant, "policy": policy.name, **({"changed": changed} if json else {})}, json)
    if not json:
        show({name: f"{readable(each['old'])} -> {readable(each['new'])}" for name, each in changed.items()}, json)
        if not changed:
            out.print("nothing changed: this is its policy already", style="dim")


@tenant_app.command("rotate-key")
def rotate_key(tenant: Tenant, json: Json = False) -> None:
    """Give a tenant a new key and wrap its trajectories' data keys by it. Pseudonyms stay the same.

    Example: evoplane tenant rotate-key northwind
    """
    config = settings()
    connection = control.connect(config.control_db)
    master = keyring.master_key(config.keys_dir)
    keyring.ensure(connection, master, tenant)
    version = keyring.rotate(connection, master, tenant, getpass.getuser())
    keys = keyring.load(connection, master)[tenant]
    rewrapped = _with_store(lambda store: store.rewrap(tenant, version, keys.rewrap))
    show({"tenant": tenant, "version": version, "rewrapped": rewrapped}, json)


@tenant_app.command("retain")
def retain(
    tenant: Tenant,
    dry_run: Annotated[bool, typer.Option(help="Only say what would be erased.")] = False,
    json: Json = False,
) -> None:
    """Erase what is sealed in trajectories past their retention, now; gateways do it once an hour.

    What is still open waits for its end: how many do, and when they go, is told.

    Example: evoplane tenant retain northwind --dry-run
    """
    config = settings()
    connection = control.connect(config.control_db)
    tenants.require_tenant(connection, tenant)
    policy = tenant_policy.get(connection, tenant)
    reader = open_reader(config)
    try:
        done = _with_store(lambda store: retention.retain(store, reader, tenant, policy, dry_run=dry_run))
    finally:
        reader.close()
    waits = (
        f"{len(done.open)} past their time wait for their end: a running gateway closes what had no record for "
        f"{config.gateway.session_idle_s:g} s (gateway.session_idle_s), and erases it within an hour of that"
    )
    said = {"erased": done.erased, "held": done.held, "open": done.open, "open_until": waits if done.open else None}
    show({"tenant": tenant, **said, "dry_run": dry_run}, json)


@tenant_app.command("withdraw")
def withdraw(
    tenant: Tenant,
    trajectory: Annotated[list[str], typer.Option(help="The trajectory; repeat for more.")],
    reason: Annotated[str, typer.Option(help="Why; kept with the trajectory.")] = "",
    json: Json = False,
) -> None:
    """Write down that consent to train on trajectories was withdrawn. Deny wins over whatever is said later.

    Example: evoplane tenant withdraw northwind --trajectory tr_0197… --reason "ticket 812"
    """
    by = getpass.getuser()
    done = _with_store(lambda store: retention.withdraw(store, tenant, trajectory, by, reason))
    show({"tenant": tenant, "train": "deny", "trajectories": done}, json)


@grant_app.command("create")
def create_grant(
    tenant: Annotated[str, typer.Option(help="Whose data.")],
    purpose: Annotated[str, typer.Option(help="debug, train or export.")],
    approver: Annotated[str, typer.Option(help="Who approves: a privacy officer.")],
    holder: Annotated[str, typer.Option(help="Who may use it.")],
    reason: Annotated[str, typer.Option(help="Why; kept in the audit log.")],
    snapshot: Annotated[str | None, typer.Option(help="The snapshot it covers.")] = None,
    trajectory: Annotated[list[str] | None, typer.Option(help="Or a trajectory; repeat for more.")] = None,
    hours: Annotated[float, typer.Option(help="How long it lasts.")] = 24,
    json: Json = False,
) -> None:
    """Approve that somebody opens sealed content. Every use of the grant is in the audit log.

    Example: evoplane grant create --tenant northwind --purpose debug --approver iris --holder sam --trajectory tr_0197… --reason "ticket 812"
    """  # noqa: E501  an example is one line
    connection, rules = _governed()
    grant = grants.create(
        connection, rules, tenant, purpose, approver, holder, reason,  # type: ignore[arg-type]
        timedelta(hours=hours), snapshot, tuple(trajectory or ()),
    )  # fmt: skip
    show(msgspec.to_builtins(grant), json)


@grant_app.command("list")
def list_grants(
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's.")] = None, json: Json = False
) -> None:
    """List grants, oldest first.

    Example: evoplane grant list --tenant northwind
    """
    columns = ("id", "tenant", "purpose", "holder", "approver", "status", "expires_at")
    found = grants.list_grants(control.connect(settings().control_db), tenant)
    show([{column: getattr(grant, column) for column in columns} for grant in found], json)


@grant_app.command("revoke")
def revoke_grant(id: Annotated[str, typer.Argument(help="The grant's id.")], json: Json = False) -> None:
    """End a grant now.

    Example: evoplane grant revoke gr_0197…
    """
    grant = grants.revoke(control.connect(settings().control_db), id, getpass.getuser())
    show({"id": id, "status": grant.status}, json)


@role_app.command("give")
def give_role(
    name: Annotated[str, typer.Argument(help="Whom, as approvals and grants name them.")],
    role: Annotated[str, typer.Argument(help=f"One of {', '.join(roles.ROLES)}.")],
    tenant: Annotated[str | None, typer.Option(help="Only for this tenant.")] = None,
    json: Json = False,
) -> None:
    """Give somebody a role, for every tenant or for one.

    Example: evoplane role give iris privacy_officer --tenant northwind
    """
    roles.give(control.connect(settings().control_db), name, role, tenant, getpass.getuser())
    show({"name": name, "role": role, "tenant": tenant}, json)


@role_app.command("take")
def take_role(
    name: Annotated[str, typer.Argument(help="From whom.")],
    role: Annotated[str, typer.Argument(help="The role.")],
    tenant: Annotated[str | None, typer.Option(help="The tenant it was given for.")] = None,
    json: Json = False,
) -> None:
    """Take a role away.

    Example: evoplane role take iris privacy_officer --tenant northwind
    """
    roles.take(control.connect(settings().control_db), name, role, tenant, getpass.getuser())
    show({"name": name, "role": role, "tenant": tenant, "taken": True}, json)


@role_app.command("list")
def list_roles(json: Json = False) -> None:
    """List who has which role.

    Example: evoplane role list
    """
    show(roles.all_roles(control.connect(settings().control_db)), json)


def opener(reader: StoreReader, tenant: str, grant: str) -> Opener:
    """What opens a tenant's records under a grant, for the account the command runs under."""
    connection, rules = _governed()
    keys = keyring.load(connection, keyring.master_key(settings().keys_dir)).get(tenant)
    if keys is None:
        raise RegistryError(f"nothing of {tenant!r} is sealed: it has no key")
    who = policies.principal(connection, getpass.getuser(), local=True)
    return Opener(reader, connection, rules, keys, grant, who)


def _governed() -> tuple[Any, policies.Policies]:
    config = settings()
    return control.connect(config.control_db), policies.Policies.load(config.policies_dir)


def _with_store(work: Callable[[EventStore], Awaitable[T]]) -> T:
    """Do something as one more writer of the event log."""

    async def run() -> T:
        store = open_store(settings())
        await store.start()
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(run())
