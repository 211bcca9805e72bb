"""Real suites with scripted policies: more useful and easier to lead astray is not better."""

from __future__ import annotations

import asyncio
import json
from functools import partial

import pytest

pytest.importorskip("agentdojo", reason="the optional extra agentdojo is not installed")

from benchmarks.replay.scripted import policy, recordings, started
from benchmarks.replay.taught import lessons_of
from evaluators.environments import load
from evaluators.environments.agentdojo import AgentDojo
from evaluators.replay import Replay, safety_violated
from evaluators.replay.branch import Answer, AnswerWith, Branch, Request
from evaluators.replay.engine import Engine, replay_all
from evaluators.replay.paired import Pair, compare_branches

pytestmark = [pytest.mark.stack, pytest.mark.timeout(180)]  # importing agentdojo takes 10 CPU-seconds


@pytest.fixture(scope="module", params=["banking", "slack"])
def world(request: pytest.FixtureRequest) -> AgentDojo:
    made = load(f"agentdojo-{request.param}")
    assert isinstance(made, AgentDojo)
    return made


def compared(world: AgentDojo, champion: AnswerWith, candidate: AnswerWith) -> Replay:
    starts = [(r, 1) for r in recordings(world, injections=True)]
    engine = Engine(environment=partial(started, world))

    def run(answer: AnswerWith) -> list[Branch]:
        return [b for made in asyncio.run(replay_all(engine, starts, answer)) for b in made]

    before, now = run(champion), run(candidate)
    return compare_branches([Pair(r, a, b) for (r, _), a, b in zip(starts, before, now, strict=True)])


def test_the_safety_gate_stops_a_more_useful_candidate_that_follows_injections(world: AgentDojo) -> None:
    champion = policy(world, skill=0.5, follows=lambda goal: False)
    naive = compared(world, champion, policy(world, skill=1.0, follows=lambda goal: True))
    assert naive.improvement.low > 0, "by utility alone it would be delivered"
    assert naive.safety.change.low > 0 and safety_violated(naive, margin=0.02)
    assert "followed injection_task" in naive.safety.examples[0]
    careful = compared(world, champion, policy(world, skill=1.0, follows=lambda goal: False))
    assert careful.improvement.low > 0 and not safety_violated(careful, margin=0.02)
    assert careful.unknown == 0 and careful.klass.deterministic == 1.0


def test_a_pupil_that_repeats_its_lessons_does_what_its_teacher_did(world: AgentDojo) -> None:
    tasks, engine = recordings(world, injections=True)[:6], Engine(environment=partial(started, world))
    teacher = policy(world, skill=1.0, follows=lambda goal: True)
    taught = {json.dumps(list(each.request.messages)): each.message for each in lessons_of(engine, tasks, teacher)}

    async def pupil(request: Request) -> Answer:
        return Answer(message=taught[json.dumps(list(request.messages))])

    def outcomes(answer: AnswerWith) -> list[tuple[bool | None, bool]]:
        made = asyncio.run(replay_all(engine, [(task, 1) for task in tasks], answer))
        return [(branch.done, bool(branch.violations)) for branches in made for branch in branches]

    assert outcomes(pupil) == outcomes(teacher)
    assert any(followed for _, followed in outcomes(pupil))


def test_the_same_policy_twice_shows_no_difference(world: AgentDojo) -> None:
    same = policy(world, skill=0.5, follows=lambda goal: True)
    found = compared(world, same, same)
    assert found.improvement.value == 0 and found.safety.change.value == 0 and not safety_violated(found)


def test_the_ground_truths_are_judged_right_and_declared_reads_change_nothing(world: AgentDojo) -> None:
    for task in world.tasks():
        fresh = world.clone()
        fresh.reset(options={"task": task})
        for name, arguments in fresh.truth(task):
            before = json.dumps(fresh.state())
            fresh.step({"name": name, "arguments": arguments})
            assert fresh.effects[name] == "write" or json.dumps(fresh.state()) == before, name
        assert fresh.judge(fresh.truth_answer(task)) == (True, ())


def test_a_clone_goes_its_own_way(world: AgentDojo) -> None:
    task = next(t for t in world.tasks() if any(world.effects[n] == "write" for n, _ in _started(world, t).truth(t)))
    fresh = _started(world, task)
    twin = fresh.clone()
    for name, arguments in fresh.truth(task):
        twin.step({"name": name, "arguments": arguments})
    assert twin.state() != fresh.state() and fresh.state() == _started(world, task).state()


def _started(world: AgentDojo, task: str) -> AgentDojo:
    fresh = world.clone()
    fresh.reset(options={"task": task})
    return fresh
