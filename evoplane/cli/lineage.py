"""`evoplane lineage`: from one answer back to the version, the evidence and the approver."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.tree import Tree

from evoplane.cli.output import Json, out, print_json
from evoplane.settings import settings
from registry import control, pointers
from registry.lineage import lineage as walk
from registry.tenants import RegistryError
from services.proxy.store import open_reader


def lineage(
    agent: Annotated[str, typer.Option(help="The agent.")],
    event: Annotated[str | None, typer.Option(help="The answer to start from (header x-evoplane-event-id).")] = None,
    version: Annotated[str | None, typer.Option(help="Start from a version instead; the champion by default.")] = None,
    json: Json = False,
) -> None:
    """Walk from an answer to the version that gave it, the intervention, snapshot, evidence and approver.

    Example: evoplane lineage --agent support --event ev_0197…
    """
    connection = control.connect(settings().control_db)
    answer = _answer(agent, event) if event else None
    start = answer["agent_version"] if answer else version or pointers.read_route(connection, agent).champion
    chain = walk(connection, agent, start)
    if json:
        print_json({"event": answer, "lineage": chain})
        return
    tree = Tree(f"[bold]{event or agent}[/bold]" + (f"  {answer['kind']} at {answer['time']}" if answer else ""))
    node = tree
    for step in chain:
        node = node.add(f"[bold]version {step['version']}[/bold]  {step['intervention']}: {step['description']}")
        for name, value in step["evidence"].items():
            node.add(f"{name}: {value}", highlight=False)
        if step["approval"]:
            approval = step["approval"]
            node.add(f"{approval['status']} by {approval['by']} ({approval['channel']}, {approval['at']})")
        if step["served_from"]:
            node.add("served from " + ", ".join(step["served_from"]))
    out.print(tree, crop=False, no_wrap=True, overflow="ignore")


def _answer(agent: str, event_id: str) -> dict[str, Any]:
    reader = open_reader(settings())
    found = reader.find_event(event_id)
    if found is None:
        raise RegistryError(f"no event {event_id!r}")
    tenant, trajectory_id = found
    event = next(r for r in reader.records(tenant, trajectory_id) if r.get("id") == event_id)
    tags = event.get("m", {}).get("tags", {})
    if tags.get("agent") != agent:
        raise RegistryError(f"event {event_id} belongs to agent {tags.get('agent')!r}, not {agent!r}")
    return {
        "event_id": event_id,
        "tenant": tenant,
        "trajectory_id": trajectory_id,
        "kind": event["kind"],
        "time": event["time"],
        "context": event["ctx"],
        "agent_version": tags["agent_version"],
        "role": tags.get("role"),
    }
