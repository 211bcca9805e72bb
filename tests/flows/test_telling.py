"""People are told what became of a delivery, once, and telling stops nothing. No server is needed."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import flows.deliver as delivery
from evoplane.settings import Settings
from flows import alert_hooks, rollback, serve, telling
from flows.exposure import StageResult
from registry import control, pointers, serving, tenants
from registry.manifest import AgentVersion, Manifest, Policy

AGENT = "support"
EVENTS = [telling.ABORTED, telling.PAUSED, telling.WAITING, telling.ROLLED_BACK]


@pytest.fixture
def config(tmp_path: Path) -> Settings:
    """A hook whose secret is not set: what it should hear stays in the outbox."""
    hook = {"url": "http://127.0.0.1:1/", "secret_env": "NOT_SET_ANYWHERE", "events": EVENTS}
    return Settings.model_validate({"paths": {"var": str(tmp_path)}, "alert_hooks": {"oncall": hook}})


@pytest.fixture
def connection(config: Settings) -> sqlite3.Connection:
    connection = control.connect(config.control_db)
    tenants.create_agent(connection, AGENT, "model", approvers=("dana",))
    for number in ("1", "2"):
        manifest = Manifest(policy=Policy(base="model", served_name=f"support-v{number}"))
        version = AgentVersion(agent=AGENT, version=number, digest=manifest.digest, manifest=manifest)
        pointers.put_version(connection, version)
        pointers.set_champion(connection, AGENT, number, "better", "test")
    return connection


@pytest.fixture(autouse=True)
def prefect(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What artifacts and events would have been."""
    seen = SimpleNamespace(pages=[], events=[])
    monkeypatch.setattr(telling, "create_markdown_artifact", lambda key, markdown: seen.pages.append(markdown))
    monkeypatch.setattr(telling.prefect_runs, "emit_event", lambda _, event, *__: seen.events.append(event))
    return seen


def waiting(config: Settings) -> list[dict[str, Any]]:
    files = sorted(alert_hooks.outbox(config).glob("*.json"))
    return [json.loads(json.loads(file.read_bytes())["body"]) for file in files]


def tell(config: Settings, connection: sqlite3.Connection, id: str = "canary-1") -> bool:
    return telling.tell(config, connection, telling.ABORTED, AGENT, id, {"agent": AGENT, "reason": "harm | seen"})


def test_a_thing_is_told_once_although_the_hook_took_it_meanwhile(
    config: Settings, connection: sqlite3.Connection, prefect: SimpleNamespace
) -> None:
    assert tell(config, connection)
    for file in alert_hooks.outbox(config).glob("*.json"):
        file.unlink()
    assert not tell(config, connection)
    assert waiting(config) == [] and prefect.events == [telling.ABORTED] and len(prefect.pages) == 1
    assert tell(config, connection, "canary-2")


def test_the_run_s_page_says_who_was_not_told_and_why(
    config: Settings, connection: sqlite3.Connection, prefect: SimpleNamespace
) -> None:
    tell(config, connection)
    assert "**not told** oncall: NOT_SET_ANYWHERE is not set" in prefect.pages[0]
    assert "| reason | harm / seen |" in prefect.pages[0]


def test_prefect_being_away_stops_nothing(
    config: Settings, connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: Any, **__: Any) -> None:
        raise ConnectionError("Prefect is away")

    monkeypatch.setattr(telling, "create_markdown_artifact", away)
    monkeypatch.setattr(telling.prefect_runs, "emit_event", away)
    assert tell(config, connection) and len(waiting(config)) == 1


def test_a_rollback_is_told_once_by_whichever_flow_sees_it_first(
    config: Settings, connection: sqlite3.Connection
) -> None:
    assert not telling.rolled_back(config, connection, AGENT)
    pointers.rollback(connection, AGENT, "previous", "wrong refunds", "ravi")
    assert telling.rolled_back(config, connection, AGENT, "version 1 answers")
    assert not telling.rolled_back(config, connection, AGENT)
    (told,) = waiting(config)
    wanted = {"event": telling.ROLLED_BACK, "version": "1", "from": "2", "by": "ravi", "reason": "wrong refunds"}
    assert wanted.items() <= told.items()


def test_a_rollback_that_was_followed_by_a_promotion_is_no_news(
    config: Settings, connection: sqlite3.Connection
) -> None:
    pointers.rollback(connection, AGENT, "previous", "wrong refunds", "ravi")
    pointers.set_champion(connection, AGENT, "2", "it was right", "test")
    assert not telling.rolled_back(config, connection, AGENT)


def test_a_rollback_that_no_gateway_proved_is_told_as_that(
    config: Settings, connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unserved(*_: object) -> float:
        raise serving.NotServed("gateway 8400 answers with version 2")

    monkeypatch.setattr(rollback.serving, "verify", unserved)
    with pytest.raises(serving.NotServed):
        rollback.roll_back(config, AGENT, "1", "harm", "deliver", expected="2")
    assert waiting(config)[0]["outcome"].startswith("NOT proven")


@pytest.mark.parametrize(
    ("end", "event"), [("abort", telling.ABORTED), ("inconclusive", telling.PAUSED), ("pass", None)]
)
def test_a_canary_that_does_not_pass_is_told(
    end: str, event: str | None, config: Settings, connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = StageResult(end=end, reason="seen", candidate=9, champion=9)  # type: ignore[arg-type]
    monkeypatch.setattr(delivery, "settings", lambda: config)
    monkeypatch.setattr(delivery.reports, "Progress", lambda *_: SimpleNamespace(set=None))
    monkeypatch.setattr(delivery.exposure, "canary", lambda *_: result)
    monkeypatch.setattr(delivery, "create_markdown_artifact", lambda **_: None)
    monkeypatch.setattr(delivery, "flow_run", SimpleNamespace(id="run-1"))
    for _ in range(2):  # the run died before the stage's result was stored, and was started again
        delivery.canary_stage.fn(AGENT, "2")
    assert [told["event"] for told in waiting(config)] == ([event] if event else [])


def test_judging_and_replies_are_served_only_where_they_are_switched_on() -> None:
    assert serve.signal_deployments(Settings()) == []
    judge = {"url": "http://127.0.0.1:1/v1", "model": "m", "interval_s": 60}
    on = Settings.model_validate({"judge": judge, "next_state": {"interval_s": 90}})
    found = {f"{d.flow_name}/{d.name}": d.schedules for d in serve.signal_deployments(on)}
    assert list(found) == ["judging/on-request", "judging-all/scheduled", "replies/on-request", "replies-all/scheduled"]
    every = {name: s[0].schedule.interval.total_seconds() for name, s in found.items() if s}  # type: ignore[union-attr]
    assert every == {"judging-all/scheduled": 60, "replies-all/scheduled": 90}


def test_a_schedule_without_anybody_to_ask_is_refused() -> None:
    with pytest.raises(ValueError, match="interval_s"):
        Settings.model_validate({"judge": {"interval_s": 60}})
