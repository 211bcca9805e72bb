from __future__ import annotations

import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from evoplane.settings import Settings
from evoplane.stack.doctor import doctor
from registry import audit, control


@pytest.fixture
def config(tmp_path: Path) -> Settings:
    return Settings.model_validate({"paths": {"var": tmp_path / "var", "models": tmp_path / "models"}})


def errors(config: Settings) -> dict[str, str]:
    return {finding.what: finding.do for finding in doctor(config) if finding.level == "error"}


def test_a_missing_model_says_how_to_get_it(config: Settings) -> None:
    assert any("is missing" in what and do == "make model" for what, do in errors(config).items())


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


def test_a_sound_installation_has_only_its_missing_model(config: Settings) -> None:
    assert all("model" in what or "vLLM" in what or "port" in what for what in errors(config))
