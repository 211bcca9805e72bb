"""monitor: how an agent's recent work looks, and the alert when it is not good enough.

    statistics with intervals → drift (Evidently) → artifacts → `evoplane.agent.degraded`

One alert per agent and cause: not while a candidate is on its way, not within the debounce time, and not
again for the same version before there is substantial new evidence.
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from evaluators.cases import Case
from evaluators.drift import Drift
from evaluators.statistics import Statistics, summarise, table
from evoplane.settings import Settings, settings
from flows import (
    environment,  # noqa: F401  (before prefect)
    reports,
)
from flows.reading import CaseReader, served
from registry import approvals, control, pointers, prefect_runs
from services.proxy.store import open_reader

from prefect import flow, task  # isort: skip
from prefect.artifacts import create_link_artifact, create_markdown_artifact, create_table_artifact  # isort: skip
from prefect.cache_policies import NO_CACHE  # isort: skip
from prefect.states import Completed  # isort: skip

ALERT = "evoplane.agent.degraded"
_WORKLOAD = frozenset({"success", "corrected", "action", "tenant", "request_words"})
"""Columns whose drift an intervention can answer; latency and token counts are shown, not alerted on."""


class Memo(msgspec.Struct, kw_only=True):
    """What the last look left behind, by agent: var/monitor/<agent>.json."""

    seen: str = ""
    """Version, number of judged decisions and the last judgement: unchanged means nothing new."""
    alerts: dict[str, dict[str, Any]] = {}
    """By cause: {"at", "version", "newest"} of the last alert; `newest` is its window's last judgement."""


@flow(name="monitor", flow_run_name="monitor {agent}", log_prints=True)
def monitor(agent: str) -> Any:
    """Look at one agent once."""
    state, message = look(agent)
    return Completed(name=state, message=message)


@flow(name="monitor-all", flow_run_name="scheduled look", log_prints=True)
def monitor_all() -> Any:
    """Look at every agent that serves a version."""
    agents = sorted(pointers.all_routes(control.connect(settings().control_db)))
    lines = [f"{agent}: {': '.join(look(agent))}" for agent in agents]
    return Completed(message="; ".join(lines) or "no agent serves a version yet")


def look(agent: str) -> tuple[str, str]:
    """Compute, publish, and alert if it is called for; returns (state, sentence)."""
    config = settings()
    routes = pointers.all_routes(control.connect(config.control_db))
    if agent not in routes:
        return "No version", f"agent {agent!r} serves no version yet"
    champion = routes[agent].champion
    with memo(config, agent) as state:
        window = judged_window(config, agent, champion)
        newest = max((c.judged_at for c in window), default="")
        seen = f"{champion}/{len(window)}/{newest}"
        if seen == state.seen:
            return "Nothing new", f"version {champion}: {len(window)} judged decisions"
        statistics = summarise(
            window,
            target=config.monitor.target_success,
            min_outcomes=config.monitor.min_outcomes,
            alpha=config.monitor.alpha,
        )
        drift = look_for_drift(agent, window)
        publish_statistics(agent, champion, statistics, drift)
        state.seen = seen
        cause = alert_cause(statistics, drift, config)
        if cause is None:
            return statistics.state.capitalize(), statistics.reason
        held = held_back(config, agent, champion, cause[0], window, state, time.time())
        if held:
            state.seen = ""  # the next look decides again, new data or not
            return "Alert held back", f"{cause[1]}; {held}"
        evidence = {"statistics": msgspec.to_builtins(statistics), "drift": msgspec.to_builtins(drift)}
        payload = {"agent": agent, "reason": cause[1], "version": champion, "evidence": reports.finite(evidence)}
        prefect_runs.emit_event(config, ALERT, agent, payload)
        state.alerts[cause[0]] = {"at": time.time(), "version": champion, "newest": newest}
        return "Degraded", cause[1]


