"""`evoplane lineage` and `evoplane impact`: why an agent said something, and whom a version answered."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.tree import Tree

from evoplane.cli.output import Json, err, out, print_json, show
from evoplane.settings import settings
from registry import control, pointers, tenants
from registry.impact import impact as find
from registry.lineage import Explanation, explain
from registry.lineage import lineage as walk
from registry.tenants import RegistryError
from services.proxy.store import open_reader

_INDENT = 4
"""Columns a tree moves in for each level."""
_LEAST = 60
"""Columns for the words of the deepest level: an id stays whole."""


def lineage(
    event_id: Annotated[
        str | None, typer.Argument(help="Any event (answers name theirs in x-evoplane-event-id).")
    ] = None,
    agent: Annotated[str | None, typer.Option(help="The agent; needed without an event.")] = None,
    event: Annotated[str | None, typer.Option(help="The same as the argument.")] = None,
    version: Annotated[str | None, typer.Option(help="Start from a version instead; the champion by default.")] = None,
    json: Json = False,
) -> None:
    """Why did the agent say this? From an event to the version, the intervention, the decision and the approver.

    Example: evoplane lineage ev_0197…
    """
    connection = control.connect(settings().control_db)
    asked = event_id or event
    if asked is not None:
        reader = open_reader(settings())
        try:
            found = explain(connection, reader, asked, agent)
        finally:
            reader.close()
        _show(found, json)
        return
    if agent is None:
        raise RegistryError("name an event, or an agent: evoplane lineage ev_0197… (or --agent support)")
    if agent not in pointers.all_routes(connection):
        tenants.get_agent(connection, agent)
    chain = walk(connection, agent, version or pointers.read_route(connection, agent).champion)
    if json:
        print_json({"event": None, "lineage": chain})
    else:
        _tree(agent, chain)


def impact(
    agent: Annotated[str, typer.Option(help="The agent.")],
    version: Annotated[
        str | None, typer.Option(help="The version; by default the one last rolled back or aborted.")
    ] = None,
    since: Annotated[str | None, typer.Option("--from", help="Only answers from here on (RFC 3339).")] = None,
    until: Annotated[str | None, typer.Option("--to", help="Only answers before this.")] = None,
    json: Json = False,
) -> None:
    """Whom did a version answer? Sessions, tenants, events, and whether somebody corrected them.

    Example: evoplane impact --agent support --version 4
    """
    reader = open_reader(settings())
    try:
        found = find(control.connect(settings().control_db), reader, agent, version, since, until)
    finally:
        reader.close()
    if json:
        totals = {"answers": found.answers, "corrected_sessions": found.corrected}
        print_json({**msgspec.to_builtins(found), **totals})
        return
    for exposure in found.exposures:
        err.print(f"{exposure.role} from {exposure.since} until {exposure.until or 'now'}", highlight=False)
    served = sorted({session.tenant for session in found.sessions})
    err.print(
        f"version {found.version}: {len(found.sessions)} sessions, {found.answers} answers, tenants"
        f" {', '.join(served) or 'none'}; {found.corrected} sessions corrected",
        highlight=False,
    )
    show([_row(msgspec.to_builtins(session)) for session in found.sessions], False)


def _row(session: dict[str, Any]) -> dict[str, Any]:
    kept = ("tenant", "session_id", "first", "last", "events", "corrected", "acted")
    return {name: session[name] for name in kept}


def _show(found: Explanation, json: bool) -> None:
    if json:
        said = msgspec.to_builtins(found)
        print_json({"event": said["answer"], "lineage": said["chain"]} | {k: said[k] for k in ("state", "because")})
        return
    for line in found.because:
        out.print(line, markup=False, highlight=False)
    if len(found.chain) > 1:
        _tree("descends from", found.chain[1:])


def _tree(title: str, chain: list[dict[str, Any]]) -> None:
    """Lines are wrapped, never cut; a long descent, each version under its own, runs over the terminal's edge."""
    node = tree = Tree(f"[bold]{title}[/bold]")
    for step in chain:
        node = node.add(
            f"[bold]version {step['version']}[/bold]  {step['intervention']}: {escape(step['description'])}"
        )
        for name, value in step["evidence"].items():
            node.add(escape(f"{name}: {value}"), highlight=False)
        if step["approval"]:
            approval = step["approval"]
            node.add(f"{approval['status']} by {approval['by']} ({approval['channel']}, {approval['at']})")
        if step["served_from"]:
            node.add("served from " + ", ".join(step["served_from"]))
    width = max(out.console.width, _INDENT * (len(chain) + 1) + _LEAST)
    Console(width=width).print(tree, crop=False, overflow="fold")
