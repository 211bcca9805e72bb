"""The demo's waiting: it shows how a training goes, and ends with a reason where no candidate comes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evoplane.demo import story, waiting
from evoplane.settings import Settings
from registry import control, pointers, tenants
from registry.manifest import AgentVersion, Manifest, Policy


def run(state: str, message: str = "", name: str = "evolve support", id: str = "run-1") -> dict[str, Any]:
    kind = {"Running": "RUNNING", "Failed": "FAILED"}.get(state, "COMPLETED")
    told = {"state_type": kind, "state_name": state, "state_message": message}
    return {"id": id, "name": name, "deployment_id": "served", **told}


@pytest.fixture
def config(tmp_path: Path) -> Settings:
    config = Settings.model_validate({"paths": {"var": str(tmp_path)}})
    connection = control.connect(config.control_db)
    tenants.create_agent(connection, "support", "m", None, ())
    for label in ("1", "2"):
        manifest = Manifest(policy=Policy(base="m", served_name=f"m-{label}"))
        pointers.put_version(
            connection,
            AgentVersion(agent="support", version=label, digest=f"d{label}", manifest=manifest,
                         created_at=control.now()),
        )  # fmt: skip
    pointers.set_champion(connection, "support", "1", "first", "test")
    return config


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What Prefect says that runs, newest first."""
    found: list[dict[str, Any]] = []
    monkeypatch.setattr(story.prefect_runs, "emit_event", lambda *_: "")
    monkeypatch.setattr(story.prefect_runs, "recent_runs", lambda _: found)
    monkeypatch.setattr(waiting, "_RUNS_S", 0.0)
    monkeypatch.setattr(waiting, "_POLL_S", 0.01)
    return found


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "_HEARTBEAT_S", 0.0)
    monkeypatch.setattr(waiting.Waiting.until, "__defaults__", (0.0, None))


def test_a_champion_changed_by_other_hands_ends_the_story_and_no_candidate_none_is_told(
    config: Settings, runs: list[dict[str, Any]]
) -> None:
    told: list[str] = []

    def say(line: str) -> None:
        told.append(line)
        pointers.set_champion(control.connect(config.control_db), "support", "2", "by hand", "somebody")

    with pytest.raises(story.DemoFailed, match=r"version 2 serves instead of 1.* other hands"):
        story.Story(config, say)._improve(frozenset())
    assert not any("None" in line for line in told)


@pytest.mark.usefixtures("impatient")
def test_without_a_candidate_the_last_run_is_quoted_while_waiting_and_at_the_end(
    config: Settings, runs: list[dict[str, Any]]
) -> None:
    told: list[str] = []
    runs.append(run("Healthy", "success 0.95 reaches 0.90", "monitor support"))
    with pytest.raises(story.DemoFailed, match=r"did not come within 0 s; the last said: success 0.95 reaches"):
        story.Story(config, told.append)._improve(frozenset())
    assert "no run is active; the last said: success 0.95 reaches 0.90" in told[-1]


@pytest.mark.parametrize("state", ["No change", "Nothing to propose", "Over budget"])
def test_an_evolution_that_changes_nothing_ends_the_wait_with_its_reason(
    state: str, config: Settings, runs: list[dict[str, Any]]
) -> None:
    runs.append(run(state, "memory-1 (+0.105) was refused: gate short-diff"))
    with pytest.raises(story.DemoFailed, match=rf"{state}.*memory-1 .* was refused"):
        story.Story(config, lambda _: None)._improve(frozenset())


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("beside", "before"),
    [([run("Running", id="run-2")], []), ([run("Accepted", "version 2", id="run-2")], []), ([], ["run-1"])],
)
def test_an_evolution_of_an_earlier_round_or_beside_one_that_goes_on_ends_nothing(
    beside: list[dict[str, Any]], before: list[str], config: Settings, runs: list[dict[str, Any]]
) -> None:
    runs += [*beside, run("No change", "nothing was better")]
    with pytest.raises(story.DemoFailed, match="did not come within 0 s"):
        story.Story(config, lambda _: None)._improve(frozenset(before))


def test_the_steps_of_a_training_are_told_as_they_come(
    config: Settings, runs: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "_TRAINING_S", 0.0)
    told: list[str] = []
    folder = config.var / "training" / "support" / "0123456789abcdef"
    folder.mkdir(parents=True)
    steps: list[str] = []

    def train() -> bool:
        steps.append(json.dumps({"step": len(steps) + 1, "steps": 3, "loss": 0.9 / (len(steps) + 1)}))
        (folder / "metrics.jsonl").write_text("".join(line + "\n" for line in steps))
        return len(steps) == 4

    waiting.Waiting(config, "support", told.append).until("a candidate", train)
    assert told == [f"waiting for a candidate: training, step {n} of 3, loss {0.9 / n:.3f}" for n in (1, 2, 3)]


def test_a_loss_that_is_no_number_is_told_as_that(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "metrics.jsonl").write_text('{"step": 1, "steps": 3, "loss": null}\n')
    assert waiting.Training(tmp_path, 0.0).news(0.0) == "training, step 1 of 3, loss not a number"


@pytest.mark.usefixtures("impatient")
def test_a_run_that_somebody_started_by_hand_may_fail_and_one_of_the_stacks_may_not(
    config: Settings, runs: list[dict[str, Any]]
) -> None:
    runs.append({**run("Failed", "no judge", "judge support"), "deployment_id": None})
    with pytest.raises(story.DemoFailed, match="did not come within 0 s"):
        story.Story(config, lambda _: None)._improve(frozenset())
    runs.append(run("Failed", "out of memory"))
    with pytest.raises(story.DemoFailed, match="out of memory"):
        story.Story(config, lambda _: None)._improve(frozenset())
