"""Signals: any order, any time, durable, and never another tenant's."""

from __future__ import annotations

from typing import Any

import pytest

from registry import tenants
from tests.gateway.conftest import MODEL, Running, user
from tests.gateway.upstream import call

SESSION = {"x-evoplane-session-id": "s1"}


def signals_on(running: Running, response: Any) -> list[dict[str, Any]]:
    return [record for record in running.chain(response) if record["record"] == "annotation"]


async def test_a_signal_binds_by_event_trajectory_or_session(running: Running) -> None:
    response = await running.chat([user("hi")], headers=SESSION)
    event = running.event(response)
    answer = await running.feedback(
        [
            {"event_id": event["id"], "name": "helpful", "value": 0.5},
            {"trajectory_id": event["trajectory_id"], "name": "polite", "value": True},
            {
                "session_id": "s1",
                "name": "resolved",
                "value": 1,
                "confidence": 0.9,
                "source": {"kind": "human", "id": "qa"},
            },
        ]
    )
    assert answer.status == 202
    assert (await answer.json())["bound"] == [True, True, True]
    got = signals_on(running, response)
    assert [(a["name"], a["kind"], a["value"]) for a in got] == [
        ("helpful", "reward", 0.5),
        ("polite", "reward", True),
        ("resolved", "reward", 1),
    ]
    assert got[0]["targets"] == [{"trajectory_id": event["trajectory_id"], "event_id": event["id"]}]
    assert got[2]["source"] == {"kind": "human", "id": "qa"}
    assert running.reader.trajectories("northwind")[0].closed == "outcome"


async def test_a_signal_for_a_session_that_has_not_begun_waits_for_it(running: Running) -> None:
    early = await running.feedback({"session_id": "s1", "name": "resolved", "value": 0, "id": "mine"})
    assert (await early.json())["bound"] == [False]
    response = await running.chat([user("hi")], headers=SESSION)
    assert [a["id"] for a in signals_on(running, response)] == (await early.json())["ids"]


async def test_sending_a_signal_again_with_its_id_changes_nothing(running: Running) -> None:
    response = await running.chat([user("hi")], headers=SESSION)
    item = {"session_id": "s1", "name": "resolved", "value": 1, "id": "once"}
    first, second = await running.feedback(item), await running.feedback(item)
    assert await first.json() == await second.json()
    assert len(signals_on(running, response)) == 1


async def test_corrections_and_demonstrations_keep_the_users_words_and_the_right_message(running: Running) -> None:
    running.upstream.scripts.append(call(("c1", "track_order", "{}")))
    response = await running.chat([user("cancel A-1")], headers=SESSION)
    demonstration = {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "x", "type": "function", "function": {"name": "cancel_order", "arguments": '{"order_id": "A-1"}'}}
        ],
    }
    answer = await running.feedback(
        [
            {"session_id": "s1", "name": "user_correction", "explanation": "No, the returns window is 45 days."},
            {
                "session_id": "s1",
                "name": "demonstration",
                "demonstration": demonstration,
                "observed_at": "2026-01-01T01:00:00+01:00",
            },
        ]
    )
    assert answer.status == 202
    correction, shown = signals_on(running, response)
    assert (correction["kind"], correction["value"]) == ("critique", -1)
    assert correction["explanation"] == "No, the returns window is 45 days."
    assert (shown["kind"], shown["ext"]["demonstration"]) == ("preference", demonstration)
    assert shown["observed_at"] == "2026-01-01T00:00:00.000Z"


async def test_another_tenants_event_cannot_be_judged_or_even_found(running: Running) -> None:
    response = await running.chat([user("hi")], headers=SESSION)
    for target in ({"event_id": response.headers["x-evoplane-event-id"]}, {"session_id": "s1"}):
        answer = await running.feedback({**target, "name": "resolved", "value": 0}, key="lumen")
        assert (await answer.json())["bound"] == [False]
    assert signals_on(running, response) == []


async def test_a_session_is_judged_by_keys_of_its_own_purpose(running: Running) -> None:
    served = await running.chat([user("hi")], headers=SESSION)
    evaluated = await running.chat([user("hi")], key="evaluate", headers=SESSION)
    for key, purpose in (("northwind", "serve"), ("evaluate", "evaluate"), ("operate", "operate")):
        answer = await running.feedback({"session_id": "s1", "name": "resolved", "value": 1, "id": key}, key=key)
        assert (await answer.json())["bound"] == [purpose != "operate"]
    assert len(signals_on(running, served)) == len(signals_on(running, evaluated)) == 1
    operated = await running.chat([user("hi")], key="operate", headers=SESSION)
    assert len(signals_on(running, operated)) == 1


