"""OpenAI's Agents SDK, in its own environment, with a base URL and a key: what it does can be trained on."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import msgspec
import pytest

from examples.calculator.tasks import Task
from tests.gateway.conftest import Running, running, upstream  # noqa: F401  (fixtures)
from tests.gateway.upstream import call, say

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-clients" / "bin" / "python"
TASK = Task("What is 4 - 1 =", "4 - 1", "3")


@pytest.mark.skipif(not PYTHON.exists(), reason=".venv-clients is missing: `make clients` makes it")
async def test_each_attempt_is_a_closed_rewarded_trajectory(running: Running) -> None:  # noqa: F811
    wrong = [call(("call_1", "calculate", '{"expression": "4 - 2"}')), say("It is 2.")]
    right = [call(("call_2", "calculate", '{"expression": "4 - 1"}')), say("It is 3.")]
    running.upstream.scripts += [*wrong, *right]
    process = await asyncio.create_subprocess_exec(
        *(str(PYTHON), "-m", "examples.agents_sdk.solver", running.url, running.secrets["northwind"]),
        *("--group", "2", "--at-once", "1"),
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OPENAI_AGENTS_DISABLE_TRACING": "1"},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    told, problems = await process.communicate(msgspec.json.encode(TASK.__dict__) + b"\n")
    assert process.returncode == 0, problems.decode()[-2000:]
    assert json.loads(told) == {"attempts": 2, "right": 1}
    rows = running.reader.trajectories("northwind")
    assert [row.closed for row in rows] == ["outcome", "outcome"]
    rewards = [
        record["value"]
        for row in rows
        for record in running.reader.records("northwind", row.trajectory_id)
        if record["record"] == "annotation" and record.get("name") == "resolved"
    ]
    assert sorted(rewards) == [0, 1]
