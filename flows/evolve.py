"""evolve: from an alert to an accepted candidate, or to the reasoned decision to change nothing.

The steps are `flows.evolution`'s; this is what Prefect adds: tasks and pages on the run's page, one evolution per
agent on however many machines, the registered version, and the event that starts the delivery.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from evoplane.settings import Settings, settings
from flows import (
    deliveries,
    environment,  # noqa: F401  (before prefect)
    evolution,
    limits,
    locks,
    policies,
    recipes,
    reports,
    training,
)
from flows.candidates import answer, quality, serve, taken, withdraw
from flows.interventions import Proposal
from registry import alerts, audit, control, prefect_runs, tracking, versions
from registry.alerts import Alert
from services.worker import client

from prefect import flow, task  # isort: skip
from prefect.artifacts import create_markdown_artifact  # isort: skip
from prefect.cache_policies import NO_CACHE  # isort: skip
from prefect.runtime import flow_run  # isort: skip
from prefect.states import Completed, Failed  # isort: skip

ACCEPTED = "evoplane.candidate.accepted"


class NotLooked(Exception):
    """The agent can't be looked at now; the message says why, `state` names the run's end."""

    def __init__(self, state: evolution.State, why: str) -> None:
        super().__init__(why)
        self.state = state


class GateFailed(Exception):
    """The snapshot did not pass the data gate; nothing was decided."""


@flow(name="evolve", flow_run_name="evolve {agent}", log_prints=True)
def evolve(agent: str, reason: str = "asked", evidence: dict[str, Any] | None = None, alert: str = "") -> Any:
    """Improve one agent, if that can be shown to be an improvement.

    `alert` is the alert it answers (`registry.alerts`): an alert is answered once. Without one, the run answers the
    alert that is open, if there is one.
    """
    try:
        with limits.one_at_a_time(f"evolve-{agent}"), answering(settings(), agent, alert, str(flow_run.id)) as taken:
            if alert and taken is None:
                return Completed(name="Already answered", message=f"another run has taken alert {alert}")
            return _evolve(settings(), agent, reason if taken is None else taken.reason)
    except GateFailed as failed:
        return Failed(name="Quality gate failed", message=str(failed))
    except NotLooked as waits:
        return Completed(name=waits.state, message=f"{waits}; an alert that it took is open again")


@contextmanager
def answering(config: Settings, agent: str, alert: str, run: str) -> Iterator[Alert | None]:
    """Take the alert, or the agent's open one where none is named, for the block; None when there is none to take.

    One whose agent could not be looked at (a delivery is under way, the budget is spent, a dry run holds the lock) is
    open again afterwards: the watch announces it once none of this stands in the way.
    """
    connection = control.connect(config.control_db)
    open_ = alerts.open_alert(connection, agent)
    asked = alert or (open_.id if open_ is not None else "")
    taken = alerts.take(connection, asked, run) if asked else None
    try:
        yield taken
    except BaseException as error:
        held = _held(connection, taken, run)
        if held is not None and isinstance(error, locks.Busy | NotLooked):
            alerts.give_back(connection, held.id)
        elif held is not None:
            alerts.end(connection, held.id, "failed")
        raise
    if (held := _held(connection, taken, run)) is not None:
        alerts.end(connection, held.id, "evolved")


def _held(connection: sqlite3.Connection, alert: Alert | None, run: str) -> Alert | None:
    """The alert, if it is the run's to end: flows that started meanwhile may have taken it for dead and its alert."""
    return None if alert is None else alerts.take(connection, alert.id, run)


def _evolve(config: Settings, agent: str, reason: str) -> Any:
    connection = control.connect(config.control_db)
    under_way = deliveries.under_way(connection, agent)
    if under_way:
        raise NotLooked("Delivery in progress", f"version {under_way[0]} is being delivered")
    found = evolution.run(config, connection, agent, reason, _work())
    if found.state == "Over budget":
        raise NotLooked(found.state, found.message)
    policies.retire(config, connection)
    if found.state == "Quality gate failed":
        audit.append(connection, "evolve", "data_gate.failed", agent, {**found.record, "why": found.message})
        raise GateFailed(found.message)
    if found.state != "Accepted":
        decided = f"decision {found.decision_id}: " if found.decision_id else ""
        return Completed(name=found.state, message=decided + found.message)
    version = register(config, connection, agent, found)
    prefect_runs.emit_event(
        config, ACCEPTED, agent,
        {"agent": agent, "version": version, "skip_shadow": False, "decision": found.decision_id},
    )  # fmt: skip
    chosen = found.record["chosen"]
    return Completed(name="Accepted", message=f"version {version}: {chosen}, decision {found.decision_id}")


