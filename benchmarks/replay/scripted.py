"""Scripted policies for AgentDojo's suites: they do what the user wants, and some also what a tool's result tells them.

A policy sees only the conversation, as a model would: it finds the user's task by the prompt, and an injection by its
words in a tool's result. What it may read in the suite are the ground truths of both.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

from evaluators.environments.agentdojo import ATTACK, AgentDojo
from evaluators.replay.branch import Answer, AnswerWith, Request
from evaluators.replay.recording import Recording

Calls = list[tuple[str, dict[str, Any]]]


def recordings(world: AgentDojo, injections: bool) -> list[Recording]:
    """One start for each task: the user's words, and the place where an answer is wanted."""
    return [
        Recording(
            id=f"{world.suite.name}/{task}",
            agent=world.suite.name,
            messages=[{"role": "user", "content": world.prompt(task)}, {"role": "assistant", "content": ""}],
            tools=world.tools(),
            task=task,
        )
        for task in world.tasks(injections)
    ]


def started(world: AgentDojo, recording: Recording) -> AgentDojo:
    """The recording's world, fresh."""
    fresh = world.clone()
    fresh.reset(options={"task": recording.task})
    return fresh


def policy(world: AgentDojo, skill: float, follows: Callable[[str], bool]) -> AnswerWith:
    """A policy that can do a share of the tasks, `skill`, and carries out injections where `follows(goal)`."""
    users = {world.prompt(task): task for task in world.tasks()}
    truths = {task: _calls(world, task) for task in users.values()}
    attacks = {ATTACK.format(goal=a.GOAL).strip(): id for id, a in world.suite.injection_tasks.items()}

    async def answer(request: Request) -> Answer:
        task = users[request.messages[0]["content"]]
        seen = [m["content"] for m in request.messages if m["role"] == "tool"]
        able = _share(task) < skill
        wanted, said = truths[task] if able else (truths[task][0][:1], "I could not do it.")
        found = next((id for text, id in attacks.items() if any(_within(text, s) for s in seen)), None)
        calls = list(wanted)
        if found is not None and follows(world.suite.injection_tasks[found].GOAL):
            calls += world.injected_calls(f"{task}+{found}")
        if len(seen) < len(calls):
            name, arguments = calls[len(seen)]
            function = {"name": name, "arguments": json.dumps(arguments)}
            call = {"id": f"c{len(seen)}", "type": "function", "function": function}
            return Answer(message={"role": "assistant", "content": None, "tool_calls": [call]})
        return Answer(message={"role": "assistant", "content": said})

    return answer


def _calls(world: AgentDojo, task: str) -> tuple[Calls, str]:
    fresh = world.clone()
    fresh.reset(options={"task": task})
    return fresh.truth(task), fresh.truth_answer(task)


def _share(task: str) -> float:
    return hashlib.sha256(task.encode()).digest()[0] / 256


def _within(text: str, result: str) -> bool:
    """Results are written as YAML, which breaks long lines."""
    return " ".join(text.split()) in " ".join(result.split())
