"""A dry run changes nothing: not the deployment's snapshot, not its training set, not its adapters."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from evoplane.settings import Settings
from flows import candidates, dry_run, evolution, policies, snapshot, training
from flows.interventions import Proposal
from registry import control, tenants
from registry.manifest import Manifest, Policy
from tests.flows.test_training_set import PASSED, config, trajectory  # noqa: F401  (fixture)

PROPOSAL = Proposal(
    surface="policy", summary="s", diff="d", content={"algorithm": "sft", "learning_rate": 6e-4}, cost=0.0, risk="r"
)


def tree(folder: Path) -> dict[str, str]:
    """Every file with its hash; locks are nobody's data."""
    files = [f for f in folder.rglob("*") if f.is_file() and not f.name.endswith(".lock")]
    return {str(f.relative_to(folder)): hashlib.sha256(f.read_bytes()).hexdigest() for f in files
            if not f.name.startswith("control.sqlite")}  # fmt: skip


@pytest.fixture
def worked(config: Settings, monkeypatch: pytest.MonkeyPatch) -> Settings:  # noqa: F811
    """A snapshot with its training set is there, and more was recorded since."""
    tenants.create_agent(control.connect(config.control_db), "support", config.model.name, None, ())
    rows = [trajectory(n, "Please stop order {} now.", f"A{n}0") for n in range(30)]

    def write(_: Settings, agent: str, folder: Path) -> dict[str, int]:
        lines = [json.dumps({"tools": {"c": []}, "records": r}) for r in rows]
        (folder / "reward-rule.json").write_bytes(snapshot.rewards.encode(snapshot.rewards.DEFAULT_RULE))
        (folder / "northwind.jsonl").write_text("\n".join(lines) + "\n")
        return {"northwind": len(rows)}

    monkeypatch.setattr(snapshot, "write", write)
    snapshot.take(config, "support")
    snapshot.pass_gate(config, "support", PASSED)
    training.make_training_set(config, "support")
    rows.append(trajectory(99, "Stop {} now!", "B990"))
    return config


class Evolution:
    """Stands for `evolution.run`: takes the steps that could leave something."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.loaded: list[str] = []
        self.snapshot, self.set, self.adapter = "", "", Path()
        monkeypatch.setattr(evolution, "run", self.run)
        monkeypatch.setattr(candidates.client, "load", lambda _, policy, probe: self.loaded.append(policy.path))
        monkeypatch.setattr(dry_run.client, "unload", lambda _, name: self.loaded.clear() or True)
        monkeypatch.setattr(training.process, "start", self.start)
        monkeypatch.setattr(training.process, "stop", lambda started: None)
        self.fails = False

    def start(self, command: list[str], **_: Any) -> Any:
        """Stands for the trainer."""
        work = Path(command[-1]).parent
        (work / "adapter").mkdir()
        (work / "adapter" / "adapter_config.json").write_text("{}")
        (work / "result.json").write_text(json.dumps({"digest": "sha256:0123456789abcdef"}))
        return SimpleNamespace(returncode=0, wait=lambda timeout: 0)

    def run(self, config: Settings, _: Any, agent: str, reason: str, work: evolution.Work, *, dry: bool) -> Any:  # noqa: F811
        taken, cases = work.snapshot(config, agent)
        work.quality(config, agent, cases)
        made = work.train(config, agent, PROPOSAL)
        manifest = Manifest(policy=Policy(base="m", served_name="m-c-1", adapter=made["digest"], path=made["path"]))
        work.serve(config, manifest, made)
        self.snapshot, self.set, self.adapter = taken.id, made["training_set"], config.var / made["path"]
        assert dry and self.loaded and self.adapter.is_dir()
        if self.fails:
            raise RuntimeError("the power went")
        work.withdraw(config, manifest)
        return evolution.Evolved("No change", "nothing was better")


@pytest.mark.parametrize("fails", [False, True])
def test_snapshot_training_set_and_adapters_are_byte_for_byte_as_before(
    worked: Settings, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    before = tree(worked.var)
    assert any(name.endswith("trajectories.dvc") for name in before)
    stage = Evolution(monkeypatch)
    stage.fails = fails
    monkeypatch.setattr(candidates.gate, "check", lambda rows, least: PASSED)
    if fails:
        with pytest.raises(RuntimeError, match="the power went"):
            dry_run.evolve(worked, "support", "a test")
    else:
        assert dry_run.evolve(worked, "support", "a test")["state"] == "No change"
    assert tree(worked.var) == before
    assert not stage.loaded and not stage.adapter.exists()
    mine = snapshot.directory_hash(worked.snapshots_dir / "support" / "trajectories")
    assert stage.snapshot != mine, "what was recorded since was in the dry run's own snapshot"


def test_what_a_killed_run_left_goes_with_the_next_and_a_living_runs_folder_stays(
    config: Settings,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken_out: list[str] = []
    monkeypatch.setattr(dry_run.client, "unload", lambda _, name: taken_out.append(name) or True)
    before = tree(config.var)
    assert not list(config.var.glob("dry-run-*"))
    under_way, says = os.pipe()

    def killed(*_: Any, **__: Any) -> None:
        policies.claim(config, "killed-c-1")
        os.write(says, b"!")
        time.sleep(60)

    monkeypatch.setattr(evolution, "run", killed)
    child = os.fork()
    if child == 0:
        try:
            dry_run.evolve(config, "support", "a test")
        finally:
            os._exit(1)
    assert os.read(under_way, 1) == b"!"
    assert dry_run.clean_up(config) == [] and taken_out == [], "it lives"
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(under_way)
    os.close(says)
    (left,) = config.var.glob("dry-run-*")
    monkeypatch.setattr(evolution, "run", lambda *_, **__: evolution.Evolved("No change", "nothing was better"))
    dry_run.evolve(config, "support", "a test")
    assert not left.exists() and taken_out == ["killed-c-1"] and tree(config.var) == before


def test_standard_output_is_the_json_alone_though_a_new_repository_announces_itself(tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from flows import dry_run, evolution, snapshot\n"
        "def run(config, *_, **__):\n"
        "    snapshot.prepare(config, Path(sys.argv[1]) / 'scratch')\n"
        "    return evolution.Evolved('No change', 'nothing was better')\n"
        "evolution.run = run\n"
        "raise SystemExit(dry_run.main(['evolve', '--agent', 'support']))\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    said = subprocess.run(
        command, env={**os.environ, "EVOPLANE_PATHS__VAR": str(tmp_path / "var")}, capture_output=True, text=True
    )
    assert said.returncode == 0, said.stderr
    assert json.loads(said.stdout)["state"] == "No change"
    assert (tmp_path / "scratch" / ".dvc").is_dir() and "Initialized DVC repository" in said.stderr