def _work() -> evolution.Work:
    return evolution.Work(
        snapshot=taken, quality=quality, answer=answer, train=train_adapter, serve=serve, withdraw=withdraw,
        step=_as_task, show=_shown,
    )  # fmt: skip


def _as_task(name: str, step: Callable[..., Any], *args: Any) -> Any:
    return task(name=name.split()[0], task_run_name=name, cache_policy=NO_CACHE)(step)(*args)


def _shown(key: str, page: str) -> None:
    create_markdown_artifact(key=key, markdown=page)


def train_adapter(config: Settings, agent: str, proposal: Proposal) -> dict[str, Any]:
    """Train the proposed adapter; progress goes to the run page, metrics to MLflow."""
    try:
        return _train_adapter(config, agent, proposal)
    except training.TrainingFailed as error:
        raise evolution.CandidateFailed(str(error)) from error


def _train_adapter(config: Settings, agent: str, proposal: Proposal) -> dict[str, Any]:
    chosen = training.make_training_set(config, agent, recipes.kind(proposal.content))
    run = tracking.start_run(
        config, agent, f"train {proposal.name}", {**proposal.content, "training_set": chosen.id, "rows": chosen.train}
    )
    tracking.log_folder(config, run, Path(chosen.path), "training-set")
    tracking.log_folder(config, run, Path(chosen.path).parent / "dvc.lock", "training-set")
    progress = reports.Progress(f"training-{agent}", f"{proposal.name}: {chosen.train} examples")

    def on_metrics(line: dict[str, Any]) -> None:
        step = int(line.get("step", 0))
        tracking.log_metrics(
            config, run, {k: v for k, v in line.items() if isinstance(v, int | float) and k != "step"}, step
        )
        if line.get("steps"):
            progress.set(100 * step / line["steps"])

    trained = None
    try:
        told = recipes.options(config, agent, proposal.content)
        trained = training.train(config, agent, chosen, on_metrics, told)
    finally:
        tracking.finish_run(config, run, ok=trained is not None)
    progress.set(100)
    client.remember_probe(config, trained.digest, trained.result.get("probe"))
    return {
        "agent": agent,
        "digest": trained.digest,
        "path": trained.path,
        "training_set": chosen.id,
        "mlflow_run": run,
        "probe": trained.result.get("probe"),
        "result": {k: v for k, v in trained.result.items() if k != "probe"},
    }


def register(config: Settings, connection: sqlite3.Connection, agent: str, found: evolution.Evolved) -> str:
    """The winner becomes a version; returns its label."""
    made, record = found.made, found.record
    proposal: Proposal = made["proposal"]
    numbers = record["candidates"][proposal.name]["replay"]
    lineage = {
        "snapshot": record["snapshot"],
        "data_gate": record["data_gate"],
        "training_set": made.get("training_set", ""),
        "replay_improvement": reports.interval_text(numbers["improvement"]),
        "replay_fixed": reports.interval_text(numbers["fixed"]),
        "replay_lost": reports.interval_text(numbers["lost"]),
        "replay_unknown": str(numbers["unknown"]),
        "decision": found.decision_id,
    }
    metrics = {f"replay_improvement_{k}": numbers["improvement"][k] for k in ("value", "low", "high")}
    version = versions.register(
        config,
        connection,
        agent,
        made["manifest"],
        parent=record["parent"],
        intervention=proposal.surface,
        description=proposal.summary,
        lineage={k: v for k, v in lineage.items() if v},
        evidence=record,
        metrics=metrics,
    )
    audit.append(
        connection, "evolve", "candidate.accepted", agent, {"version": version.version, "decision": found.decision_id}
    )
    return version.version
