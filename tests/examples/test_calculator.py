"""The calculator agent: its tasks, its tool, and an episode over the gateway with nothing but a base URL and a key."""

from __future__ import annotations

import asyncio
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from examples.calculator.agent import Crowd
from examples.calculator.tasks import FAMILIES, calculate, is_right, tasks
from tests.gateway.conftest import MODEL, Running, running, upstream  # noqa: F401  (fixtures)
from tests.gateway.upstream import call, say

# not imported here: it takes seconds, in each process that collects tests
pytestmark = pytest.mark.skipif(find_spec("reasoning_gym") is None, reason="reasoning-gym is not installed")


def test_held_out_tasks_share_no_expression_with_any_training_seed() -> None:
    held = {task.expression for task in tasks(64, 0, held_out=True)}
    assert len(held) == 64
    for seed in (1, 2, 7_919):
        assert not held & {task.expression for task in tasks(100, seed)}


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_held_out_of_one_family_is_held_out_of_all(family: str) -> None:
    held = {task.expression for task in tasks(64, 0, (family,), held_out=True)}
    assert held <= {task.expression for task in tasks(400, 0, tuple(FAMILIES), held_out=True)}
    assert not held & {task.expression for task in tasks(300, 5, (family,))}


def test_tasks_are_the_same_whenever_they_are_asked_for() -> None:
    assert tasks(10, 3) == tasks(10, 3) != tasks(10, 4)


@pytest.mark.parametrize(
    ("expression", "value"),
    [("12 - 45 + 3", "-30"), ("-3 + 4", "1"), ("2 ** 99999999", "error: not a sum"), ("open('x')", "error: not a sum"),
     ("1.5 + 2", "error: not a sum"), ("", "error: not a sum"), ("True + 1", "error: not a sum")],
)  # fmt: skip
def test_the_tool_adds_whole_numbers_and_does_nothing_else(expression: str, value: str) -> None:
    assert calculate(expression) == value


def test_the_last_number_of_an_answer_counts() -> None:
    (task,) = [t for t in tasks(5, 1) if t.expression == "4 - 1"]
    assert is_right(task, "4 - 1 is 3.")
    assert not is_right(task, "It is 3, that is 5 - 2")
    assert not is_right(task, "three")


async def test_an_episode_is_one_closed_trajectory_with_its_tool_call_and_its_reward(running: Running) -> None:  # noqa: F811
    (task,) = tasks(1, 1)
    arguments = json.dumps({"expression": task.expression})
    running.upstream.scripts += [call(("call_1", "calculate", arguments)), say(f"It is {task.answer}.")]
    crowd = Crowd(running.url, running.secrets["northwind"], MODEL, concurrency=1)
    (attempt,) = await crowd.work([task])
    assert attempt.error is None
    assert attempt.right
    await asyncio.sleep(0.2)
    (row,) = running.reader.trajectories("northwind")
    records = running.reader.records("northwind", row.trajectory_id)
    kinds = [r["kind"] for r in records if r["record"] != "trajectory"]
    assert row.closed == "outcome"
    assert kinds.count("llm_call") == 2
    assert "tool_call" in kinds
    assert [r["value"] for r in records if r["record"] == "annotation"] == [1.0]


def test_the_examples_know_nothing_of_evoplane() -> None:
    """A base URL and a key is all they get: no import of ours but their own."""
    ours = ("atdp", "services", "registry", "evaluators", "flows", "evoplane", "dashboards", "benchmarks")
    for file in (Path(__file__).parents[2] / "examples").rglob("*.py"):
        for line in file.read_text().splitlines():
            words: list[Any] = line.split()
            if words[:1] in (["import"], ["from"]):
                assert words[1].split(".")[0] not in ours, f"{file}: {line}"
