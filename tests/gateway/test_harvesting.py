"""Candidate signals reach the trajectory beside the traffic: once, on the right event, and nothing waits for them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.gateway.conftest import Running, user
from tests.gateway.upstream import call, say

SESSION = {"x-evoplane-session-id": "s1"}


async def candidates(running: Running, expected: int) -> list[dict[str, Any]]:
    """The harvested annotations of the only trajectory, once there are as many as expected."""
    (row,) = running.reader.trajectories("northwind")
    async with asyncio.timeout(20):
        while True:
            records = running.reader.records("northwind", row.trajectory_id)
            found = [r for r in records if r["record"] == "annotation" and r["source"].get("id") == "harvest"]
            if len(found) >= expected:
                assert running.reader.verify("northwind", row.trajectory_id) == []
                return found
            await asyncio.sleep(0.02)


async def talk(running: Running, *turns: str) -> list[Any]:
    """A conversation; gives the replies."""
    messages: list[dict[str, Any]] = []
    replies = []
    for turn in turns:
        messages.append(user(turn))
        replies.append(await running.chat(messages, headers=SESSION))
        messages.append((await replies[-1].json())["choices"][0]["message"])
    return replies


async def test_a_correction_becomes_a_candidate_on_the_answer_it_corrects(running: Running) -> None:
    running.upstream.default = say("It arrives on Monday.")
    first, second = await talk(running, "Where is my order?", "That's wrong, it was Tuesday.")
    (found,) = await candidates(running, 1)
    assert (found["name"], found["targets"][0]["event_id"]) == ("user_corrects", first.headers["x-evoplane-event-id"])
    assert found["optimizable"] is False
    words = next(r for r in running.chain(second) if r.get("id") == found["evidence"][0])
    assert words["kind"] == "user_message"


async def test_candidates_are_found_once_though_the_close_reads_everything_again(running: Running) -> None:
    running.upstream.default = say("It arrives on Monday.")
    await talk(running, "Where is my order?", "That's wrong, it was Tuesday.", "Thanks, that works!")
    assert len(await candidates(running, 2)) == 2
    await running.feedback({"session_id": "s1", "name": "resolved", "value": 1})
    await running.stop()  # finishes what is queued
    found = await candidates(running, 2)
    assert sorted(f["name"] for f in found) == ["user_corrects", "user_thanks"]


async def test_test_output_in_a_tool_result_is_a_candidate(running: Running) -> None:
    running.upstream.scripts.append(call(("c1", "bash", '{"cmd": "pytest"}')))
    first = await running.chat([user("fix it")], headers=SESSION)
    answer = (await first.json())["choices"][0]["message"]
    result = {"role": "tool", "tool_call_id": "c1", "content": "F.\n=== 1 failed, 1 passed in 0.1s ===\n"}
    await running.chat([user("fix it"), answer, result], headers=SESSION)
    (found,) = await candidates(running, 1)
    assert (found["name"], found["value"], found["source"]["kind"]) == ("tests", 0.5, "environment")


@pytest.mark.parametrize("running", [{"session_idle_s": 2}], indirect=True)
async def test_a_user_who_never_comes_back_after_a_complaint_has_abandoned(running: Running) -> None:
    await talk(running, "Where is my order?", "That's wrong, it was Tuesday.")
    found = await candidates(running, 2)
    assert {(f["name"], f.get("label")) for f in found} == {
        ("user_corrects", "strong"),
        ("user_abandons", "after_complaint"),
    }
