"""What went wrong for others when agents are watched; each case is one test that states the right value."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from evaluators import drift
from evaluators.canary import judge_canary
from evaluators.cases import Case
from evaluators.drift_watch import DriftWatch, follow, moved
from evaluators.statistics import summarise
from evoplane.settings import Monitor, Settings
from flows import monitor
from registry import alerts, control
from tests.evaluators.conftest import make_case
from tests.evaluators.test_drift import window

CONFIG = Monitor(text_drift="off")
WORSE = ("success", "success 0.40 < 0.90")


@pytest.fixture
def config(tmp_path: Path) -> Settings:
    return Settings.model_validate({"paths": {"var": str(tmp_path)}})


@pytest.fixture
def emitted(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What Prefect was told."""
    told: list[dict[str, Any]] = []

    def emit(_: Settings, event: str, agent: str, payload: dict[str, Any]) -> str:
        told.append({"event": event, "agent": agent, **payload})
        return str(len(told))

    monkeypatch.setattr(monitor.prefect_runs, "emit_event", emit)
    return told


def test_case_23_many_alerts_within_a_second_start_one_evolution_and_none_is_lost(
    config: Settings, emitted: list[dict[str, Any]]
) -> None:
    control.connect(config.control_db)

    def alert(n: int) -> None:
        cause = (f"cause {n}", f"reason {n}")
        monitor.degraded(config, control.connect(config.control_db), "support", "1", cause, {})

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(alert, range(20)))
    (event,) = emitted
    connection = control.connect(config.control_db)
    runs = [alerts.take(connection, event["alert"], f"run {n}") for n in range(3)]
    assert [run is not None for run in runs] == [True, False, False]
    assert runs[0] is not None and {c.cause for c in runs[0].causes} == {f"cause {n}" for n in range(20)}


def test_case_23_an_alert_whose_event_got_lost_is_announced_again_and_still_answered_once(
    config: Settings, emitted: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = control.connect(config.control_db)
    monitor.degraded(config, connection, "support", "1", WORSE, {})
    emitted.clear()  # Prefect was restarted before it started anything
    monitor.announce_again(config, connection, "support")
    assert emitted == []  # it may still be on its way
    monkeypatch.setattr(monitor.prefect_runs, "seconds_since", lambda _: 1e6)
    monitor.announce_again(config, connection, "support")
    (event,) = emitted
    assert event["reason"] == WORSE[1]
    assert alerts.take(connection, event["alert"], "late run") is not None
    monitor.announce_again(config, connection, "support")
    assert len(emitted) == 1 and alerts.take(connection, event["alert"], "second run") is None


def test_case_23_an_alert_after_an_answered_one_starts_a_new_evolution(
    config: Settings, emitted: list[dict[str, Any]]
) -> None:
    connection: sqlite3.Connection = control.connect(config.control_db)
    for run in ("first", "second"):
        monitor.degraded(config, connection, "support", "1", WORSE, {})
        assert alerts.take(connection, emitted[-1]["alert"], run) is not None
        alerts.end(connection, emitted[-1]["alert"], "evolved")
    assert len({event["alert"] for event in emitted}) == 2


@pytest.mark.stack  # importing Evidently takes longer than all tests here
def test_case_26_five_thousand_rows_of_one_distribution_are_quiet() -> None:
    rng = np.random.default_rng(1)
    found, _ = drift.compare(window(rng, 5000, 0.70), window(rng, 5000, 0.73), CONFIG)
    assert found.columns["success"] < found.threshold, "a p-value alone would have said drift"
    assert (found.state, found.drifted) == ("quiet", ())


def test_case_26_eight_rows_are_not_enough_data() -> None:
    rng = np.random.default_rng(2)
    found, run = drift.compare(window(rng, 8, 0.0), window(rng, 5000, 1.0), CONFIG)
    assert (found.state, run) == ("not enough data", None)


def test_case_26_watched_for_two_hundred_looks_the_same_distribution_is_quiet() -> None:
    rng = np.random.default_rng(3)
    watch = DriftWatch()
    for _ in range(200):
        follow(watch, {name: list(column) for name, column in window(rng, 50).items()}, CONFIG)
    assert watch.looks == 200 and moved(watch, CONFIG.alpha / 6, CONFIG) == []


def test_case_26_usage_that_is_not_reported_is_no_drift_to_zero() -> None:
    cases = [make_case(reward=1.0, input_tokens=100 + i % 7) for i in range(60)]
    silent = [make_case(reward=1.0, input_tokens=0) for _ in range(60)]
    found, _ = drift.compare(drift.frame(silent), drift.frame(cases), CONFIG)
    assert "input_tokens" not in found.columns and "input_tokens" not in found.drifted
    assert isinstance(drift.frame(silent), pd.DataFrame)


def test_case_27_a_canary_without_traffic_has_no_figures_and_no_verdict() -> None:
    cases: list[Case] = [make_case(reward=1.0) for _ in range(50)]
    silent = [make_case(reward=None, judged_at="", role="canary", agent_version="2") for _ in range(5)]
    found = summarise(cases, target=0.9, min_outcomes=40, canary=silent)
    assert found.canary == {} or all(i.n == 0 for i in found.canary.values())
    verdict = judge_canary([], alpha=0.05, harm_margin=0.2, min_sessions=24)
    assert verdict.state == "continue" and verdict.success.n == 0
