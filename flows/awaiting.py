"""What a delivery waits for reaches its run: a decision, wherever it was made, or the end of its time.

People decide in the console, on the command line, in Prefect's form, by a tag in MLflow; the record is the control
database's, and the run that is suspended in Prefect is told from here. When nobody decides in time the run is
told that too. A run that Prefect gave up itself (its own deadline passes while everything is down) has no process
left that could end its delivery: it is ended here.
"""

from __future__ import annotations

import logging
import sqlite3
import time

from evoplane.settings import Settings
from flows import environment  # noqa: F401  (before prefect)
from flows.deliver import deliver, end_delivery
from registry import approvals, candidates, control, mlflow_approvals, pointers, prefect_runs
from registry.tenants import RegistryError

from prefect import get_client  # isort: skip
from prefect.client.schemas.filters import (  # isort: skip
    FlowFilter,
    FlowFilterName,
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import StateType  # isort: skip

_log = logging.getLogger("flows.awaiting")
_LOOK_S = 2.0
_MLFLOW_LOOK_S = 10.0


def follow(config: Settings) -> None:
    """Look for ever, every two seconds; whoever is away is asked again at the next look.

    Tags by which people approve in MLflow are brought by its webhook; looking finds what that missed.
    """
    connection = control.connect(config.control_db)
    told = {a.id for a in approvals.list_approvals(connection) if a.status != "pending"}
    looked, installed = 0.0, False
    while True:
        time.sleep(_LOOK_S)
        try:
            resume_decided(config, connection, told)
            end_expired(config, connection)
            waits = any(a.status == "pending" for a in approvals.list_approvals(connection))
            if waits and time.monotonic() - looked > _MLFLOW_LOOK_S:
                looked = time.monotonic()
                if not mlflow_approvals.answers(config):
                    continue  # its client would wait for minutes, and what people decide elsewhere with it
                if not installed:
                    _log.info("MLflow's webhook for approvals: %s", mlflow_approvals.install(config))
                    installed = True
                for outcome in mlflow_approvals.reconcile(config, connection):
                    _log.info("approval by MLflow's tag: %s", outcome)
        except Exception as error:  # MLflow or Prefect away, or busy: the next look is soon
            _log.warning("approvals could not be followed: %s", error)


def resume_decided(config: Settings, connection: sqlite3.Connection, told: set[str]) -> None:
    """Resume the runs of approvals that were decided, or whose time was up, since the last look.

    `told` are those that need nothing more. A run that cannot be told now keeps no other from it.
    """
    for asked in approvals.list_approvals(connection):
        if asked.id in told:
            continue
        if asked.status == "pending" and asked.left_s() <= 0:
            asked = approvals.get(connection, asked.id)
        if asked.status == "pending":
            continue
        try:
            if asked.flow_run_id is not None:
                prefect_runs.resume_approval(config, asked)
            told.add(asked.id)
        except RegistryError as error:
            _log.warning("the run of approval %s could not be told that it is %s: %s", asked.id, asked.status, error)


def end_expired(config: Settings, connection: sqlite3.Connection) -> None:
    """End the deliveries whose approval expired and whose run is gone: Prefect failed it without a word to us."""
    for agent in pointers.all_routes(connection):
        last = {a.version: a for a in approvals.list_approvals(connection, agent)}
        expired = [a for a in last.values() if a.status == "expired" and _waits(connection, a)]
        open_runs = open_deliveries(agent) if expired else {}
        for asked in expired:
            if asked.version not in open_runs.values():  # another run of it asks anew
                _log.warning("delivery of %s version %s ends: its approval expired", agent, asked.version)
                end_delivery(config, agent, asked.version, "Expired", f"approval {asked.id}: {asked.reason}")


def open_deliveries(agent: str) -> dict[str, str]:
    """The agent's runs that have not ended: flow run id -> version."""
    types = [StateType.SCHEDULED, StateType.PENDING, StateType.RUNNING, StateType.PAUSED]
    wanted = FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=types)))
    # of deliveries alone: Prefect gives 200 runs at a time, and of scheduled looks there may be many more
    flow = FlowFilter(name=FlowFilterName(any_=[deliver.name]))
    with get_client(sync_client=True) as client:
        runs = client.read_flow_runs(flow_filter=flow, flow_run_filter=wanted)
    mine = [r for r in runs if r.parameters.get("agent") == agent and "version" in r.parameters]
    return {str(r.id): r.parameters["version"] for r in mine}


def _waits(connection: sqlite3.Connection, asked: approvals.Approval) -> bool:
    known = candidates.get(connection, asked.agent, asked.version)
    return known is not None and known.state == "approval"
