"""What `evoplane bench learn` makes of the phases that are done, and what it does not do again."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.learn import run as learn
from benchmarks.learn.school import QUICK, School, shuffled
from evoplane.settings import Settings
from examples.calculator.tasks import Task
from flows import training

TASK = Task("?", "1 + 1", "2")


def test_the_interval_is_students_over_seeds_and_one_seed_has_none() -> None:
    three = learn.interval([0.8, 0.9, 0.85])
    assert three["value"] == pytest.approx(0.85)
    assert three["low"] == pytest.approx(0.85 - 4.3027 * 0.05 / 3**0.5, abs=1e-4)
    assert learn.interval([0.8]) == {"value": 0.8, "low": None, "high": None, "n": 1}
    assert learn.interval([])["value"] is None


def test_rewards_of_the_control_know_nothing_of_the_outcome() -> None:
    reward = shuffled(1, 0.4)
    given = [(right, reward(TASK, right)) for right in [True, False] * 2_000]
    for right in (True, False):
        rewards = [value for outcome, value in given if outcome is right]
        assert sum(rewards) / len(rewards) == pytest.approx(0.4, abs=0.04)


def test_a_phase_that_is_done_is_read_and_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[int, list[str]]] = []

    def seed(folder: Path, number: int, missing: list[str], quick: bool, say: Any) -> None:
        ran.append((number, list(missing)))
        folder.mkdir(parents=True)
        for phase in missing:
            (folder / f"{phase}.json").write_text(json.dumps({"lift": 0.1 * number, "seconds": 1}))

    monkeypatch.setattr(learn, "_seed", seed)
    told: dict[str, Any] = {"only": ["grpo-only"], "quick": False, "fresh": False, "say": lambda _: None}
    found = learn.run(tmp_path, seeds=[1, 2], **told)
    assert ran == [(1, ["grpo-only"]), (2, ["grpo-only"])]
    assert found["grpo_only_lift"]["value"] == pytest.approx(0.15)
    assert found["base_success"]["n"] == 0
    learn.run(tmp_path, seeds=[1, 2], **told)
    assert len(ran) == 2


def test_tables_are_made_with_the_first_seed_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: dict[int, list[str]] = {}

    def seed(folder: Path, number: int, missing: list[str], *_: Any) -> None:
        ran[number] = list(missing)

    monkeypatch.setattr(learn, "_seed", seed)
    learn.run(tmp_path, seeds=[1, 2], only=[], quick=False, fresh=False, say=lambda _: None)
    assert ran[1] == ["lift", "grpo-only", "control", "staleness", "federated"]
    assert ran[2] == ["lift", "grpo-only", "control"]


def test_an_unknown_phase_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no phase 'grpo'; there are: lift, grpo-only"):
        learn.run(tmp_path, seeds=[1], only=["grpo"], quick=True, fresh=False, say=lambda _: None)


def test_who_waits_for_a_training_is_told_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_job(*given: Any) -> training.Trained:
        for step in range(1, 26):
            given[-1]({"step": step, "steps": 25})
        return training.Trained("sha256:0", "policies/0", {})

    monkeypatch.setattr(training, "run_job", run_job)
    told: list[str] = []
    stack: Any = SimpleNamespace(config=Settings.model_validate({"paths": {"var": tmp_path}}))
    row = {"prompt_token_ids": [1], "completion_token_ids": [2]}
    School(stack, tmp_path, 1, QUICK, told.append).fit("first", [row, row], None)
    assert told == ["first: learns from 2 rows", "first: step 10 of 25", "first: step 20 of 25"]
