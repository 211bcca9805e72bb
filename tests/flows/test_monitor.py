"""When an alert is worth another evolution."""

from __future__ import annotations

from pathlib import Path

import pytest

from evaluators.cases import Case
from evaluators.watching import Memo
from evoplane.settings import Settings
from flows import monitor, serve
from registry import control, pointers, tenants
from registry.manifest import AgentVersion, Manifest, Policy
from tests.evaluators.conftest import make_case

AGENT = "support"


@pytest.fixture
def config(tmp_path: Path) -> Settings:
    config = Settings.model_validate({"paths": {"var": str(tmp_path)}})
    connection = control.connect(config.control_db)
    tenants.create_agent(connection, AGENT, "model", approvers=("dana",))
    manifest = Manifest(policy=Policy(base="model", served_name="model"))
    version = AgentVersion(agent=AGENT, version="1", digest=manifest.digest, manifest=manifest)
    pointers.put_version(connection, version)
    pointers.set_champion(connection, AGENT, "1", "first", "test")
    return config


def window(config: Settings, new: int) -> list[Case]:
    """A full window, `new` of it judged since the alert on 1 March."""
    days = ["2026-03-01T00:00:00Z"] * (config.monitor.window - new) + ["2026-03-02T00:00:00Z"] * new
    return [make_case(judged_at=day) for day in days]


@pytest.mark.parametrize(("new", "held"), [(19, True), (20, False)])
def test_a_full_window_still_shows_what_is_new_since_the_last_alert(config: Settings, new: int, held: bool) -> None:
    state = Memo(alerts={"success": {"at": 0.0, "version": "1", "newest": "2026-03-01T00:00:00Z"}})
    why = monitor.held_back(config, AGENT, "1", "success", window(config, new), state, at=1e6)
    assert (why is not None) == held


def test_a_first_alert_and_one_about_another_cause_go_out(config: Settings) -> None:
    state = Memo(alerts={"success": {"at": 0.0, "version": "1", "newest": "2026-03-01T00:00:00Z"}})
    assert monitor.held_back(config, AGENT, "1", "drift", window(config, 0), state, at=1e6) is None


def test_flows_that_start_or_stop_are_not_ready(config: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_server(_: Settings) -> None:
        raise SystemExit("no Prefect server")

    monkeypatch.setattr(serve, "settings", lambda: config)
    monkeypatch.setattr(serve, "wait_for_server", no_server)
    serve.ready_file(config).write_text("1")
    with pytest.raises(SystemExit):
        serve.main([])
    assert not serve.ready_file(config).exists()
