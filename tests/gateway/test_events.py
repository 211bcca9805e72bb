"""Events the agent reports itself: in the trajectory they belong to, once, and only from whose it is."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from evoplane.client import Client
from registry import tenants
from tests.gateway.conftest import MODEL, Running, serve, user
from tests.gateway.upstream import call

SESSION = {"x-evoplane-session-id": "s1"}


def step(**more: Any) -> dict[str, Any]:
    return {"kind": "tool_call", "name": "look", "result": "found", **more}


@pytest.mark.parametrize("kind", ["tool", "x.Upper", "tool_call\n"])
async def test_an_unknown_kind_is_told_which_there_are(running: Running, kind: str) -> None:
    response = await running.report([step(), step(kind=kind)])
    message = (await response.json())["error"]["message"]
    assert response.status == 400
    assert message.startswith(f"Event 1: There is no kind {kind!r}; there are tool_call, retrieval, ")
    assert "regex" not in message


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
    await running.wait_for_control()
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
    await running.wait_for_control()
    header = running.chain(await running.chat([user("more")], headers=SESSION))[0]
    assert header["gov"]["eligibility"]["train"] == "deny"


ONE_OF_EACH: list[dict[str, Any]] = [
    {"kind": "retrieval", "name": "docs", "arguments": {"query": "refunds"}, "result": [{"id": "d1"}]},
    {"kind": "memory_read", "name": "profile", "result": {"tier": "gold"}},
    {"kind": "memory_write", "name": "profile", "arguments": {"tier": "gold"}},
    {"kind": "file_op", "name": "read", "arguments": {"path": "a.txt"}, "effect": "read"},
    {"kind": "browser_op", "name": "click", "arguments": {"selector": "#buy"}},
    {"kind": "code_exec", "name": "python", "arguments": {"code": "1/0"}, "status": "error", "exit_code": 1},
    {"kind": "approval", "name": "refund", "decision": "approved", "duration_ms": 60_000},
    {"kind": "handoff", "name": "billing"},
    {"kind": "guardrail", "name": "pii", "decision": "block", "status": "denied"},
    {"kind": "user_message", "text": "thanks"},
    {"kind": "x.voice.barge_in", "arguments": {"at_ms": 300}},
    {"kind": "outcome", "reason": "solved"},
]


def told_records(running: Running, trajectory: str) -> list[dict[str, Any]]:
    """A trajectory without the candidates that are harvested beside the traffic."""
    records = running.reader.records("northwind", trajectory)
    return [record for record in records if record.get("source", {}).get("id") != "harvest"]


async def test_every_kind_of_step_can_be_told_in_one_request_and_keeps_its_order(running: Running) -> None:
    events = [{**event, "session_id": "s1", "id": f"n{index}"} for index, event in enumerate(ONE_OF_EACH)]
    told = (await (await running.report(events)).json())["events"]
    assert len({item["trajectory_id"] for item in told}) == 1
    records = told_records(running, told[0]["trajectory_id"])
    assert running.reader.verify("northwind", told[0]["trajectory_id"]) == []
    assert [record["kind"] for record in records[1:]] == [event["kind"] for event in ONE_OF_EACH]
    assert [record["id"] for record in records[1:]] == [item["id"] for item in told]
    effects = {record["kind"]: record.get("replay", {}).get("effect") for record in records[1:]}
    assert effects["retrieval"] == effects["memory_read"] == effects["file_op"] == "read"
    assert effects["browser_op"] == "write"
    assert effects["outcome"] is None
    assert records[7]["replay"] == {"class": "non_replayable", "boundary": "human", "effect": "none", "stub": True}
    assert running.reader.trajectories("northwind")[0].closed == "outcome"


async def test_a_list_sent_again_is_the_same_events(running: Running) -> None:
    events = [{**event, "session_id": "s1", "id": f"n{index}"} for index, event in enumerate(ONE_OF_EACH)]
    first = await (await running.report(events)).json()
    assert await (await running.report(events)).json() == first
    assert len(running.reader.trajectories("northwind")) == 1
    assert len(told_records(running, first["events"][0]["trajectory_id"])) == len(ONE_OF_EACH) + 1


async def test_a_list_with_one_bad_event_is_refused_whole_and_names_it(running: Running) -> None:
    good = step(session_id="s1")
    for bad, word in (
        ({"kind": "tool_call", "session_id": "s1"}, "name"),
        ({"kind": "llm_call", "session_id": "s1"}, "kind"),
        (step(session_id="s1", time="noon"), "noon"),
        (step(), "session_id"),
    ):
        response = await running.report([good, bad])
        assert response.status == 400
        assert word in (await response.json())["error"]["message"]
    assert (await running.report([good, step(trajectory_id="tr_none")])).status == 404
    assert running.reader.tenants() == []


async def test_a_report_without_a_session_finds_the_one_whose_model_made_the_call(running: Running) -> None:
    for session, arguments in (("s1", '{"q": "a"}'), ("s2", '{"q": "b"}')):
        running.upstream.scripts.append(call(("c1", "crm_find", arguments)))
        await running.chat([user(session)], headers={"x-evoplane-session-id": session})
    report = {"kind": "tool_call", "name": "find", "server": "crm", "arguments": {"q": "a"}, "session_hint": "else"}
    told = await (await running.report(report)).json()
    record = running.reader.record("northwind", told["id"])
    assert record is not None
    assert running.reader.records("northwind", record["trajectory_id"])[0]["session_id"] == "s1"
    assert record["a"] == {"name": "crm_find", "call_id": "c1", "arguments": {"q": "a"}}
    assert record["causes"][0]["rel"] == "decided_by"
    unknown = await (await running.report({**report, "arguments": {"q": "c"}})).json()
    assert running.reader.records("northwind", unknown["trajectory_id"])[0]["session_id"] == "else"


async def test_a_report_that_comes_after_its_result_describes_it_and_is_not_a_second_call(running: Running) -> None:
    running.upstream.scripts.append(call(("c1", "look", "{}")))
    first = await running.chat([user("hi")], headers=SESSION)
    answer = (await first.json())["choices"][0]["message"]
    result = {"role": "tool", "tool_call_id": "c1", "content": "found"}
    again = await running.chat([user("hi"), answer, result], headers=SESSION)
    report = step(session_id="s1", call_id="c1", duration_ms=12, effect="read", id="r1")
    told = [await (await running.report(report)).json() for _ in range(2)]
    assert told[0] == told[1]
    chain = running.chain(again)
    (tool,) = [record for record in chain if record.get("kind") == "tool_call"]
    (label,) = [record for record in chain if record.get("name") == "reported"]
    assert tool["id"] == told[0]["id"] == label["targets"][0]["event_id"]
    assert (label["ext"]["duration_ms"], label["ext"]["effect"]) == (12, "read")


async def test_what_the_client_library_tells_is_in_the_trajectory_of_the_model_calls(running: Running) -> None:
    client = Client(running.url, running.secrets["northwind"])
    session = client.session("s1")
    running.upstream.scripts.append(call(("c1", "look", '{"id": 1}')))
    await running.chat([user("hi")], headers=session.headers)
    with session.tool("look", {"id": 1}, call_id="c1", effect="read") as tool:
        tool.result = "found"
    session.feedback("helpful", 1)
    session.outcome(reason="solved")
    assert await asyncio.to_thread(client.flush, 10)
    (row,) = running.reader.trajectories("northwind")
    records = running.reader.records("northwind", row.trajectory_id)
    assert [record.get("kind") for record in records] == [
        None, "user_message", "llm_call", "tool_call", "reward", "outcome",
    ]  # fmt: skip
    assert records[3]["causes"] == [{"id": records[2]["id"], "rel": "decided_by"}]
    assert row.closed == "outcome"
    await asyncio.to_thread(client.close)
