"""monitor: how an agent's recent work looks, and the alert when it is not good enough.

    new judgements → triggers and drift, for ever → statistics of the window → artifacts → `evoplane.agent.degraded`

Triggers decide (`evaluators.triggers`, `evaluators.drift_watch`); the window's statistics and Evidently's report are
for people. One alert per agent and cause: not while a candidate is on its way, not within the debounce time, and not
again for the same version before there is substantial new evidence. A shift of the workload without a loss is reported
as `evoplane.agent.workload_shift`, which starts nothing.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from dashboards.reading import CaseReader, served
from evaluators import watching
from evaluators.cases import Case
from evaluators.diagnosis.mix import Change, change
from evaluators.diagnosis.outcomes import outcomes_of
from evaluators.drift import Drift
from evaluators.statistics import Statistics, summarise, table
from evaluators.watching import Memo, Seen
from evoplane.settings import Price, Settings, settings
from flows import (
    alert_hooks,
    deliveries,
    environment,  # noqa: F401  (before prefect)
    reports,
    telling,
    tracing,
)
from flows.budget import over_budget
from flows.outcomes import newly_judged
from registry import alerts, announcing, approvals, control, pointers, prefect_runs
from registry.alerts import Cause
from services.proxy.store import StoreReader, open_reader

from prefect import flow, task  # isort: skip
from prefect.artifacts import create_link_artifact, create_markdown_artifact, create_table_artifact  # isort: skip
from prefect.cache_policies import NO_CACHE  # isort: skip
from prefect.states import Completed  # isort: skip

ALERT = announcing.EVENT
SHIFT = "evoplane.agent.workload_shift"


@flow(name="monitor", flow_run_name="monitor {agent}", log_prints=True)
def monitor(agent: str) -> Any:
    """Look at one agent once."""
    state, message = look(agent)
    return Completed(name=state, message="; ".join([message, *sent(settings())]))


@flow(name="monitor-all", flow_run_name="scheduled look", log_prints=True)
def monitor_all() -> Any:
    """Look at every agent that serves a version."""
    agents = sorted(pointers.all_routes(control.connect(settings().control_db)))
    lines = [f"{agent}: {', '.join(look(agent))}" for agent in agents]
    lines += sent(settings())
    return Completed(message="; ".join(lines) or "no agent serves a version yet")


def look(agent: str) -> tuple[str, str]:
    """Compute, publish, and alert if it is called for; returns (state, sentence)."""
    config = settings()
    connection = control.connect(config.control_db)
    routes = pointers.all_routes(connection)
    if agent not in routes:
        return "No version", f"agent {agent!r} serves no version yet"
    champion = routes[agent].champion
    announce_again(config, connection, agent)
    telling.rolled_back(config, connection, agent)  # one that no flow heard of
    reader = open_reader(config)
    with watching.memo(config.var, agent) as state:
        for judged, cursor in newly_judged(reader, agent, champion, state.cursor):
            watching.take(state, champion, judged, config.monitor)
            state.cursor = cursor
        watching.take(state, champion, [], config.monitor)
        found = watching.seen(state, config.monitor)
        cases = CaseReader(reader, agent).read(limit=config.monitor.window)
        mine = served(cases, champion)
        window = [c for c in mine if c.success is not None][-config.monitor.window :]
        newest = max((c.judged_at for c in window), default="")
        seen = f"{champion}/{len(window)}/{newest}"
        if seen == state.seen:
            return "Nothing new", f"version {champion}: {len(window)} judged decisions"
        statistics = statistics_of(config, connection, agent, reader, mine, cases, found)
        drift, shift = look_for_drift(agent, window)
        publish_statistics(agent, champion, statistics, drift, found, shift)
        tracing.to_mlflow(config, reader, agent, window)
        state.seen = seen
        state.last_drift = watching.last_drift(drift, control.now())
        evidence = {
            "statistics": msgspec.to_builtins(statistics),
            "drift": msgspec.to_builtins(drift),
            "triggers": msgspec.to_builtins(found),
            "shift": msgspec.to_builtins(shift),
        }
        if found.cause is None:
            report_shift(config, agent, champion, state, found, evidence)
            return statistics.state.capitalize(), statistics.reason
        held = held_back(config, agent, champion, found.cause[0], window, state, time.time())
        if held:
            state.seen = ""  # the next look decides again, new data or not
            return "Alert held back", f"{found.cause[1]}; {held}"
        degraded(config, connection, agent, champion, found.cause, evidence)
        state.alerts[found.cause[0]] = {"at": time.time(), "version": champion, "newest": newest}
        watching.told(state, found)
        return "Degraded", found.cause[1]


def statistics_of(
    config: Settings,
    connection: sqlite3.Connection,
    agent: str,
    reader: StoreReader,
    mine: Sequence[Case],
    cases: Sequence[Case],
    found: Seen | None,
) -> Statistics:
    """Statistics of the champion's decisions `mine` among all of the agent's `cases`."""
    prices = {
        v: config.prices.get(b.manifest.policy.served_name) for v, b in pointers.versions(connection, agent).items()
    }

    def price_of(case: Case) -> Price | None:
        return prices.get(case.agent_version)

    window = config.monitor.window
    ended = {
        (t, r.trajectory_id): r.closed for t in reader.tenants() for r in reader.trajectories(t, agent, limit=window)
    }
    return summarise(
        mine,
        target=config.monitor.target_success,
        min_outcomes=config.monitor.min_outcomes,
        alpha=config.monitor.alpha,
        price_of=price_of,
        ended=ended,
        canary=[c for c in cases if c.role == "canary" and c.purpose == "serve"],
        alarms=None if found is None else [found.cause[1]] if found.cause else [],
    )


@task(cache_policy=NO_CACHE, task_run_name="drift {agent}")
def look_for_drift(agent: str, window: list[Case]) -> tuple[Drift, Change | None]:
    """The newer half of the window against the older half; the report goes to the Evidently workspace."""
    from evaluators import drift

    config = settings()
    half = len(window) // 2
    current, reference = window[half:], window[:half]
    shift = None
    if current and reference:
        shift = change(outcomes_of(current), outcomes_of(reference), config.monitor.alpha)
    if half < drift.MIN_ROWS:
        return Drift("not enough data", {}, (), 0.0, len(current), len(reference)), shift
    text = drift.texts(current, reference, config.monitor)
    found, run = drift.compare(drift.frame(current), drift.frame(reference), config.monitor, text)
    if run is None:
        return found, shift
    url = drift.publish(run, config.var / "evidently", agent, config.evidently_url)
    return msgspec.structs.replace(found, report_url=url), shift


def degraded(
    config: Settings,
    connection: sqlite3.Connection,
    agent: str,
    champion: str,
    cause: tuple[str, str],
    evidence: dict[str, Any],
) -> None:
    """Raise the alert: recorded first, then announced; an alert that is open already takes this cause in."""
    name, reason = cause
    alert, new = alerts.raise_alert(
        connection, agent, Cause(name, reason, control.now(), champion), reports.finite(evidence)
    )
    payload = {"agent": agent, "reason": reason, "version": champion, "cause": name}
    alert_hooks.enqueue(config, ALERT, alert.id, payload, time.time())
    if new:
        announcing.announce(config, connection, alert)


def announce_again(config: Settings, connection: sqlite3.Connection, agent: str) -> None:
    """An alert nobody took: its event was lost, the flows were away, or what kept the agent from being looked at is
    over. Taking it twice is impossible.
    """
    waiting = alerts.open_alert(connection, agent)
    if waiting is None or prefect_runs.seconds_since(waiting.announced_at) < max(60.0, config.monitor.debounce_s):
        return
    if deliveries.under_way(connection, agent) or over_budget(config, connection, agent):
        return
    announcing.announce(config, connection, waiting)


def report_shift(
    config: Settings, agent: str, champion: str, state: Memo, found: Seen, evidence: dict[str, Any]
) -> None:
    """Other work, done as well as ever: said once, and what is new becomes what is compared with."""
    if not found.workload:
        return
    reason = f"other work, no loss: {'; '.join(map(str, found.workload))}"
    payload = {"agent": agent, "reason": reason, "version": champion, "cause": "workload"}
    id = f"shift-{agent}-{champion}-{state.drift.epoch}"
    alert_hooks.enqueue(config, SHIFT, id, payload, time.time())
    prefect_runs.emit_event(config, SHIFT, agent, {**payload, "evidence": reports.finite(evidence)})
    watching.told(state, Seen([], found.moved))


def sent(config: Settings) -> list[str]:
    """Webhooks that wait are tried; what a person should know of it."""
    report = alert_hooks.send(config)
    traces = tracing.to_collector(config)
    return [
        *(f"told {hook}" for hook in report.sent),
        *(f"NOT told {why}" for why in report.failed),
        *([traces] if traces else []),
    ]


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


def publish_statistics(
    agent: str, champion: str, statistics: Statistics, drift: Drift, found: Seen, shift: Change | None
) -> None:
    create_table_artifact(
        key=f"statistics-{agent}",
        table=table(statistics),
        description=f"**{agent}**, version {champion}: {statistics.state} ({statistics.reason})",
    )
    create_markdown_artifact(key=f"drift-{agent}", markdown=reports.drift_page(agent, drift, found, shift))
    if drift.report_url:
        create_link_artifact(
            key=f"drift-report-{agent}", link=drift.report_url, link_text=f"Evidently: drift of {agent}"
        )
