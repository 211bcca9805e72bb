"""What follows the flip of a pointer: every gateway proves it, MLflow's aliases are brought in line."""

from __future__ import annotations

from evoplane.cli.output import err
from evoplane.settings import Settings
from registry import prefect_runs, presence, serving
from registry.tenants import RegistryError


def proven(config: Settings, agent: str, version: str) -> float | None:
    """Seconds until every gateway answered with the version; None when none runs. Raises `NotServed`."""
    if not presence.gateways(config):
        err.print("no gateway runs on this machine: it will serve this version when it starts", style="yellow")
        return None
    return serving.verify(config, agent, version)


def mirror(config: Settings, agent: str) -> None:
    """Ask the rollback flow to bring MLflow's aliases in line; users are served right already."""
    try:
        prefect_runs.emit_event(config, "evoplane.rollback.requested", agent, {"agent": agent, "mirror": True})
    except (OSError, RegistryError) as error:
        err.print(f"served right already; MLflow's aliases follow when Prefect is back ({error})", style="yellow")
