from __future__ import annotations

import shutil
import socket
from collections import namedtuple
from pathlib import Path

import psutil
import pytest

from evoplane.settings import Settings
from evoplane.stack import state
from evoplane.stack.doctor import doctor
from evoplane.stack.state import ComponentStatus
from registry import audit, control
from registry.presence import present


@pytest.fixture
def config(tmp_path: Path) -> Settings:
    paths = {"var": tmp_path / "var", "models": tmp_path / "models"}
    return Settings.model_validate({"paths": paths, "worker": {"vllm_python": tmp_path / "python"}})


def errors(config: Settings) -> dict[str, str]:
    return {finding.what: finding.do for finding in doctor(config) if finding.level == "error"}


def started(config: Settings, *components: ComponentStatus) -> None:
    """As if a stack of these ran, under this process."""
    me = psutil.Process()
    state.write(
        config,
        state.StackState(supervisor_pid=me.pid, supervisor_started=me.create_time(), components=list(components)),
    )


def test_what_the_worker_lacks_is_an_error_only_where_one_was_started(config: Settings) -> None:
    lacking = {"make model", "make env"}
    found = {finding.do: finding for finding in doctor(config) if finding.do in lacking}
    assert {finding.level for finding in found.values()} == {"warning"}
    assert all("capture alone does not" in finding.what for finding in found.values())
    started(config, ComponentStatus(name="gateway", state="healthy", url=""))
    assert "make model" not in errors(config).values()
    started(config, ComponentStatus(name="worker", state="healthy", url=""))
    assert lacking <= set(errors(config).values())


def test_an_unhealthy_worker_names_the_log_of_its_vllm(config: Settings) -> None:
    started(config, *(ComponentStatus(name=name, state="unhealthy", url="") for name in ("gateway", "worker")))
    logs = config.logs_dir
    assert {f"read {logs}/gateway.log", f"read {logs}/worker.log and {logs}/vllm.log"} <= set(errors(config).values())


def test_the_port_of_the_deployments_own_gateway_is_not_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        config = Settings.model_validate({"paths": {"var": tmp_path / "var"}, "gateway": {"port": port}})
        assert f"port {port} (gateway.port) is taken" in errors(config)
        with present(config):
            assert not any(str(port) in what for what in errors(config))
            assert any(f"port {port}: this deployment's gateway runs" in found.what for found in doctor(config))


def test_a_full_disk_is_an_error(config: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")(100, 99, 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    assert any("GB free" in what for what in errors(config))


def test_a_clock_behind_the_audit_log_is_an_error(config: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "now", lambda: "2199-01-01T00:00:00.000000Z")
    audit.append(control.connect(config.control_db), "test", "test", "test")
    assert any("clock is behind" in what for what in errors(config))


def test_a_damaged_control_database_is_an_error(config: Settings) -> None:
    config.var.mkdir(parents=True)
    config.control_db.write_bytes(b"this is not a database" * 100)
    assert any("restore it from a backup" in do for do in errors(config).values())


def test_a_sound_installation_has_no_error(config: Settings) -> None:
    assert all("port" in what for what in errors(config))
