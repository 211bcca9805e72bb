from __future__ import annotations

from pathlib import Path

import pytest

from evoplane.settings import Settings
from evoplane.stack.environment import environment


def test_the_callers_own_prefect_is_not_the_stacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://elsewhere/api")
    monkeypatch.setenv("PREFECT_HOME", "/elsewhere")
    config = Settings.model_validate({"paths": {"var": tmp_path}, "prefect": {"port": 4711}})
    env = environment(config)
    assert env["PREFECT_API_URL"] == "http://127.0.0.1:4711/api"
    assert "PREFECT_HOME" not in env
