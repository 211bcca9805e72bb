"""Whoever asks for an evolution goes through the ledger: two who want one get one."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from evoplane.settings import Settings
from registry import alerts, announcing, control, pointers, prefect_runs, tenants
from registry.alerts import Cause
from registry.manifest import AgentVersion, Manifest, Policy
from registry.tenants import RegistryError


@pytest.fixture
def config(tmp_path: Path) -> Settings:
    return Settings.model_validate({"paths": {"var": str(tmp_path)}})


@pytest.fixture
def connection(config: Settings) -> sqlite3.Connection:
    made = control.connect(config.control_db)
    tenants.create_agent(made, "support", "m", None, ())
    manifest = Manifest(policy=Policy(base="m", served_name="m"))
    pointers.put_version(made, AgentVersion(agent="support", version="1", digest=manifest.digest, manifest=manifest))
    pointers.set_champion(made, "support", "1", "first", "test")
    return made


@pytest.fixture
def emitted(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = []
    monkeypatch.setattr(prefect_runs, "emit_event", lambda _, event, agent, payload: told.append(dict(payload)))
    return told


def test_what_a_person_asks_joins_the_alert_that_is_open_and_one_run_answers_both(
    config: Settings, connection: sqlite3.Connection, emitted: list[dict[str, Any]]
) -> None:
    raised, _ = alerts.raise_alert(connection, "support", Cause("success", "success fell", control.now(), "1"))
    alert, new = announcing.ask(config, connection, "support", "new product line")
    assert not new and alert.id == raised.id == emitted[0]["alert"]
    assert emitted[0]["reason"] == "success fell; new product line"
    assert alerts.take(connection, alert.id, "the automation's run") is not None
    assert alerts.take(connection, emitted[0]["alert"], "the run that was asked for") is None


def test_two_people_with_two_reasons_are_two_causes_of_one_alert(
    config: Settings, connection: sqlite3.Connection, emitted: list[dict[str, Any]]
) -> None:
    for reason in ("new product line", "new product line", "complaints"):
        announcing.ask(config, connection, "support", reason)
    assert len({payload["alert"] for payload in emitted}) == 1
    found = alerts.open_alert(connection, "support")
    assert found is not None and found.reason == "new product line; complaints"


def test_an_event_that_cannot_be_emitted_leaves_the_alert_open_to_be_announced_again(
    config: Settings, connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: Any) -> None:
        raise RegistryError("Prefect does not answer")

    monkeypatch.setattr(prefect_runs, "emit_event", away)
    with pytest.raises(RegistryError, match="does not answer"):
        announcing.ask(config, connection, "support", "new product line")
    found = alerts.open_alert(connection, "support")
    assert found is not None and found.reason == "new product line"


def test_an_agent_that_serves_nothing_is_refused(
    config: Settings, connection: sqlite3.Connection, emitted: list[dict[str, Any]]
) -> None:
    with pytest.raises(RegistryError):
        announcing.ask(config, connection, "nobody", "why not")
    assert alerts.list_alerts(connection) == []