def judged_window(config: Settings, agent: str, champion: str) -> list[Case]:
    """The champion's most recent judged decisions, oldest first."""
    reader = CaseReader(open_reader(config), agent)
    cases = served(reader.read(limit=config.monitor.window), champion)
    return [c for c in cases if c.success is not None][-config.monitor.window :]


@task(cache_policy=NO_CACHE, task_run_name="drift {agent}")
def look_for_drift(agent: str, window: list[Case]) -> Drift:
    """The newer half of the window against the older half; the report goes to the Evidently workspace."""
    from evaluators import drift

    config = settings()
    half = len(window) // 2
    if half < drift.MIN_ROWS:
        return Drift("not enough data", {}, (), 0.0, len(window) - half, half)
    found, run = drift.compare(drift.frame(window[half:]), drift.frame(window[:half]), config.monitor.alpha)
    url = drift.publish(run, config.var / "evidently", agent, config.evidently_url)
    return msgspec.structs.replace(found, report_url=url)


def alert_cause(statistics: Statistics, drift: Drift, config: Settings) -> tuple[str, str] | None:
    """(cause, sentence) when the agent is worth an evolution."""
    target = config.monitor.target_success
    if statistics.state == "degraded":
        return "success", f"success {statistics.success.value:.2f} < {target:.2f}"
    moved = sorted(_WORKLOAD & set(drift.drifted))
    if statistics.state != "not enough data" and moved and statistics.success.value < target:
        return "drift", f"drift in {', '.join(moved)}"
    return None


def held_back(
    config: Settings, agent: str, champion: str, cause: str, window: Sequence[Case], state: Memo, at: float
) -> str | None:
    """Why an alert must not go out now, or None.

    New evidence is counted by when it was judged: the window's length says nothing once it is full.
    """
    connection = control.connect(config.control_db)
    route = pointers.read_route(connection, agent)
    if route.canary or route.shadow:
        return f"version {route.canary or route.shadow} is being tried out"
    waiting = [
        a.version
        for record in approvals.list_approvals(connection, agent)
        if (a := approvals.get(connection, record.id)).status == "pending"
    ]
    if waiting:
        return f"version {waiting[0]} waits for approval"
    last = state.alerts.get(cause)
    if last is None:
        return None
    if at - last["at"] < config.monitor.debounce_s:
        return f"alerted {at - last['at']:.0f} s ago"
    judged_since = sum(c.judged_at > last.get("newest", "") for c in window)
    if last["version"] == champion and judged_since < config.monitor.min_outcomes // 2:
        return "no substantial new evidence since the last alert"
    return None


@contextmanager
def memo(config: Settings, agent: str) -> Iterator[Memo]:
    """The agent's memo, locked: simultaneous looks take turns, so one cause gives one alert."""
    folder = config.var / "monitor"
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{agent}.json"
    with (folder / f"{agent}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        state = msgspec.json.decode(file.read_bytes(), type=Memo) if file.exists() else Memo()
        yield state
        _replace(file, msgspec.json.encode(state))


def publish_statistics(agent: str, champion: str, statistics: Statistics, drift: Drift) -> None:
    create_table_artifact(
        key=f"statistics-{agent}",
        table=table(statistics),
        description=f"**{agent}**, version {champion}: {statistics.state} ({statistics.reason})",
    )
    lines = [f"# Drift of {agent}: {drift.state}", "", f"{drift.current} decisions against {drift.reference} earlier."]
    if drift.columns:
        lines += ["", f"| column | p | below {drift.threshold:.4f} |", "|---|---|---|"]
        lines += [f"| {c} | {p:.4g} | {'**yes**' if p < drift.threshold else 'no'} |" for c, p in drift.columns.items()]
    create_markdown_artifact(key=f"drift-{agent}", markdown="\n".join(lines))
    if drift.report_url:
        create_link_artifact(
            key=f"drift-report-{agent}", link=drift.report_url, link_text=f"Evidently: drift of {agent}"
        )


def _replace(file: Path, content: bytes) -> None:
    temporary = file.with_suffix(".tmp")
    temporary.write_bytes(content)
    temporary.replace(file)
