"""`evoplane stats` and `evoplane drift` on real trajectories, and their answers when there are none."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from atdp import convert
from evoplane.cli import watching
from evoplane.settings import Settings
from registry.tenants import RegistryError
from services.proxy import importing
from services.proxy.store import open_store
from tests.shared import DATA, REASON

AGENTS = ("gpt-4o", "qwen2.5-7b")


def config_in(var: Path) -> Settings:
    clause = {"name": "reward", "kinds": ["environment"]}
    return Settings.model_validate({"paths": {"var": str(var)}, "rewards": {"default": {"clauses": [clause]}}})


async def fill(config: Settings) -> None:
    store = open_store(config)
    await store.start()
    for agent in AGENTS:
        file = DATA / "tau2-airline" / f"{agent}_airline.json"
        job = importing.Import(store, "airline", agent, "allow")
        await job.take(convert.get("tau2-bench").read(file.read_bytes(), convert.ReadOptions(agent, file.name)).records)
        await job.finish()
    await store.close()


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    if not DATA.is_dir():
        pytest.skip(REASON)
    config = config_in(tmp_path_factory.mktemp("var"))
    asyncio.run(fill(config))
    return config


@pytest.fixture(autouse=True)
def here(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "config" in request.fixturenames:
        monkeypatch.setattr(watching, "settings", lambda: request.getfixturevalue("config"))


def test_stats_counts_what_the_files_say(config: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    watching.stats("gpt-4o", json=True)
    found = json.loads(capsys.readouterr().out)
    assert (found["judged"], found["success"]["value"], found["success"]["n"]) == (50, 0.46, 50)
    assert found["state"] == "degraded" and found["cost"]["per_success"] is None
    assert found["tool_failures"]["n"] > 200 and any("·" in name for name in found["failures_by_tool"])
    assert {s["source"][0] for s in found["rewards"]["sources"]} >= {"reward", "check.db"}


def test_stats_names_the_section_that_lacks_a_price(config: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    watching.stats("gpt-4o")
    assert "the price of a model that answered is not in [prices]" in capsys.readouterr().out


def test_stats_of_one_tenant_and_of_nobody(config: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    watching.stats("gpt-4o", tenant="somebody else", json=True)
    assert json.loads(capsys.readouterr().out)["state"] == "not enough data"
    with pytest.raises(RegistryError, match="nobody"):
        watching.stats("nobody")


def test_a_window_holds_the_newest(config: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    watching.stats("gpt-4o", window=10)
    assert "10 of 40 judged trajectories" in capsys.readouterr().out


@pytest.mark.stack
def test_two_models_differ_and_halves_of_one_do_not(config: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    watching.drift_("qwen2.5-7b", against="gpt-4o", json=True)
    other = json.loads(capsys.readouterr().out)
    assert other["state"] == "drift" and {"input_tokens", "success"} <= set(other["drifted"])
    assert other["success"]["within"]["value"] < 0
    watching.drift_("gpt-4o", json=True)
    own = json.loads(capsys.readouterr().out)
    assert (own["state"], own["drifted"]) == ("quiet", [])
