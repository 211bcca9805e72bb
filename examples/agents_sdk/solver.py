"""An agent of OpenAI's Agents SDK, as its documentation shows one. It was given a base URL and a key.

    .venv-clients/bin/python -m examples.agents_sdk.solver http://127.0.0.1:8400 evo_… --tasks 20 --group 8

Runs in an environment that has `openai-agents` (`make clients` makes one); the tasks come as JSON lines on standard
input, or from reasoning-gym where that is installed. While it works, `python -m flows.online --agent A --actor you`
trains what answers it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import httpx
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from examples.calculator.tasks import Task, calculate, is_right, tasks

_session: ContextVar[list[str]] = ContextVar("session")
"""Where the gateway's reply headers leave the session's id, for the feedback."""


def solver(base_url: str, key: str, model: str, temperature: float) -> Any:
    """The agent: one tool, the SDK's own loop."""
    from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, function_tool, set_tracing_disabled

    set_tracing_disabled(True)

    async def remember(response: httpx.Response) -> None:
        if id := response.headers.get("x-evoplane-session-id"):
            _session.get().append(id)

    client = AsyncOpenAI(
        base_url=f"{base_url}/v1",
        api_key=key,
        http_client=DefaultAsyncHttpxClient(event_hooks={"response": [remember]}),
    )
    tool = function_tool(calculate, description_override="Compute a sum.", strict_mode=False)
    return Agent(
        name="Solver",
        model=OpenAIChatCompletionsModel(model, client),
        tools=[tool],
        model_settings=ModelSettings(temperature=temperature, max_tokens=40),
    )


async def work(
    base_url: str, key: str, model: str, asked: Iterator[Task], temperature: float, at_once: int
) -> list[bool]:
    """Attempt every task and post how each ended; gives the outcomes."""
    from agents import Runner
    from agents.exceptions import AgentsException

    agent = solver(base_url, key, model, temperature)
    outcomes: list[bool] = []
    auth = {"authorization": f"Bearer {key}"}

    async def one(feedback: httpx.AsyncClient) -> None:
        for task in asked:
            seen: list[str] = []
            _session.set(seen)
            try:
                right = is_right(task, str((await Runner.run(agent, task.question, max_turns=3)).final_output))
            except AgentsException:  # it called its tool until its turns were over
                right = False
            outcomes.append(right)
            told = {
                "session_id": seen[0],
                "name": "resolved",
                "value": int(right),
                "source": {"kind": "environment", "id": "reasoning-gym"},
                "id": f"{seen[0]}/resolved",
            }
            (await feedback.post("/v1/feedback", json=told)).raise_for_status()

    async with httpx.AsyncClient(base_url=base_url, headers=auth, timeout=60) as feedback:
        await asyncio.gather(*(one(feedback) for _ in range(at_once)))
    return outcomes


def _given(count: int, group: int, seed: int) -> Iterator[Task]:
    found = tasks(count, seed) if sys.stdin.isatty() else [Task(**json.loads(line)) for line in sys.stdin]
    return (task for task in found for _ in range(group))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base_url")
    parser.add_argument("key")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--tasks", type=int, default=20)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--at-once", type=int, default=8)
    told = parser.parse_args()
    asked = _given(told.tasks, told.group, told.seed)
    outcomes = asyncio.run(work(told.base_url, told.key, told.model, asked, told.temperature, told.at_once))
    print(json.dumps({"attempts": len(outcomes), "right": sum(outcomes)}))


if __name__ == "__main__":
    main()
