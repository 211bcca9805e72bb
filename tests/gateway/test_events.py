"""Events the agent reports itself: in the trajectory they belong to, once, and only from whose it is."""

from __future__ import annotations

from typing import Any

from registry import tenants
from tests.gateway.conftest import MODEL, Running, serve, user

SESSION = {"x-evoplane-session-id": "s1"}


def step(**more: Any) -> dict[str, Any]:
    return {"kind": "tool_call", "name": "look", "result": "found", **more}


async def test_an_event_for_a_trajectory_that_has_ended_does_not_land_in_the_next(running: Running) -> None:
    first = running.event(await running.chat([user("hi")], headers=SESSION))["trajectory_id"]
    assert (await running.report(step(trajectory_id=first))).status == 202
    await running.feedback({"session_id": "s1", "name": "resolved", "value": 1})
    assert (await running.report(step(trajectory_id=first))).status == 404
    second = running.event(await running.chat([user("more")], headers=SESSION))["trajectory_id"]
    assert (await running.report(step(trajectory_id=first))).status == 404
    assert (await (await running.report(step(trajectory_id=second))).json())["trajectory_id"] == second


async def test_a_key_of_another_agent_or_purpose_cannot_write_into_a_trajectory(running: Running) -> None:
    tenants.create_agent(running.connection, "other", MODEL)
    for name, agent, purpose in (("agent", "other", "serve"), ("evaluate", "support", "evaluate")):
        running.secrets[name] = tenants.create_key(running.connection, "northwind", agent, purpose)[1]
    response = await running.chat([user("hi")], headers=SESSION)
    await running.wait_for_keys()
    trajectory = running.event(response)["trajectory_id"]
    for name in ("agent", "evaluate", "lumen"):
        assert (await running.report(step(trajectory_id=trajectory), key=name)).status == 404
    assert [record.get("kind") for record in running.chain(response)] == [None, "user_message", "llm_call"]


async def test_sending_an_outcome_again_after_the_end_begins_no_trajectory(running: Running) -> None:
    response = await running.chat([user("hi")], headers=SESSION)
    outcome = {"kind": "outcome", "session_id": "s1", "id": "done"}
    first = await running.report(outcome)
    again = await running.report(outcome)
    trajectory = running.event(response)["trajectory_id"]
    by_trajectory = await running.report({**outcome, "session_id": None, "trajectory_id": trajectory})
    assert (first.status, again.status, by_trajectory.status) == (202, 202, 202)
    assert await first.json() == await again.json() == await by_trajectory.json()
    assert len(running.reader.trajectories("northwind")) == 1
    await running.chat([user("more")], headers=SESSION)
    await running.report(outcome)
    assert [row.closed for row in running.reader.trajectories("northwind")] == [None, "outcome"]


async def test_sending_an_outcome_again_after_a_restart_begins_no_trajectory(running: Running) -> None:
    await running.chat([user("hi")], headers=SESSION)
    outcome = {"kind": "outcome", "session_id": "s1", "id": "done"}
    first = await running.report(outcome)
    await running.stop()
    running.url, *running.server = await serve(running.settings)
    assert await (await running.report(outcome)).json() == await first.json()
    assert len(running.reader.trajectories("northwind")) == 1


async def test_a_reopened_trajectory_is_under_the_policy_of_today(running: Running) -> None:
    await running.chat([user("hi")], headers=SESSION)
    await running.feedback({"session_id": "s1", "name": "resolved", "value": 1})
    tenants.create_tenant(running.connection, "northwind", train="deny")
    await running.wait_for_keys()
    header = running.chain(await running.chat([user("more")], headers=SESSION))[0]
    assert header["gov"]["eligibility"]["train"] == "deny"
