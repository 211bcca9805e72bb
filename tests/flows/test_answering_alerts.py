"""Which alert a run of `evolve` answers, and what becomes of it when the run can't look."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from evoplane.cli import loop
from evoplane.settings import Settings
from flows import evolution, evolve, locks, monitor, serve
from registry import alerts, audit, control, pointers, prefect_runs, tenants
from registry.alerts import Cause
from registry.manifest import AgentVersion, Manifest, Policy


@pytest.fixture
def config(tmp_path: Path) -> Settings:
    made = Settings.model_validate({"paths": {"var": str(tmp_path)}})
    connection = control.connect(made.control_db)
    tenants.create_agent(connection, "support", "m", None, ())
    manifest = Manifest(policy=Policy(base="m", served_name="m"))
    pointers.put_version(
        connection, AgentVersion(agent="support", version="1", digest=manifest.digest, manifest=manifest)
    )
    pointers.set_champion(connection, "support", "1", "first", "test")
    return made


@pytest.fixture
def connection(config: Settings) -> sqlite3.Connection:
    return control.connect(config.control_db)


def raised(connection: sqlite3.Connection) -> alerts.Alert:
    return alerts.raise_alert(connection, "support", Cause("success", "success fell", control.now(), "1"))[0]


def test_a_run_that_was_asked_for_answers_the_alert_that_is_open(
    config: Settings, connection: sqlite3.Connection
) -> None:
    alert = raised(connection)
    with evolve.answering(config, "support", "", "run 1") as taken:
        assert taken is not None and taken.id == alert.id and taken.reason == "success fell"
    with evolve.answering(config, "support", alert.id, "run 2") as again:
        assert again is None, "the automation's own run finds it answered"
    with evolve.answering(config, "support", "", "run 3") as nothing:
        assert nothing is None
    assert alerts.get(connection, alert.id).ended == "evolved"


def test_an_alert_met_by_a_dry_run_is_open_again_and_one_that_failed_is_not(
    config: Settings, connection: sqlite3.Connection
) -> None:
    alert = raised(connection)
    with pytest.raises(locks.Busy), evolve.answering(config, "support", alert.id, "run 1"):
        raise locks.Busy("a dry run")
    assert alerts.get(connection, alert.id).status == "open"
    with pytest.raises(RuntimeError), evolve.answering(config, "support", alert.id, "run 2"):
        raise RuntimeError("no")
    assert alerts.get(connection, alert.id).ended == "failed"


def test_an_alert_whose_data_did_not_pass_the_gate_is_not_answered_as_if_something_had_been_decided(
    config: Settings, connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = evolution.Evolved("Quality gate failed", "3 of 9 expectations failed")
    monkeypatch.setattr(evolve.evolution, "run", lambda *_: failed)
    alert = raised(connection)
    with pytest.raises(evolve.GateFailed, match="3 of 9"):  # noqa: SIM117 - the block is the run
        with evolve.answering(config, "support", alert.id, "run 1"):
            evolve._evolve(config, "support", "success fell")
    assert alerts.get(connection, alert.id).ended == "failed"
    assert audit.entries(connection, "support")[-1].action == "data_gate.failed"


def test_an_alert_met_by_an_open_delivery_waits_and_is_announced_again_after_it(
    config: Settings, connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(prefect_runs, "emit_event", lambda _, event, agent, payload: told.append(payload["alert"]))
    monkeypatch.setattr(prefect_runs, "seconds_since", lambda _: 1e6)
    alert = raised(connection)
    audit.append(connection, "evolve", "candidate.accepted", "support", {"version": "2"})
    with pytest.raises(evolve.NotLooked, match="version 2 is being delivered"):  # noqa: SIM117 - the block is the run
        with evolve.answering(config, "support", alert.id, "run 1") as taken:
            evolve._evolve(config, "support", taken.reason if taken else "")
    assert alerts.get(connection, alert.id).status == "open"
    monitor.announce_again(config, connection, "support")
    assert told == [], "a run of it would find the delivery again"
    audit.append(connection, "deliver", "delivery.ended", "support", {"version": "2"})
    monitor.announce_again(config, connection, "support")
    assert told == [alert.id]


def test_an_alert_met_by_an_exhausted_budget_waits_for_it(
    config: Settings, connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(prefect_runs, "emit_event", lambda _, event, agent, payload: told.append(payload["alert"]))
    monkeypatch.setattr(prefect_runs, "seconds_since", lambda _: 1e6)
    alert = raised(connection)
    spent = config.model_copy(update={"evolve": config.evolve.model_copy(update={"budget_per_day": 0})})
    with pytest.raises(evolve.NotLooked, match="the budget is 0"):  # noqa: SIM117 - the block is the run
        with evolve.answering(spent, "support", alert.id, "run 1") as taken:
            evolve._evolve(spent, "support", taken.reason if taken else "")
    monitor.announce_again(spent, connection, "support")
    assert told == [] and alerts.get(connection, alert.id).status == "open"
    monitor.announce_again(config, connection, "support")
    assert told == [alert.id]


def test_alerts_whose_runs_died_are_open_again_however_many_were_raised_since(
    config: Settings, connection: sqlite3.Connection
) -> None:
    alert = raised(connection)
    alerts.take(connection, alert.id, "a run that is gone")
    for n in range(60):
        alerts.raise_alert(connection, f"agent {n}", Cause("success", "success fell", control.now(), "1"))
    serve.give_back_alerts(config)
    assert alerts.get(connection, alert.id).status == "open"


def test_the_command_and_the_watch_start_one_evolution(
    config: Settings, connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[dict[str, Any]] = []
    monkeypatch.setattr(prefect_runs, "emit_event", lambda _, event, agent, payload: told.append(dict(payload)))
    monkeypatch.setattr(loop, "settings", lambda: config)
    alert = raised(connection)
    loop.evolve("support", "new product line", dry_run=False, json=True)
    assert [payload["alert"] for payload in told] == [alert.id]
    with evolve.answering(config, "support", told[0]["alert"], "run 1") as taken:
        assert taken is not None and taken.reason == "success fell; new product line"
    loop.evolve("support", "new product line", dry_run=False, json=True)
    assert told[1]["alert"] != alert.id, "asked after it was answered: an alert of its own"


def test_a_run_that_was_taken_for_dead_ends_its_alert_all_the_same(
    config: Settings, connection: sqlite3.Connection
) -> None:
    alert = raised(connection)
    with evolve.answering(config, "support", alert.id, "run 1"):
        serve.give_back_alerts(config)
    assert alerts.get(connection, alert.id).ended == "evolved"
    alert = raised(connection)
    with pytest.raises(evolve.NotLooked), evolve.answering(config, "support", alert.id, "run 2"):
        serve.give_back_alerts(config)
        raise evolve.NotLooked("Over budget", "the budget is 0")
    assert alerts.get(connection, alert.id).status == "open"
    with evolve.answering(config, "support", alert.id, "run 3"):
        serve.give_back_alerts(config)
        alerts.take(connection, alert.id, "run 4")
    assert alerts.get(connection, alert.id).taken_by == "run 4", "it ends with the run that has it"
    assert alerts.get(connection, alert.id).status == "taken"
