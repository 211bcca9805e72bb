"""The flows' process: `python -m flows.serve`.

Waits for the Prefect server, creates deployments and automations, puts right what a crash left behind,
then serves. Evolutions and deliveries run here, at most `prefect.concurrent_runs` together; looks and
rollbacks are served by a child process, so they never queue behind a long run. Where judging or the reading of replies
is on, another child serves those: a canary that waits for verdicts must not be what they wait for.
"""

from __future__ import annotations

import argparse
import ctypes
import logging
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import httpx

from evoplane.settings import Settings, ending_when_wrong, settings
from flows import automations, awaiting, deliveries, environment  # noqa: F401  (before prefect)
from flows.deliver import deliver, take_out
from flows.evolve import evolve
from flows.judging import judging, judging_all
from flows.monitor import monitor, monitor_all
from flows.replies import replies, replies_all
from flows.rollback import rollback
from registry import alerts, approvals, control, pointers, prefect_runs, versions

from prefect import Flow, get_client, serve  # isort: skip
from prefect.client.orchestration import SyncPrefectClient  # isort: skip
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterState, FlowRunFilterStateType  # isort: skip
from prefect.client.schemas.objects import ConcurrencyLimitConfig, ConcurrencyLimitStrategy, StateType  # isort: skip
from prefect.deployments.runner import RunnerDeployment  # isort: skip
from prefect.exceptions import ObjectNotFound  # isort: skip
from prefect.states import Crashed  # isort: skip

_log = logging.getLogger("flows.serve")
_SERVER_WAIT_S = 300.0
_QUICK = "--quick"
"""Argument of the child process that serves looks and rollbacks."""
_SIGNALS = "--signals"
"""Argument of the child process that serves judging and the reading of replies."""
_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m flows.serve", description="Serve the flows (`evoplane up` does).")
    only = parser.add_mutually_exclusive_group()
    only.add_argument(_QUICK, action="store_true", help="looks and rollbacks only; started by the process itself")
    only.add_argument(_SIGNALS, action="store_true", help="judging and replies only; started by the process itself")
    told = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs every URL, an alert hook's password and all
    config = settings()
    if told.quick or told.signals:
        wait_for_server(config)
        _die_with_parent()
        (serve_quick if told.quick else serve_signals)(config)
        return 0
    ready_file(config).unlink(missing_ok=True)
    wait_for_server(config)
    wanted = [_QUICK, *([_SIGNALS] if signal_deployments(config) else [])]
    children = [subprocess.Popen([sys.executable, "-m", "flows.serve", which]) for which in wanted]
    try:
        serve_long(config, children[0])
    finally:
        ready_file(config).unlink(missing_ok=True)
        for child in children:
            child.terminate()
        for child in children:
            child.wait(timeout=30)
    return 0


def serve_long(config: Settings, child: subprocess.Popen[bytes]) -> None:
    """Evolutions and deliveries. Automations are written once the child's deployments exist too.

    Deployments are not paused on shutdown: what is scheduled while the flows are away runs when they are back.
    """

    def set_up() -> None:
        try:
            with get_client(sync_client=True) as client:
                for name in ("monitor/on-request", "rollback/rollback", "evolve/evolve", "deliver/deliver"):
                    _wait_for_deployment(client, name, child)
                _log.info("automations: %s", ", ".join(automations.install(client)))
            take_up_deliveries(config)
            ready_file(config).write_text(str(os.getpid()))
            mirror_all(config)
        except Exception:
            _log.exception("the flows cannot be started by events: stopping")
            os.kill(os.getpid(), signal.SIGTERM)

    crash_orphans()
    give_back_alerts(config)
    threading.Thread(target=set_up, name="automations", daemon=True).start()
    threading.Thread(target=awaiting.follow, args=(config,), name="approvals", daemon=True).start()
    serve(
        _deployment(evolve, "evolve", description="find and prove an improvement"),
        _deployment(deliver, "deliver", description="shadow, canary, approval, promotion"),
        limit=config.prefect.concurrent_runs,
        pause_on_shutdown=False,
        print_starting_message=False,
    )


def serve_quick(config: Settings) -> None:
    """Looks (on request and on schedule) and rollbacks. A scheduled look that finds another one running is dropped."""
    serve(
        _deployment(monitor, "on-request", description="look at an agent now"),
        _deployment(rollback, "rollback", description="the previous version serves again"),
        _scheduled(monitor_all, config.monitor.interval_s, "look at every agent"),
        limit=1,
        pause_on_shutdown=False,
        print_starting_message=False,
    )


def serve_signals(config: Settings) -> None:
    """What `signal_deployments` says, one run at a time."""
    serve(*signal_deployments(config), limit=1, pause_on_shutdown=False, print_starting_message=False)


