"""`evoplane monitor`, `evoplane diagnose`, `evoplane evolve`: ask the control plane to look, or to act."""

from __future__ import annotations

import json as jsonlib
import subprocess
import sys
from typing import Annotated, Any

import typer

from evoplane.cli.output import Json, err, out, print_json, show
from evoplane.settings import Settings, settings
from registry import announcing, control, prefect_runs, tenants

Agent = Annotated[str, typer.Option(help="The agent.")]


def monitor(agent: Agent, json: Json = False) -> None:
    """Look at an agent now instead of at the next scheduled time.

    Emits the event `evoplane.monitor.requested`; Prefect's automation starts the run.

    Example: evoplane monitor --agent support
    """
    _emit("evoplane.monitor.requested", agent, {}, json)


def diagnose(agent: Agent, json: Json = False) -> None:
    """Why the agent fails: clusters of failures, how common each is, and the surface each suggests with its evidence.

    Reads the log as it is now; nothing is changed.

    Example: evoplane diagnose --agent support
    """
    found = _look("diagnose", agent)
    if json:
        print_json(found)
    else:
        out.print(found["page"], markup=False, highlight=False)


def evolve(
    agent: Agent,
    reason: Annotated[str, typer.Option(help="Why; kept with the decision.")] = "asked by an operator",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Decide, print the decision, and stop before anything is delivered.")
    ] = False,
    json: Json = False,
) -> None:
    """Start an evolution without waiting for an alert; all gates apply.

    It goes into the ledger of alerts: where one is open already, the reason joins it, and one evolution answers both.

    A dry run works in this terminal: candidates are made, trained and replayed, but nothing is kept or left loaded.

    Example: evoplane evolve --agent support --reason "new product line"
    """
    if not dry_run:
        _ask(agent, reason, json)
        return
    found = _look("evolve", agent, "--reason", reason)
    if json:
        print_json(found)
        return
    out.print(f"[bold]{found['state']}[/bold]: {found['message']}", highlight=False)
    out.print(found["pages"].get("decision") or "", markup=False, highlight=False)


def _look(what: str, agent: str, *more: str) -> dict[str, Any]:
    """Run `flows.dry_run` in a process of its own, as flows are; its progress is shown as it comes, its last line is
    JSON."""
    tenants.get_agent(control.connect(settings().control_db), agent)
    command = [sys.executable, "-m", "flows.dry_run", what, "--agent", agent, *more]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        err.print(f"{what} of {agent!r} failed", style="red")
        raise typer.Exit(1)
    found: dict[str, Any] = jsonlib.loads(done.stdout.splitlines()[-1])
    return found


def _ask(agent: str, reason: str, json: bool) -> None:
    config = settings()
    connection = control.connect(config.control_db)
    tenants.get_agent(connection, agent)
    alert, new = announcing.ask(config, connection, agent, reason)
    show(
        {"event": announcing.EVENT, "agent": agent, "alert": alert.id, "joined": not new, "watch": _runs(config)}, json
    )


def _runs(config: Settings) -> str:
    return f"http://127.0.0.1:{config.prefect.port}/runs"


def _emit(event: str, agent: str, payload: dict[str, object], json: bool) -> None:
    config = settings()
    tenants.get_agent(control.connect(config.control_db), agent)
    prefect_runs.emit_event(config, event, agent, {"agent": agent, **payload})
    show({"event": event, "agent": agent, "watch": _runs(config)}, json)
