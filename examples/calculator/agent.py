"""The agent, as people write them: the plain OpenAI SDK, one tool, a short loop. It was given a base URL and a key.

python -m examples.calculator.agent http://127.0.0.1:8400 evo_… --tasks 20 --group 4
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import httpx
from openai import AsyncOpenAI, OpenAIError

from examples.calculator.tasks import TOOL, Task, calculate, demonstration, is_right, tasks

_STEPS = 3
_CALL_TOKENS, _ANSWER_TOKENS = 40, 16

Reward = Callable[[Task, bool], float]


@dataclass
class Attempt:
    task: Task
    text: str = ""
    session_id: str = ""
    event_id: str = ""
    """The first decision."""
    error: str | None = None

    @property
    def right(self) -> bool:
        return self.error is None and is_right(self.task, self.text)


@dataclass
class Crowd:
    """Many attempts side by side, their outcomes posted as feedback when `report` is set."""

    base_url: str
    """Of the gateway, without `/v1`."""
    key: str
    model: str
    temperature: float = 1.0
    concurrency: int = 8
    report: bool = True
    demonstrate: bool = False
    """Does somebody show, after a failure, what the first step should have been?"""
    reward: Reward = field(default=lambda task, right: float(right))
    headers: dict[str, str] = field(default_factory=dict)
    patience: int = 2
    """Retries of the SDK, as far apart as the server says."""

    async def work(self, asked: Iterable[Task], until: Callable[[], bool] | None = None) -> list[Attempt]:
        """Attempt every task, or as many as come before `until` says enough; gives the attempts as they ended."""
        done: list[Attempt] = []
        queue = iter(asked)
        auth = {"authorization": f"Bearer {self.key}"}
        async with (
            AsyncOpenAI(
                base_url=f"{self.base_url}/v1",
                api_key=self.key,
                default_headers=self.headers,
                max_retries=self.patience,
                timeout=300,
            ) as client,
            httpx.AsyncClient(base_url=self.base_url, headers=auth, timeout=60) as feedback,
        ):

            async def one() -> None:
                for task in queue:
                    if until is not None and until():
                        return
                    attempt = await self._attempt(client, task)
                    if self.report and attempt.error is None:
                        (await feedback.post("/v1/feedback", json=self._feedback(attempt))).raise_for_status()
                    done.append(attempt)

            await asyncio.gather(*(one() for _ in range(self.concurrency)))
        return done

    async def _attempt(self, client: AsyncOpenAI, task: Task) -> Attempt:
        attempt = Attempt(task)
        messages: list[Any] = [{"role": "user", "content": task.question}]
        try:
            for step in range(_STEPS):
                raw = await client.chat.completions.with_raw_response.create(
                    model=self.model,
                    messages=messages,
                    tools=[TOOL],  # type: ignore[list-item]
                    temperature=self.temperature,
                    max_tokens=_CALL_TOKENS if step == 0 else _ANSWER_TOKENS,
                )
                if not attempt.event_id:
                    attempt.event_id = raw.headers["x-evoplane-event-id"]
                    attempt.session_id = raw.headers["x-evoplane-session-id"]
                message = raw.parse().choices[0].message
                attempt.text = message.content or ""
                if not message.tool_calls:
                    break
                messages.append(message.model_dump(exclude_none=True))
                for call in message.tool_calls:
                    result = calculate(_expression(call.function.arguments))  # type: ignore[union-attr]
                    messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        except (OpenAIError, ValueError) as error:
            attempt.error = f"{type(error).__name__}: {error}"
        return attempt

    def _feedback(self, attempt: Attempt) -> list[dict[str, Any]]:
        outcome = {
            "session_id": attempt.session_id,
            "name": "resolved",
            "value": self.reward(attempt.task, attempt.right),
            "source": {"kind": "environment", "id": "reasoning-gym"},
            "id": f"{attempt.session_id}/resolved",
        }
        if attempt.right or not self.demonstrate:
            return [outcome]
        shown = {
            "session_id": attempt.session_id,
            "event_id": attempt.event_id,
            "name": "demonstration",
            "value": 1,
            "demonstration": demonstration(attempt.task),
            "source": {"kind": "human", "id": "teacher"},
            "id": f"{attempt.session_id}/demonstration",
        }
        return [shown, outcome]  # the outcome ends the trajectory


def _expression(arguments: str) -> str:
    try:
        value = json.loads(arguments).get("expression", "")
    except (ValueError, AttributeError):
        return ""
    return value if isinstance(value, str) else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base_url", help="the gateway's address")
    parser.add_argument("key")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--tasks", type=int, default=20)
    parser.add_argument("--group", type=int, default=4, help="attempts at each task")
    parser.add_argument("--seed", type=int, default=1)
    told = parser.parse_args()
    crowd = Crowd(told.base_url, told.key, told.model)
    asked = [task for task in tasks(told.tasks, told.seed) for _ in range(told.group)]
    done = asyncio.run(crowd.work(asked))
    print(f"{sum(a.right for a in done)} of {len(done)} right")
    if failed := [a.error for a in done if a.error]:
        print(f"{len(failed)} failed, one with {failed[0]}")


if __name__ == "__main__":
    main()