async def test_another_agents_event_cannot_be_judged_or_even_found(running: Running) -> None:
    tenants.create_agent(running.connection, "other", MODEL)
    running.secrets["other"] = tenants.create_key(running.connection, "northwind", "other")[1]
    await running.wait_for_control()
    response = await running.chat([user("hi")], headers=SESSION)
    event = running.event(response)
    for target in ({"event_id": event["id"]}, {"trajectory_id": event["trajectory_id"]}, {"session_id": "s1"}):
        answer = await running.feedback({**target, "name": "resolved", "value": 0}, key="other")
        assert (await answer.json())["bound"] == [False]
    assert signals_on(running, response) == []
    assert running.reader.trajectories("northwind")[0].closed is None


@pytest.mark.parametrize(
    "item",
    [
        {"name": "resolved", "value": 1},
        {"session_id": "s", "name": "resolved", "value": 0.5},
        {"session_id": "s", "name": "helpful"},
        {"session_id": "s", "name": "user_correction"},
        {"session_id": "s", "name": "demonstration"},
        {"session_id": "s", "name": "x", "value": 1, "confidence": 2},
        {"session_id": "s", "name": "x", "value": 1, "observed_at": "yesterday"},
        {"session_id": "s", "name": "x", "value": 1, "unknown": 1},
        {"session_id": "s" * 300, "name": "x", "value": 1},
        [],
        "resolved",
    ],
)
async def test_a_signal_that_says_nothing_is_refused_with_the_reason(running: Running, item: Any) -> None:
    answer = await running.feedback(item)
    assert answer.status == 400
    assert (await answer.json())["error"]["message"]
    assert running.reader.tenants() == []


async def test_a_reported_tool_call_is_not_an_event_again_when_its_result_comes_back(running: Running) -> None:
    running.upstream.scripts.append(call(("c1", "track_order", '{"order_id": "A-1"}')))
    first = await running.chat([user("where?")], headers=SESSION)
    report = {
        "kind": "tool_call",
        "session_id": "s1",
        "call_id": "c1",
        "result": "shipped",
        "effect": "read",
        "duration_ms": 3,
    }
    async with running.http.post(f"{running.url}/v1/events", json=report, headers=running.headers()) as response:
        assert response.status == 202
        reported = (await response.json())["id"]
    answer = (await first.json())["choices"][0]["message"]
    again = await running.chat(
        [user("where?"), answer, {"role": "tool", "tool_call_id": "c1", "content": "shipped"}], headers=SESSION
    )
    calls = [record for record in running.chain(again) if record.get("kind") == "tool_call"]
    assert [c["id"] for c in calls] == [reported]
    assert calls[0]["a"] == {"name": "track_order", "call_id": "c1", "arguments": {"order_id": "A-1"}}
    assert calls[0]["causes"] == [{"id": first.headers["x-evoplane-event-id"], "rel": "decided_by"}]
    assert calls[0]["replay"]["effect"] == "read"


async def test_a_reported_event_lasts_no_less_than_no_time(running: Running) -> None:
    report = {"kind": "tool_call", "name": "t", "session_id": "s1", "duration_ms": -1}
    assert (await running.report(report)).status == 400
    assert running.reader.tenants() == []


async def test_an_explicit_end_closes_the_trajectory_and_signals_still_land(running: Running) -> None:
    response = await running.chat([user("hi")], headers=SESSION)
    end = f"{running.url}/v1/sessions/s1/end"
    for _ in range(2):
        async with running.http.post(end, headers=running.headers()) as ended:
            assert ended.status == 200
    async with running.http.post(end.replace("s1", "other"), headers=running.headers()) as unknown:
        assert unknown.status == 404
    assert (await running.feedback({"session_id": "s1", "name": "resolved", "value": 1})).status == 202
    kinds = [record.get("kind") for record in running.chain(response)]
    assert kinds == [None, "user_message", "llm_call", "outcome", "reward"]


@pytest.mark.parametrize("running", [{"session_idle_s": 0.2}], indirect=True)
async def test_an_idle_session_closes_by_itself(running: Running) -> None:
    import asyncio

    await running.chat([user("hi")], headers=SESSION)
    async with asyncio.timeout(5):
        while running.reader.trajectories("northwind")[0].closed is None:
            await asyncio.sleep(0.05)
    assert running.reader.trajectories("northwind")[0].closed == "idle"
    later = await running.chat([user("hi again")], headers=SESSION)
    assert len(running.reader.trajectories("northwind")) == 2
    assert running.chain(later)[0]["session_id"] == "s1"


async def test_what_a_model_said_is_not_for_optimising_unless_told_so(running: Running) -> None:
    response = await running.chat([user("hi")], headers=SESSION)
    judge = {"kind": "llm_judge", "id": "m"}
    signal = {"event_id": running.event(response)["id"], "name": "judge", "value": 1}
    await running.feedback([
        {**signal, "source": judge},
        {**signal, "source": judge, "optimizable": True},
        {**signal, "name": "stars"},
        {**signal, "name": "stars", "optimizable": False},
    ])  # fmt: skip
    assert [a["optimizable"] for a in signals_on(running, response)] == [False, True, True, False]
