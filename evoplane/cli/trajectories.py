"""`evoplane trajectories`: what was captured, and whether anybody altered it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

from evoplane.cli import governance
from evoplane.cli.output import Json, err, out, print_json, show
from evoplane.settings import settings
from registry.tenants import RegistryError
from services.proxy.store import StoreReader, open_reader

app = typer.Typer(no_args_is_help=True, help="Captured trajectories: list, read, verify, export.")

Tenant = Annotated[str | None, typer.Option(help="Only this tenant's.")]
Agent = Annotated[str | None, typer.Option(help="Only this agent's.")]


@app.command("list")
def list_trajectories(
    tenant: Tenant = None,
    agent: Agent = None,
    limit: Annotated[int, typer.Option(help="Newest so many per tenant.")] = 20,
    json: Json = False,
) -> None:
    """List trajectories, newest first.

    Example: evoplane trajectories list --tenant northwind --limit 5
    """
    reader = _reader()
    rows = [row._asdict() for t in _tenants(reader, tenant) for row in reader.trajectories(t, agent=agent, limit=limit)]
    show(sorted(rows, key=lambda r: str(r["last_at"]), reverse=True), json)


@app.command("show")
def show_trajectory(
    id: Annotated[str, typer.Argument(help="Trajectory id, or the id of any of its events.")],
    raw: Annotated[bool, typer.Option(help="Records as stored, parts and prefixes not expanded.")] = False,
    grant: Annotated[str | None, typer.Option(help="Open what is sealed, under this grant; audited.")] = None,
    json: Json = False,
) -> None:
    """Show one trajectory step by step.

    Example: evoplane trajectories show traj_0197…
    """
    reader = _reader()
    tenant, trajectory_id = _find(reader, id)
    records = reader.records(tenant, trajectory_id)
    if not raw:
        records = [reader.resolve(tenant, record) for record in records]
    if grant is not None:
        opener = governance.opener(reader, tenant, grant)
        records = [opener.open(record) for record in records]
    if json:
        print_json(records)
        return
    for record in records:
        out.print(_line(record), highlight=False)


@app.command("verify")
def verify(
    id: Annotated[str | None, typer.Argument(help="One trajectory; without it, all of them.")] = None,
    tenant: Tenant = None,
    json: Json = False,
) -> None:
    """Check every hash chain: nothing altered, nothing missing. Exit 1 when something is wrong.

    Example: evoplane trajectories verify
    """
    reader = _reader()
    checked = events = 0
    problems: list[dict[str, str]] = []
    tenants = _tenants(reader, tenant)
    targets = [_find(reader, id, tenants if tenant else None)] if id else None
    for name in tenants:
        for row in reader.trajectories(name):
            if targets is not None and (name, row.trajectory_id) not in targets:
                continue
            trajectory_id = row.trajectory_id
            checked += 1
            events += row.events
            problems += [
                {"tenant": name, "trajectory_id": trajectory_id, "problem": problem}
                for problem in reader.verify(name, trajectory_id)
            ]
    result = {"ok": not problems, "trajectories": checked, "events": events, "problems": problems}
    if json:
        print_json(result)
    else:
        for problem in problems:
            err.print(f"{problem['tenant']} {problem['trajectory_id']}: {problem['problem']}", style="red")
        out.print(f"{checked} trajectories, {events} events: {'clean' if not problems else 'ALTERED'}")
    raise typer.Exit(1 if problems else 0)


@app.command("export")
def export(
    file: Annotated[Path | None, typer.Argument(help="Where to; standard output without it.")] = None,
    tenant: Tenant = None,
    agent: Agent = None,
    json: Json = False,
) -> None:
    """Write ATDP records as JSON lines: contexts first, then each trajectory in order.

    Example: evoplane trajectories export northwind.atdp.jsonl --tenant northwind
    """
    reader = _reader()
    stream = file.open("wb") if file else sys.stdout.buffer
    count = 0
    for name in _tenants(reader, tenant):
        contexts: set[str] = set()
        for row in reader.trajectories(name, agent=agent):
            for record in reader.records(name, row.trajectory_id):
                context = record.get("ctx")
                if context and context not in contexts:
                    contexts.add(context)
                    stream.write(orjson.dumps(reader.contexts(name, context)) + b"\n")
                stream.write(orjson.dumps(record) + b"\n")
                count += 1
    if file:
        stream.close()
        show({"file": str(file), "records": count}, json)


def _reader() -> StoreReader:
    return open_reader(settings())


def _tenants(reader: StoreReader, only: str | None) -> list[str]:
    known = reader.tenants()
    if only is None:
        return known
    if only not in known:
        raise RegistryError(f"nothing captured for tenant {only!r}; known: {', '.join(known) or 'none'}")
    return [only]


def _find(reader: StoreReader, id: str, tenants: list[str] | None = None) -> tuple[str, str]:
    """(tenant, trajectory) of a trajectory's or event's id, among these tenants' or all; fails when there is none."""
    among = reader.tenants() if tenants is None else tenants
    for tenant in among:
        if any(row.trajectory_id == id for row in reader.trajectories(tenant)):
            return tenant, id
    for tenant in among:
        if record := reader.record(tenant, id):
            return tenant, record["trajectory_id"]
    raise RegistryError(f"no trajectory or event {id!r}" + ("" if tenants is None else f" of {', '.join(tenants)}"))


def _line(record: dict[str, Any]) -> str:
    match record["record"]:
        case "trajectory":
            return (
                f"[bold]{record['trajectory_id']}[/bold]  {record['agent']['name']}  tenant {record['gov']['tenant']}"
            )
        case "annotation":
            said = record.get("explanation") or record.get("ext") or ""
            return f"  [yellow]{record['kind']} {record['name']}[/yellow] {record.get('value')}  {said}"
    outcome = record["y"].get("result") or [m["parts"] for m in (record.get("a") or {}).get("messages", [])]
    name = (record.get("a") or {}).get("name", "")
    said = outcome or (record.get("o") or {}).get("messages", "")
    return f"  {record['seq']:>3} [cyan]{record['kind']}[/cyan] {name} {record['y']['status']}  {said}"
