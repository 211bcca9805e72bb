"""rollback: the previous version serves again, at once and without gates.

The pointer is flipped first and needs nothing but the control database; MLflow's aliases and the proof
from the gateway follow.
"""

from __future__ import annotations

from typing import Any

from evoplane.settings import Settings, settings
from flows import (
    environment,  # noqa: F401  (before prefect)
    mirroring,
    telling,
)
from registry import control, pointers, serving, versions
from services.worker import client

from prefect import flow  # isort: skip
from prefect.states import Completed, Failed  # isort: skip


@flow(name="rollback", flow_run_name="rollback {agent} · {why}", log_prints=True)
def rollback(agent: str, to: str = "previous", why: str = "asked by an operator", mirror: bool = False) -> Any:
    """Roll one agent back; with `mirror` the pointer was flipped already and only the rest is done."""
    config = settings()
    connection = control.connect(config.control_db)
    if not mirror:
        try:
            client.load_version(config, connection, agent, to)
        except client.PolicyRefused as error:
            return Failed(name="Not loadable", message=f"version {to} cannot be served: {error}")
        pointers.rollback(connection, agent, to, why, "rollback-flow")
    try:
        champion, seconds = _follow_up(config, agent)
    except serving.NotServed as error:
        telling.rolled_back(config, connection, agent, f"NOT proven: {error}")
        return Failed(name="Not served", message=str(error))
    outcome = f"version {champion} answers (verified in {seconds:.2f} s)"
    telling.rolled_back(config, connection, agent, outcome)
    return Completed(name="Rolled back", message=outcome)


def roll_back(config: Settings, agent: str, to: str, why: str, actor: str, expected: str) -> float:
    """Roll back from inside another flow; returns the seconds the gateway took to serve it.

    Raises `RouteChanged` when `expected` is not champion any more, `NotServed` when the gateway does not
    follow. MLflow's aliases are set if it answers.
    """
    connection = control.connect(config.control_db)
    pointers.rollback(connection, agent, to, why, actor, expected=expected)
    try:
        seconds = serving.verify(config, agent, to)
    except serving.NotServed as error:
        telling.rolled_back(config, connection, agent, f"NOT proven: {error}")
        raise
    mirroring.aliases(config, connection, agent)
    telling.rolled_back(config, connection, agent, f"version {to} answers (verified in {seconds:.2f} s)")
    return seconds


def _follow_up(config: Settings, agent: str) -> tuple[str, float]:
    connection = control.connect(config.control_db)
    champion = pointers.read_route(connection, agent).champion
    seconds = serving.verify(config, agent, champion)
    versions.mirror_aliases(config, connection, agent)
    return champion, seconds
