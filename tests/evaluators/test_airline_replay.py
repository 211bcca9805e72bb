"""Replay of public recordings (tau-bench, airline): against the tables they were made with, later ones, and none."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from functools import cache

import pytest

from evaluators.cases import action_of
from evaluators.environments import Environment
from evaluators.replay.branch import Answer, AnswerWith, Request, judge_branch
from evaluators.replay.check import check
from evaluators.replay.engine import Engine
from evaluators.replay.recording import Recording, from_messages
from evaluators.replay.tape import READS, Tape, after
from tests.evaluators.airline import EFFECTS, FOLDER, Airline
from tests.evaluators.test_engine import said
from tests.shared import REASON

pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason=REASON)


@cache
def recordings() -> tuple[Recording, ...]:
    runs = json.loads((FOLDER / "gpt-4o-airline.json").read_text())
    return tuple(
        from_messages(f"{run['task_id']}/{run['trial']}", run["traj"], effects=EFFECTS,  # type: ignore[arg-type]
                      success=run["reward"] > 0.5, task=str(run["task_id"]))
        for run in runs
    )  # fmt: skip


def imitate(recording: Recording, skip: int = 0) -> AnswerWith:
    """A candidate that does what was recorded."""
    script = [m for m in recording.messages[recording.decisions()[0] :] if m["role"] == "assistant"][skip:]

    async def answer(_: Request) -> Answer:
        return Answer(message=script.pop(0))

    return answer


def test_every_recorded_call_comes_to_the_same_with_the_tables_of_the_recording() -> None:
    found = [check(r, Airline()) for r in recordings()]
    assert isinstance(Airline(), Environment)
    assert sum(c.calls for c in found) == 1164 and not any(c.mismatches for c in found)
    assert {c.klass for c in found} == {"deterministic"}


def test_a_renamed_field_makes_exactly_the_recordings_that_read_it_approximate() -> None:
    """120 of 1,164 results differ, by the field's name alone."""
    found = [check(r, Airline("env_users_after_404f33e")) for r in recordings()]
    wrong = [m for c in found for m in c.mismatches]
    assert (len(wrong), {m.tool for m in wrong}) == (120, {"get_user_details"})
    assert all(m.recorded.replace('"province"', '"state"') == m.replayed for m in wrong)
    assert Counter(c.klass for c in found) == {"approximate": 120, "deterministic": 80}


def test_the_recorded_actions_play_all_conversations_to_their_end_from_the_tape() -> None:
    async def run() -> list[tuple[str, str, str]]:
        out = []
        for recording in recordings():
            (branch,) = await Engine(max_steps=64).branches(recording, recording.decisions()[0], imitate(recording))
            out.append((branch.end, branch.klass, judge_branch(recording, branch)))
        return out

    found = Counter(asyncio.run(run()))
    assert found == {("finished", "deterministic", "success"): 84, ("finished", "deterministic", "failure"): 116}


@pytest.mark.parametrize(
    ("users", "klass"), [("env_users", "deterministic"), ("env_users_after_404f33e", "approximate")]
)
def test_an_unrecorded_write_is_believed_only_in_a_world_that_agrees_with_the_record(users: str, klass: str) -> None:
    recording = next(r for r in recordings() if r.actions and r.actions[0].tool == "get_user_details")
    start = next(i for i in recording.decisions() if any(m.get("role") == "tool" for m in recording.messages[:i]))
    user = recording.actions[0].arguments["user_id"]

    async def answer(request: Request) -> Answer:
        wrote = request.messages[-1]["role"] == "tool"
        call = ("send_certificate", {"user_id": user, "amount": 50})
        return Answer(message=said("Done.") if wrote else said("", call))

    engine = Engine(environment=lambda _: Airline(users))
    (branch,) = asyncio.run(engine.branches(recording, start, answer))
    (outcome,) = branch.outcomes
    assert (outcome.source, outcome.klass) == ("environment", klass)
    alone = asyncio.run(Engine(effects=EFFECTS).branches(recording, start, answer))[0]  # type: ignore[arg-type]
    assert (alone.end, alone.klass) == ("write_refused", "non_replayable")


def test_without_an_environment_other_trials_reads_are_answered_right_or_not_at_all() -> None:
    """What one trial read, asked of another trial's tape with the rest of the task's trials behind it."""
    by_task: dict[str, list[Recording]] = {}
    for recording in recordings():
        by_task.setdefault(recording.task, []).append(recording)
    found: Counter[str] = Counter()
    for trials in by_task.values():
        for asked, *others in (trials, trials[::-1]):
            tape = Tape(others[0].actions, [a for o in others[1:] for a in o.actions])
            state = tape.states[0]
            for action in asked.actions:
                if action.effect in READS and action.tool not in ("think", "calculate"):
                    exact = tape.exact(action.tool, action.arguments, state)
                    hit = exact or tape.nearest(action.tool, action.arguments)
                    kind = "tape" if exact and exact.exact else "nearest" if hit else "unknown"
                    right = hit is not None and hit.recorded.result == action.result
                    found[kind if hit is None else f"{kind} {'right' if right else 'wrong'}"] += 1
                state = after(state, action.tool, action.arguments, action.effect, action.status)
    assert found == {"tape right": 222, "nearest right": 77, "unknown": 46}


def test_only_reads_and_nothing_unsaid_changes_the_world() -> None:
    """The declared effects are true: no call that is declared to read changes the tables."""
    for recording in recordings()[:40]:
        world = Airline()
        for action in recording.actions:
            before = json.dumps(world.state())
            world.step({"name": action.tool, "arguments": action.arguments})
            if action.effect in READS:
                assert json.dumps(world.state()) == before
    assert action_of(recordings()[0].messages[-1]).calls == ()
