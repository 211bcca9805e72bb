"""What follows the flip of a pointer: every gateway proves it, MLflow's aliases are brought in line."""

from __future__ import annotations

import msgspec

from evoplane.cli.output import err, out, show
from evoplane.settings import Settings
from registry import prefect_runs, presence, serving
from registry.pointers import Route
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


def tell(route: Route, served_in_s: float | None, json: bool) -> None:
    """What an operator wants to know of a flip in one line; with `json` the whole route."""
    if json:
        show({**msgspec.to_builtins(route), "served_in_s": served_in_s}, json)
        return
    proof = "" if served_in_s is None else f"; every gateway answered with it {served_in_s:.2f} s later"
    out.print(f"{route.agent}: version {route.champion} serves{proof}", markup=False, highlight=False)
    if route.previous is not None:
        what = "withdrawn" if route.previous == route.withdrawn else "previous"
        out.print(f"{what}: version {route.previous}", markup=False, highlight=False)
