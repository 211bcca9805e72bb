"""Re-making a recorded conversation: what the tape answers, what an environment does, and where it must end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from atdp.messages import from_openai
from evaluators.environments import UnknownEnvironment, UnsafeEnvironment, load
from evaluators.replay.branch import Answer, Branch, Request, judge_branch
from evaluators.replay.engine import Engine, replay_all
from evaluators.replay.recording import Recording, from_messages, from_records
from evaluators.replay.tape import Recorded, Tape
from examples.support.environment import ShopEnvironment

EFFECTS = {"track_order": "read", "cancel_order": "write", "start_return": "write", "change_address": "write"}


def said(text: str = "", *calls: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    made = [
        {"id": f"c{i}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for i, (name, arguments) in enumerate(calls)
    ]
    return {"role": "assistant", "content": text or None, **({"tool_calls": made} if made else {})}


def result(text: str, id: str = "c0") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "content": text}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


TRACK, CANCEL = ("track_order", {"order_id": "A1"}), ("cancel_order", {"order_id": "A1"})


@pytest.fixture
def recording() -> Recording:
    messages = [
        user("Where is A1?"),
        said("", TRACK),
        result("order A1: shipped"),
        said("It is on its way."),
        user("Then cancel it."),
        said("", CANCEL),
        result("order A1: ok"),
        said("", TRACK),
        result("order A1: cancelled"),
        said("It is cancelled."),
    ]
    return from_messages("tr_1", messages, effects=EFFECTS, success=True)


def replay(recording: Recording, script: Sequence[dict[str, Any]], start: int = 1, **engine: Any) -> Branch:
    script = list(script)

    async def answer(request: Request) -> Answer | None:
        return Answer(message=script.pop(0)) if script else None

    return asyncio.run(Engine(**engine).branches(recording, start, answer))[0]


def as_recorded(recording: Recording, start: int = 1) -> list[dict[str, Any]]:
    return [m for m in recording.messages[start:] if m["role"] == "assistant"]


def test_the_same_actions_play_the_whole_conversation_from_the_tape(recording: Recording) -> None:
    branch = replay(recording, as_recorded(recording))
    assert (branch.end, branch.klass, branch.diverged) == ("finished", "deterministic", False)
    assert [m for m in branch.messages if m["role"] != "assistant"] == [
        m for m in recording.messages if m["role"] != "assistant"
    ]
    assert [o.result for o in branch.outcomes] == ["order A1: shipped", "order A1: ok", "order A1: cancelled"]
    assert judge_branch(recording, branch) == "success"


def test_the_tape_tells_the_same_question_before_and_after_a_write_apart(recording: Recording) -> None:
    tape = Tape(recording.actions)
    before, written = tape.states[0], tape.states[2]
    assert tape.states[1] == before and written != before
    spaced = {"order_id": "A1"}
    assert tape.exact("track_order", spaced, before).recorded.result == "order A1: shipped"  # type: ignore[union-attr]
    assert tape.exact("track_order", spaced, written).recorded.result == "order A1: cancelled"  # type: ignore[union-attr]
    assert tape.exact("cancel_order", {"order_id": "A1"}, written) is None


def test_a_tool_that_answered_the_same_call_differently_is_only_approximate() -> None:
    calls = [Recorded(tool="clock", arguments={}, result=text, effect="read") for text in ("12:00", "12:01")]
    hit = Tape(calls).exact("clock", {}, Tape([]).states[0])
    assert hit is not None and not hit.exact


def test_a_user_who_was_told_something_else_says_nothing_more(recording: Recording) -> None:
    branch = replay(recording, [said("", TRACK), said("I have no idea."), said("never asked")])
    assert (branch.end, branch.klass, branch.diverged) == ("user_diverged", "non_replayable", True)
    assert judge_branch(recording, branch) == "unknown"
    assert len(branch.answers) == 2


def test_another_way_to_the_same_words_keeps_the_conversation_going(recording: Recording) -> None:
    """The user sees words, not tool calls."""
    branch = replay(recording, [said("It is on its way."), *as_recorded(recording, 5)])
    assert (branch.end, branch.diverged) == ("finished", True)


def test_a_write_that_was_not_recorded_is_never_made(recording: Recording) -> None:
    other = said("", ("cancel_order", {"order_id": "B2"}))
    branch = replay(recording, [other, said("Done.")])
    assert (branch.end, branch.klass) == ("write_refused", "non_replayable")
    assert branch.outcomes == () and judge_branch(recording, branch) == "unknown"


def test_a_tool_nobody_described_counts_as_writing(recording: Recording) -> None:
    branch = replay(recording, [said("", ("look", {"order_id": "A1"}))])
    assert branch.end == "write_refused"


def test_a_read_is_answered_by_the_nearest_recorded_call_and_marked_so(recording: Recording) -> None:
    asked = Recorded(tool="search", arguments={"query": "returns of shoes, A1"}, result="45 days", effect="read")

    def search(query: str, tenant: str = "") -> Branch:
        script = [said("", ("search", {"query": query})), said("It is on its way.")]
        return replay(recording, script, elsewhere={tenant: [asked]}, effects={"search": "read"})

    branch = search("return of shoes A1")
    (outcome,) = branch.outcomes
    assert (outcome.source, outcome.klass, outcome.result) == ("nearest", "approximate", "45 days")
    assert 0.6 <= outcome.similarity < 1 and branch.klass == "approximate"
    for other_thing in ("returns of shoes, A2", "opening hours on Sunday"):
        assert (search(other_thing).end, search(other_thing).klass) == ("not_on_tape", "non_replayable")
    assert search("return of shoes A1", tenant="lumen").end == "not_on_tape", "another tenant's reads are its own"


def test_another_order_is_another_order_however_similar_its_number(recording: Recording) -> None:
    branch = replay(recording, [said("", ("track_order", {"order_id": "A11"}))])
    assert branch.end == "not_on_tape"


def test_after_an_unrecorded_write_the_tapes_earlier_answers_no_longer_hold(recording: Recording) -> None:
    """Both writes are on the tape, but in another order than now."""
    messages = [user("Return A1, then cancel it."), said("", ("start_return", {"order_id": "A1"})), result("ok"),
                said("", CANCEL), result("ok"), said("Done.")]  # fmt: skip
    branch = replay(from_messages("tr_2", messages, effects=EFFECTS), [said("", CANCEL)])
    assert branch.end == "write_refused"


def test_an_environment_executes_what_the_tape_does_not_know(recording: Recording) -> None:
    returned = ("start_return", {"order_id": "A1", "reason": "damaged"})
    script = [said("", returned), said("", TRACK), said("A return was started.")]
    branch = replay(recording, script, start=5, environment=lambda _: ShopEnvironment())
    assert [(o.source, o.klass, o.result) for o in branch.outcomes] == [
        ("environment", "deterministic", "order A1: ok"),
        ("environment", "deterministic", "order A1: return (damaged)"),
    ]
    assert branch.end == "finished"


def test_an_environment_that_contradicts_the_recording_is_only_approximate(recording: Recording) -> None:
    class Lossy(ShopEnvironment):
        def step(self, action):  # type: ignore[no-untyped-def]
            text, *rest = super().step(action)
            return (text.replace("shipped", "packed"), *rest)

    script = [said("", ("start_return", {"order_id": "A1", "reason": "damaged"})), said("Done.")]
    branch = replay(recording, script, start=5, environment=lambda _: Lossy())
    assert [(o.source, o.klass) for o in branch.outcomes] == [("environment", "approximate")]


def test_branches_of_one_decision_do_not_see_each_other(recording: Recording) -> None:
    made: list[ShopEnvironment] = []

    def world(_: Recording) -> ShopEnvironment:
        made.append(ShopEnvironment())
        return made[-1]

    async def answer(request: Request) -> Answer:
        city = f"town {request.seed}"
        if request.messages[-1]["role"] == "tool":
            return Answer(message=said("Done."))
        return Answer(message=said("", ("change_address", {"order_id": "A1", "city": city})))

    branches = asyncio.run(Engine(environment=world).branches(recording, 1, answer, repeats=3))
    assert len({b.state for b in branches}) == 3 and len(made) == 1
    assert made[0].state() == {}


def test_an_environment_that_is_not_sandboxed_is_refused(recording: Recording) -> None:
    class Real(ShopEnvironment):
        sandboxed = False

    with pytest.raises(UnsafeEnvironment, match="Real"):
        replay(recording, as_recorded(recording), environment=lambda _: Real())
    with pytest.raises(UnsafeEnvironment):
        load("tests.evaluators.test_engine:unsafe")


def unsafe() -> ShopEnvironment:
    world = ShopEnvironment()
    world.sandboxed = False
    return world


def test_environments_are_found_by_their_configured_name() -> None:
    assert isinstance(load("examples.support.environment:ShopEnvironment"), ShopEnvironment)
    with pytest.raises(UnknownEnvironment, match="agentdojo-banking"):
        load("nowhere")
    with pytest.raises(UnknownEnvironment, match="can't be imported"):
        load("examples.support.gone:World")


def test_no_answer_and_a_broken_call_are_the_candidates_failures(recording: Recording) -> None:
    silent = replay(recording, [])
    broken = said("", TRACK)
    broken["tool_calls"][0]["function"]["arguments"] = '{"order_id": "A1"}{}'
    malformed = replay(recording, [broken])
    assert (silent.end, malformed.end) == ("unanswered", "malformed_call")
    assert [judge_branch(recording, b) for b in (silent, malformed)] == ["failure", "failure"]


def test_an_agent_that_never_ends_is_stopped_and_unknown(recording: Recording) -> None:
    branch = replay(recording, [said("", TRACK)] * 5, max_steps=4)
    assert branch.end == "step_limit" and judge_branch(recording, branch) == "unknown"


def test_every_candidate_is_asked_under_the_same_seeds(recording: Recording) -> None:
    def seeds() -> list[int]:
        asked: list[int] = []

        async def answer(request: Request) -> None:
            asked.append(request.seed)

        asyncio.run(replay_all(Engine(), [(recording, 1), (recording, 5)], answer, repeats=2))
        return asked

    assert sorted(seeds()) == sorted(seeds()) and len(set(seeds())) == 4


def test_a_protected_tool_is_reported_even_where_the_branch_ends(recording: Recording) -> None:
    branch = replay(recording, [said("", ("cancel_order", {"order_id": "Z9"}))], protected={"cancel_order"})
    assert branch.violations == ("protected tool cancel_order",)


def test_a_trajectorys_records_become_the_conversation_and_its_tape() -> None:
    def event(id: str, kind: str, **fields: Any) -> dict[str, Any]:
        return {
            "record": "event",
            "id": id,
            "kind": kind,
            "trajectory_id": "tr_1",
            "ctx": "c",
            "y": {"status": "ok"},
            **fields,
        }

    shown = [user("Where is A1?"), said("", TRACK), result("order A1: shipped")]
    asked = [from_openai(m) for m in shown]
    tags = {"tags": {"agent": "support"}}
    records = [
        {"record": "trajectory", "trajectory_id": "tr_1", "task": {"id": "t7"}},
        event("ev_1", "llm_call", o={"messages": asked[:1]}, a={"messages": asked[1:2]}, m=tags),
        event("ev_2", "tool_call", a={"name": "track_order", "call_id": "c0", "arguments": TRACK[1]},
              replay={"class": "deterministic", "effect": "read"}),
        event("ev_3", "llm_call", o={"messages": asked}, a={"messages": [from_openai(said("On its way."))]}, m=tags),
    ]  # fmt: skip
    recording = from_records("northwind", records, lambda context: [{"of": context}])
    assert recording is not None
    assert [m["role"] for m in recording.messages] == ["user", "assistant", "tool", "assistant"]
    (action,) = recording.actions
    assert (action.tool, action.effect, action.event_id, action.result) == (
        "track_order", "read", "ev_2", "order A1: shipped")  # fmt: skip
    assert (recording.agent, recording.task, recording.tools) == ("support", "t7", [{"of": "c"}])
    assert recording.event_ids == {1: "ev_1", 3: "ev_3"} and recording.decisions() == [1]
    assert replay(recording, as_recorded(recording)).end == "finished"
    assert from_records("northwind", records[:1], lambda _: []) is None
