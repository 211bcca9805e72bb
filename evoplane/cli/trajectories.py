"""`evoplane trajectories`: what was captured, and whether anybody altered it."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from atdp import clock, convert
from dashboards import steps
from evoplane.cli import governance
from evoplane.cli.given_files import require_regular
from evoplane.cli.output import Json, Printer, err, out, print_json, show
from evoplane.cli.trajectory_lines import lines
from evoplane.settings import settings
from registry import control, keyring, tenant_policy, tenants
from registry.tenants import RegistryError
from services.proxy import importing
from services.proxy.drafts import StoreUnavailable
from services.proxy.exporting import PURPOSES, Selection
from services.proxy.governor import Governor
from services.proxy.store import StoreReader, open_reader, open_store
from services.router.watcher import Picture

app = typer.Typer(no_args_is_help=True, help="Captured trajectories: list, read, verify, import, export.")

Tenant = Annotated[str | None, typer.Option(help="Only this tenant's.")]
Agent = Annotated[str | None, typer.Option(help="Only this agent's.")]


_MOST_LISTED = 1_000_000


@app.command("list")
def list_trajectories(
    tenant: Tenant = None,
    agent: Agent = None,
    limit: Annotated[int, typer.Option(help="Newest so many per tenant.", min=1, max=_MOST_LISTED)] = 20,
    json: Json = False,
) -> None:
    """List trajectories, newest first; standard error says where there are more.

    Example: evoplane trajectories list --tenant northwind --limit 5
    """
    reader = _reader()
    found = {t: reader.trajectories(t, agent=agent, limit=limit + 1) for t in _tenants(reader, tenant)}
    rows = [row._asdict() for own in found.values() for row in own[:limit]]
    if agent is not None and not rows:  # work that was imported has no need of an agent that serves
        tenants.get_agent(control.connect(settings().control_db), agent)
    show(sorted(rows, key=lambda r: str(r["last_at"]), reverse=True), json)
    if more := [t for t, own in found.items() if len(own) > limit]:
        err.print(
            f"{limit} of {', '.join(more)} shown, there are more: --limit {10 * limit}", highlight=False, markup=False
        )


@app.command("show")
def show_trajectory(
    id: Annotated[str, typer.Argument(help="Trajectory id, or the id of any of its events.")],
    raw: Annotated[bool, typer.Option(help="Records as stored, parts and prefixes not expanded.")] = False,
    grant: Annotated[str | None, typer.Option(help="Open what is sealed, under this grant; audited.")] = None,
    json: Json = False,
) -> None:
    """Show one trajectory step by step: who did what, what came of it, tokens, latency, and what was said about it.

    With --json, the records themselves.

    Example: evoplane trajectories show tr_0197…
    """
    reader = _reader()
    tenant, trajectory_id = _find(reader, id)
    records = reader.records(tenant, trajectory_id)
    if not json:  # a call's history is the steps before it
        records = [steps.new_in(record) if record["record"] == "event" else record for record in records]
    if not raw:
        records = reader.resolve_all(tenant, records)
    if grant is not None:
        opener = governance.opener(reader, tenant, grant)
        records = [opener.open(record) for record in records]
    if json:
        print_json(records)
        return
    for line in lines(records):
        out.print(line.text, style=line.style or None, highlight=False, markup=False)


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


@app.command("import")
def import_files(
    files: Annotated[list[Path], typer.Argument(help="Files of one or several formats.", exists=True, dir_okay=False)],
    tenant: Annotated[str, typer.Option(help="Whose trajectories they become.")],
    agent: Annotated[str, typer.Option(help="Whose work they are.")],
    format: Annotated[str | None, typer.Option(help="The files' format; without it, told by their content.")] = None,
    json: Json = False,
) -> None:
    """Take trajectories of other formats into the store, and say what did not come through.

    Importing a file again adds nothing. The tenant's policy says whether they train. Exit 1 when some were refused.

    Example: evoplane trajectories import gpt-4o-airline.json --tenant northwind --agent airline
    """
    for file in files:
        require_regular(file)
    result = asyncio.run(_import(files, tenant, agent, format))
    if json:
        print_json(result)
    else:
        for file in result["files"]:
            out.print(f"[bold]{file['file']}[/bold]  {file['format']}, {file['loss']['items']} items", highlight=False)
            _print_loss(file["loss"])
        out.print(
            f"{result['trajectories']} trajectories, {result['records']} records "
            f"({result['new_trajectories']} and {result['new_records']} of them new), "
            f"{result['waiting']} annotations wait for their target, "
            f"in {result['hidden']} records something was hidden by the tenant's policy",
            highlight=False,
        )
        for refused in result["refused"]:
            err.print(f"refused: {refused}", style="red", highlight=False, markup=False)
    raise typer.Exit(1 if result["refused"] else 0)


@app.command("formats")
def formats(json: Json = False) -> None:
    """List the formats that can be imported and exported.

    Example: evoplane trajectories formats
    """
    show([{"format": f.name, "title": f.title, "purpose": f.purpose} for f in convert.formats().values()], json)


@app.command("export")
def export(
    file: Annotated[Path | None, typer.Argument(help="Where to; standard output without it.")] = None,
    tenant: Tenant = None,
    agent: Agent = None,
    format: Annotated[str, typer.Option(help="One of `evoplane trajectories formats`.")] = "atdp",
    source: Annotated[str | None, typer.Option(help="Only what was imported from this format.")] = None,
    purpose: Annotated[
        str | None, typer.Option(help="train, evaluate, replay or debug; without it, what the format is for.")
    ] = None,
    json: Json = False,
) -> None:
    """Write trajectories in ATDP (contexts before the trajectories that name them) or another format.

    Only what is eligible for the purpose is written; the rest is counted. What a format can't carry is listed.

    Example: evoplane trajectories export northwind.atdp.jsonl --tenant northwind
    """
    reader, kind = _reader(), _format(format)
    selection = Selection(reader, _tenants(reader, tenant), agent, source, _purpose(purpose or kind.purpose))
    loss = convert.LossReport(kind.name, "write")
    stream = file.open("wb") if file else sys.stdout.buffer
    try:
        for piece in kind.stream(selection.records(whole=kind.name != "atdp"), selection.content, loss):
            stream.write(piece)
    finally:
        if file:
            stream.close()
    if not file:
        _print_loss(loss.to_builtins(), err)
        return
    result: dict[str, Any] = {
        "file": str(file),
        "format": kind.name,
        "purpose": selection.purpose,
        "records": selection.written,
        "withheld": selection.withheld,
        "broken_off": selection.broken_off,
        "loss": loss.to_builtins(),
    }
    if json:
        print_json(result)
        return
    out.print(f"{selection.written} records, {loss.items} items -> {file}", highlight=False)
    if selection.withheld:
        out.print(f"{selection.withheld} trajectories withheld: not eligible for {selection.purpose}", style="yellow")
    if selection.broken_off:
        out.print(f"{selection.broken_off} answers left out: they failed or broke off", style="yellow")
    if not loss.items and kind.name != "atdp":
        out.print(f"the file is empty: nothing in them makes an item of {kind.name}", style="yellow")
    _print_loss(result["loss"])


async def _import(files: list[Path], tenant: str, agent: str, format: str | None) -> dict[str, Any]:
    connection = control.connect(settings().control_db)
    policy = {t.id: t.train for t in tenants.list_tenants(connection)}
    if tenant not in policy:
        raise RegistryError(f"no tenant {tenant!r}: create it with `evoplane tenant create {tenant}`")
    master = keyring.master_key(settings().keys_dir)
    keyring.ensure(connection, master, tenant)
    picture = Picture(policies=tenant_policy.all_policies(connection), tenant_keys=keyring.load(connection, master))
    kinds = [(file, _format(format) if format else _detected(file)) for file in files]
    before = _totals(tenant)
    reader = _reader()
    governor = Governor(lambda: picture, reader.trajectory_key)
    store = open_store(settings())
    await store.start()
    reports = []
    try:
        with err.console.status("importing") as status:
            job = importing.Import(
                store,
                tenant,
                agent,
                policy[tenant],
                governor.protect,
                reader,
                lambda done: status.update(f"importing: {done.records} records"),
            )
            for file, kind in kinds:
                options = convert.ReadOptions(agent, file.name, clock.from_epoch(file.stat().st_mtime))
                try:
                    with file.open("rb") as source:
                        converted = kind.read(source, options)
                        await job.take(converted.records)
                except convert.ConversionError as error:
                    raise RegistryError(f"{file}: {error}") from error
                reports.append({"file": str(file), "format": kind.name, "loss": converted.loss.to_builtins()})
            done = await job.finish()
    except StoreUnavailable as error:
        raise RegistryError(f"nothing more was imported: {error}") from error
    finally:
        await store.close()
    after = _totals(tenant)
    return {
        "tenant": tenant,
        "agent": agent,
        "files": reports,
        "trajectories": done.trajectories,
        "records": done.records,
        "new_trajectories": after[0] - before[0],
        "new_records": after[1] - before[1],
        "waiting": done.waiting,
        "hidden": done.hidden,
        "refused": done.refused,
    }


def _totals(tenant: str) -> tuple[int, int]:
    """Trajectories, and records in their chains, of a tenant."""
    rows = _reader().trajectories(tenant)
    return len(rows), sum(row.events for row in rows)


def _format(name: str) -> convert.Format:
    try:
        return convert.get(name)
    except convert.ConversionError as error:
        raise RegistryError(str(error)) from error


def _detected(file: Path) -> convert.Format:
    with file.open("rb") as lines:
        try:
            return convert.detect(lines)
        except convert.ConversionError as error:
            raise RegistryError(f"{file}: {error}") from error


def _purpose(name: str) -> str:
    if name not in PURPOSES:
        raise RegistryError(f"purpose must be one of {', '.join(PURPOSES)}, not {name!r}")
    return name


def _print_loss(loss: dict[str, Any], console: Printer = out) -> None:
    for title, style in (("lost", "red"), ("notes", "yellow")):
        for name, item in loss[title].items():
            example = f"  e.g. {item['examples'][0]}" if item["examples"] else ""
            console.print(f"  {title} {item['count']:>6}  {name}: {item['why']}{example}", style=style, markup=False)


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
