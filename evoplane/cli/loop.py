"""`evoplane monitor`, `evoplane evolve`: ask the control plane to look, or to act."""

from __future__ import annotations

from typing import Annotated

import typer

from evoplane.cli.output import Json, show
from evoplane.settings import settings
from registry import control, prefect_runs, tenants

Agent = Annotated[str, typer.Option(help="The agent.")]


def monitor(agent: Agent, json: Json = False) -> None:
    """Look at an agent now instead of at the next scheduled time.

    Emits the event `evoplane.monitor.requested`; Prefect's automation starts the run.

    Example: evoplane monitor --agent support
    """
    _emit("evoplane.monitor.requested", agent, {}, json)


def evolve(
    agent: Agent,
    reason: Annotated[str, typer.Option(help="Why; kept with the decision.")] = "asked by an operator",
    json: Json = False,
) -> None:
    """Start an evolution without waiting for an alert; all gates apply.

    Example: evoplane evolve --agent support --reason "new product line"
    """
    _emit("evoplane.agent.degraded", agent, {"reason": reason, "evidence": {}}, json)


def _emit(event: str, agent: str, payload: dict[str, object], json: bool) -> None:
    config = settings()
    tenants.get_agent(control.connect(config.control_db), agent)
    prefect_runs.emit_event(config, event, agent, {"agent": agent, **payload})
    show({"event": event, "agent": agent, "watch": f"http://127.0.0.1:{config.prefect.port}/runs"}, json)
