"""`evoplane trajectories`: what was captured, and clean only what was looked at."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from evoplane.cli.main import app
from evoplane.settings import settings
from registry.tenants import RegistryError
from services.proxy.store import EventStore
from tests.proxy.drafting import CONTEXT, event, header


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("EVOPLANE_PATHS__VAR", str(tmp_path))
    settings.cache_clear()
    yield
    settings.cache_clear()


@pytest.mark.parametrize("id", ["t1", "e1"])
async def test_verifying_another_tenants_trajectory_fails(id: str) -> None:
    opened = EventStore(settings().store_dir)
    await opened.start()
    await opened.append("a", [CONTEXT, header("t1"), event("e1", "t1")])
    await opened.append("b", [CONTEXT, header("t2"), event("e2", "t2")])
    await opened.close()
    right = CliRunner().invoke(app, ["trajectories", "verify", id, "--tenant", "a"])
    wrong = CliRunner().invoke(app, ["trajectories", "verify", id, "--tenant", "b"])
    assert right.exit_code == 0
    assert right.output.startswith("1 trajectories")
    assert wrong.exit_code != 0
    assert isinstance(wrong.exception, RegistryError)


@pytest.mark.parametrize("command", [["list"], ["show", "t1"], ["show", "e1", "--raw"], ["verify"], ["export"]])
async def test_what_was_captured_can_be_listed_shown_verified_and_exported(command: list[str]) -> None:
    opened = EventStore(settings().store_dir)
    await opened.start()
    await opened.append("a", [CONTEXT, header("t1"), event("e1", "t1")])
    await opened.close()
    result = CliRunner().invoke(app, ["trajectories", *command])
    assert result.exit_code == 0, result.exception
    assert "t1" in result.output or "1 trajectories" in result.output