def signal_deployments(config: Settings) -> list[RunnerDeployment]:
    """Judging and the reading of replies, on request and on schedule, each only where its interval is set."""
    found = []
    if config.judge.interval_s:
        found.append(_deployment(judging, "on-request", description="judge an agent's new answers now"))
        found.append(_scheduled(judging_all, config.judge.interval_s, "judge every agent's new answers"))
    if config.next_state.interval_s:
        found.append(_deployment(replies, "on-request", description="read the replies to an agent now"))
        found.append(_scheduled(replies_all, config.next_state.interval_s, "read the replies to every agent"))
    return found


def _scheduled(served: Flow[..., Any], interval_s: int, description: str) -> RunnerDeployment:
    """Every so many seconds; a run that finds another one running is dropped."""
    one = ConcurrencyLimitConfig(limit=1, collision_strategy=ConcurrencyLimitStrategy.CANCEL_NEW)
    every = timedelta(seconds=interval_s)
    return _deployment(served, "scheduled", interval=every, concurrency_limit=one, description=description)


def _deployment(served: Flow[..., Any], name: str, **options: Any) -> RunnerDeployment:
    return cast(RunnerDeployment, served.to_deployment(name, tags=["evoplane"], **options))


def ready_file(config: Settings) -> Path:
    """Holds our process id while events start flows: what a health check looks at."""
    return config.var / "flows.ready"


def wait_for_server(config: Settings) -> None:
    deadline = time.monotonic() + _SERVER_WAIT_S
    while time.monotonic() < deadline:
        try:
            if httpx.get(f"{config.prefect_api_url}/health", timeout=5).is_success:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.5)
    raise SystemExit(f"no Prefect server at {config.prefect_api_url} within {_SERVER_WAIT_S:.0f} s")


def crash_orphans() -> None:
    """Runs that are still Running although nothing of ours runs yet lost their process without a word."""
    states = FlowRunFilterStateType(any_=[StateType.RUNNING, StateType.PENDING, StateType.CANCELLING])
    with get_client(sync_client=True) as client:
        for run in client.read_flow_runs(flow_run_filter=FlowRunFilter(state=FlowRunFilterState(type=states))):
            _log.warning("run %s was left %s: crashed", run.name, run.state_name)
            message = "its process was gone when the flows started"
            client.set_flow_run_state(run.id, Crashed(message=message), force=True)


def give_back_alerts(config: Settings) -> None:
    """Alerts whose evolution died are open again: the next look announces them."""
    connection = control.connect(config.control_db)
    for alert in alerts.taken(connection):
        _log.warning("alert %s of %s: its run %s is gone", alert.id, alert.agent, alert.taken_by)
        alerts.give_back(connection, alert.id)


def take_up_deliveries(config: Settings) -> None:
    """Every accepted candidate whose delivery was cut off goes on: resumed if decided, else delivered anew."""
    connection = control.connect(config.control_db)
    for agent in pointers.all_routes(connection):
        open_runs = awaiting.open_deliveries(agent)
        take_out_leftovers(connection, agent, set(open_runs.values()))
        for version in deliveries.under_way(connection, agent):
            if version not in open_runs.values():
                payload = {"agent": agent, "version": version, "skip_shadow": False}
                prefect_runs.emit_event(config, "evoplane.candidate.accepted", agent, payload)
                _log.warning("delivery of %s version %s was cut off: started anew", agent, version)
        for asked in approvals.list_approvals(connection, agent):
            if asked.flow_run_id in open_runs and asked.status in ("approved", "rejected"):
                prefect_runs.resume_approval(config, asked)


def take_out_leftovers(connection: sqlite3.Connection, agent: str, delivered: set[str]) -> None:
    """End a canary or shadow whose run died without its hook: users must not wait for the next delivery."""
    route = pointers.read_route(connection, agent)
    for version in {route.canary, route.shadow} - {None} - delivered:
        take_out(connection, agent, str(version), "its delivery was gone when the flows started")


def mirror_all(config: Settings) -> None:
    """Make up for what MLflow missed while it or the flows were away. Last of all: its client waits long for it."""
    for agent in pointers.all_routes(control.connect(config.control_db)):
        try:
            versions.mirror_aliases(config, control.connect(config.control_db), agent)
        except Exception as error:  # MLflow being away must not keep flows from being served
            _log.warning("MLflow's aliases of %s could not be mirrored: %s", agent, error)


def _wait_for_deployment(client: SyncPrefectClient, name: str, child: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _SERVER_WAIT_S
    while time.monotonic() < deadline:
        if child.poll() is not None:
            raise RuntimeError(f"the process for looks and rollbacks ended with status {child.returncode}")
        try:
            client.read_deployment_by_name(name)
            return
        except ObjectNotFound:
            time.sleep(0.5)
    raise RuntimeError(f"deployment {name} did not appear within {_SERVER_WAIT_S:.0f} s")


def _die_with_parent() -> None:
    """The child must not outlive a killed parent: the kernel ends it then."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


if __name__ == "__main__":
    with ending_when_wrong():
        sys.exit(main(sys.argv[1:]))
