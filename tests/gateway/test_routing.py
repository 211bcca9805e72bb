"""Which version answers whom, how fast a change arrives, and what a version adds."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from registry import pointers, tenant_policy
from registry.manifest import Harness, Manifest, Policy
from registry.pointers import Route
from services.gateway import app
from services.router import watcher
from services.router.assignment import assign
from services.router.overlays import apply_overlays, memory_text
from tests.gateway.conftest import MODEL, Running, memory, user, version
from tests.gateway.upstream import call, reply, say


async def route(running: Running) -> dict:
    url = f"{running.url}/v1/agents/support/route"
    async with running.http.get(url, headers=running.headers("operate")) as response:
        assert response.status == 200
        return await response.json()


async def test_a_promotion_and_a_rollback_reach_every_request_after_the_next_look_at_them(
    running: Running,
) -> None:
    session = {"x-evoplane-session-id": "s"}
    assert (await running.chat([user("hi")], headers=session)).headers["x-evoplane-agent-version"] == "1"
    running.route(pointers.set_champion, "2", "better", "test")
    await running.wait_for_control()
    for _ in range(3):
        response = await running.chat([user("hi")], headers=session)
        assert response.headers["x-evoplane-agent-version"] == "2"
        assert running.upstream.requests[-1]["model"] == "support-v2"
        assert (await response.json())["model"] == MODEL
    running.route(pointers.rollback, "previous", "worse", "test")
    await running.wait_for_control()
    assert (await running.chat([user("hi")], headers=session)).headers["x-evoplane-agent-version"] == "1"
    assert (await route(running))["versions"]["1"] == version("1", MODEL).digest


async def test_a_request_in_flight_finishes_on_its_version(running: Running) -> None:
    running.upstream.default = say("a slow answer", 0.15)
    task = asyncio.create_task(running.chat([user("hi")], stream=True))
    await asyncio.sleep(0.1)
    running.route(pointers.set_champion, "2", "better", "test")
    await running.wait_for_control()
    assert (await route(running))["champion"] == "2"
    response = await task
    assert running.event(response)["y"]["status"] == "ok"
    assert running.event(response)["m"]["tags"]["agent_version"] == "1"


async def test_a_canary_gets_its_share_sessions_stick_and_its_end_is_obeyed_at_once(running: Running) -> None:
    running.route(pointers.start_canary, "2", 0.5)
    await running.wait_for_control()
    served = {}
    for index in range(40):
        response = await running.chat([user("hi")], headers={"x-evoplane-session-id": f"s{index}"})
        served[f"s{index}"] = response.headers["x-evoplane-agent-version"]
        assert running.event(response)["m"]["tags"]["role"] == {"1": "champion", "2": "canary"}[served[f"s{index}"]]
    assert 8 <= list(served.values()).count("2") <= 32
    for session, label in served.items():
        response = await running.chat([user("on")], headers={"x-evoplane-session-id": session})
        assert response.headers["x-evoplane-agent-version"] == label
    running.route(pointers.clear_canary, "harm")
    await running.wait_for_control()
    for session in served:
        response = await running.chat([user("on")], headers={"x-evoplane-session-id": session})
        assert response.headers["x-evoplane-agent-version"] == "1"


def test_the_assignment_depends_on_session_salt_and_weight_only() -> None:
    def on_canary(weight: float, salt: str = "x", tenants: tuple[str, ...] | None = None) -> set[int]:
        given = Route(agent="a", champion="1", canary="2", canary_weight=weight, salt=salt, canary_tenants=tenants)
        return {i for i in range(2000) if assign(given, f"s{i}", "northwind") == "2"}

    assert on_canary(0.0) == set()
    assert len(on_canary(1.0)) == 2000
    assert on_canary(0.2) < on_canary(0.5)  # a rising weight takes nobody back
    assert 330 < len(on_canary(0.2)) < 470
    assert on_canary(0.2) != on_canary(0.2, "y")
    assert on_canary(1.0, tenants=("lumen",)) == set()


async def test_a_pinned_version_is_served_to_evaluators_and_kept_from_training(running: Running) -> None:
    response = await running.chat([user("hi")], key="evaluate", headers={"x-evoplane-pin-version": "3"})
    assert response.headers["x-evoplane-agent-version"] == "3"
    header, *_, called = running.chain(response)
    assert header["gov"]["eligibility"]["train"] == "deny"
    tags = {"agent": "support", "agent_version": "3", "role": "pinned", "purpose": "evaluate", "line": "main"}
    assert called["m"]["tags"] == tags
    missing = await running.chat([user("hi")], key="evaluate", headers={"x-evoplane-pin-version": "99"})
    assert missing.status == 404
    assert (await missing.json())["error"]["code"] == "version_not_found"


async def test_probes_of_several_versions_with_the_same_answers_are_sessions_of_their_own(running: Running) -> None:
    messages = [user("hi"), {"role": "assistant", "content": "hello"}, user("more")]
    seen = set()
    for label in ("1", "2", "3"):
        for prompt in (messages[:1], messages):
            response = await running.chat(prompt, key="evaluate", headers={"x-evoplane-pin-version": label})
            seen.add(running.event(response)["trajectory_id"])
    assert len(seen) == 6


async def test_an_evaluation_with_a_users_session_id_stays_out_of_the_users_trajectory(running: Running) -> None:
    session = {"x-evoplane-session-id": "s"}
    live = await running.chat([user("hi")], headers=session)
    probe = await running.chat([user("hi")], key="evaluate", headers=session)
    assert running.event(live)["trajectory_id"] != running.event(probe)["trajectory_id"]


async def test_a_shadow_decides_in_the_background_in_a_branch_of_its_own(running: Running) -> None:
    running.route(pointers.start_shadow, "2", 1.0)
    await running.wait_for_control()
    response = await running.chat([user("hi")], stream=True)
    async with asyncio.timeout(2):
        while len(rows := running.reader.trajectories("northwind")) < 2:
            await asyncio.sleep(0.01)
    mirrored = next(r for r in rows if r.trajectory_id != running.event(response)["trajectory_id"])
    header, _, called = running.reader.records("northwind", mirrored.trajectory_id)
    original = running.event(response)
    assert header["parent"] == {
        "trajectory_id": original["trajectory_id"],
        "event_id": original["id"],
        "rel": "branch",
    }
    assert header["gov"]["eligibility"]["train"] == "deny"
    assert called["m"]["tags"]["role"] == "shadow"
    assert called["m"]["tags"]["agent_version"] == "2"
    assert running.upstream.requests[-1]["model"] == "support-v2"
    assert "stream" not in running.upstream.requests[-1]
    assert running.reader.verify("northwind", mirrored.trajectory_id) == []


async def test_a_shadow_that_fails_or_hangs_never_reaches_users(running: Running) -> None:
    async def broken(upstream, request, body):
        if body["model"] == "support-v2":
            return await reply(500, b"no")(upstream, request, body)
        return await say("hello")(upstream, request, body)

    running.route(pointers.start_shadow, "2", 1.0)
    await running.wait_for_control()
    running.upstream.default = broken
    for _ in range(5):
        assert (await running.chat([user("hi")])).status == 200


async def test_memory_of_the_tenant_goes_before_the_model_and_is_recorded_but_the_client_message_stays(
    running: Running,
) -> None:
    items = (
        memory("northwind", "returns window", "The returns window is 45 days."),
        memory("lumen", "returns window", "The returns window is 21 days."),
    )
    pointers.put_version(running.connection, version("4", MODEL, *items))
    running.route(pointers.set_champion, "4", "memory", "test")
    await running.wait_for_control()
    messages = [{"role": "system", "content": "Be short."}, user("How long is the returns window?")]
    mine = await running.chat(messages)
    assert running.upstream.requests[-1]["messages"] == [
        {"role": "system", "content": "Be short.\nNotes:\n- The returns window is 45 days."},
        messages[1],
    ]
    event = running.event(mine)
    (overlay,) = event["ext"]["overlays"]
    assert (overlay["surface"], overlay["op"], overlay["target"]) == ("memory", "append", "system")
    assert overlay["text"] == "\nNotes:\n- The returns window is 45 days."
    assert overlay["items"] == [{"id": items[0].id, "trust": "vetted", "provenance": []}]
    assert event["o"]["messages"][0]["parts"][0]["content"] == "Be short."
    await running.chat(messages, key="lumen")
    assert "21 days" in running.upstream.requests[-1]["messages"][0]["content"]
    assert "45 days" not in str(running.upstream.requests[-1])
    await running.chat([messages[0], user("Where is my parcel?")])
    assert running.upstream.requests[-1]["messages"][0]["content"] == "Be short."


async def test_an_agent_without_a_registered_version_is_served_by_the_base_model(running: Running) -> None:
    running.connection.execute("DELETE FROM routes")
    await running.wait_for_control()
    response = await running.chat([user("hi")])
    assert response.status == 200
    assert response.headers["x-evoplane-agent-version"] == "0"
    assert running.upstream.requests[-1]["model"] == MODEL


# -- overlays are a pure function


def manifest(*items, **harness) -> Manifest:
    return Manifest(policy=Policy(base=MODEL, served_name=MODEL), memory=items, harness=Harness(**harness))


def test_overlays_leave_the_given_request_alone_and_do_nothing_without_a_reason() -> None:
    request = {"messages": [user("Is there a warranty?")], "temperature": 1}
    result, overlays = apply_overlays(request, manifest(), "northwind")
    assert (result, overlays) == (request, [])
    item = memory("northwind", "warranty", "12 months.")
    result, _ = apply_overlays(request, manifest(item, params={"temperature": 0}), "northwind")
    assert request == {"messages": [user("Is there a warranty?")], "temperature": 1}
    assert result["temperature"] == 0
    assert result["messages"] == [{"role": "system", "content": "Notes:\n- 12 months."}, user("Is there a warranty?")]


def test_the_newest_items_come_first_and_the_size_is_bounded() -> None:
    items = [memory("t", "warranty", f"{n} months.", f"2026-01-0{n}T00:00:00Z") for n in range(1, 7)]
    request = {"messages": [user("warranty?")]}
    _, (overlay,) = apply_overlays(request, manifest(*items), "t", max_items=2)
    assert overlay["text"] == "\nNotes:\n- 6 months.\n- 5 months."
    _, (overlay,) = apply_overlays(request, manifest(*items), "t", max_items=9, max_bytes=40)
    assert len(overlay["text"].encode()) <= 40
    assert memory_text(items[:1]) == "\nNotes:\n- 1 months."


@pytest.mark.parametrize(
    ("topic", "message", "relevant"),
    [
        ("returns window", "How long is the RETURNS window?", True),
        ("free shipping minimum", "is there a minimum?", False),
        ("free shipping minimum", "free shipping?", True),
        ("the of", "the of", False),
        ("warranty", "", False),
    ],
)
def test_an_item_is_relevant_when_half_its_topic_is_in_the_message(topic: str, message: str, relevant: bool) -> None:
    request = {"messages": [user(message)]}
    _, overlays = apply_overlays(request, manifest(memory("t", topic, "x")), "t")
    assert bool(overlays) is relevant


def test_a_developer_message_and_content_arrays_take_the_text_where_they_are() -> None:
    item = memory("t", "warranty", "x")
    request = {"messages": [{"role": "developer", "content": [{"type": "text", "text": "a"}]}, user("warranty")]}
    result, _ = apply_overlays(request, manifest(item), "t")
    assert result["messages"][0]["content"] == [
        {"type": "text", "text": "a"},
        {"type": "text", "text": "\nNotes:\n- x"},
    ]


async def test_a_look_at_the_control_database_that_fails_is_not_the_last(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Any:
        raise ValueError("no manifest")

    with monkeypatch.context() as patched:
        patched.setattr(watcher, "_read", broken)
        patched.setattr(app, "_STALE_S", 0.2)
        running.route(pointers.set_champion, "2", "test", "test")
        await asyncio.sleep(0.5)
        async with running.http.get(f"{running.url}/readyz") as response:
            assert response.status == 200
            assert float((await response.json())["control_age_s"]) > 0.2
    await running.wait_for_control()
    response = await running.chat([user("hi")])
    assert response.headers["x-evoplane-agent-version"] == "2"
    async with running.http.get(f"{running.url}/readyz") as ready:
        assert "control_age_s" not in await ready.json()


def asked(name: str, arguments: str, id: str = "c1") -> dict[str, Any]:
    calls = [{"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}]
    return {"role": "assistant", "content": None, "tool_calls": calls}


TOOLS = [{"type": "function", "function": {"name": "order_status", "parameters": {"type": "object"}}}]


async def shadowed(running: Running, shadows_call: tuple[str, str, str]) -> dict[str, float]:
    """A live turn with one tool call, whose shadow makes `shadows_call`; the counters after it."""
    running.route(pointers.start_shadow, "2", 1.0, requests=50)
    await running.wait_for_control()
    live_call = call(("c1", "order_status", '{"order": "A1", "full": true}'))

    async def script(upstream: Any, request: Any, body: dict[str, Any]) -> Any:
        results = body["messages"][-1]["role"] == "tool" or body["messages"][-1]["content"] == "something else"
        mine = call(shadows_call) if body["model"] == "support-v2" else live_call
        return await (say("done") if results else mine)(upstream, request, body)

    running.upstream.default = script
    first = [user("where is A1?")]
    session = {"x-evoplane-session-id": "s"}
    await running.chat(first, headers=session, tools=TOOLS)
    result = {"role": "tool", "tool_call_id": "c1", "content": '{"status": "shipped"}'}
    read = [*first, asked("order_status", '{"order": "A1", "full": true}'), result]
    await running.chat(read, headers=session, tools=TOOLS)
    await asyncio.sleep(0.4)
    await running.chat([user("something else")], headers=session)
    await asyncio.sleep(0.2)
    async with running.http.get(f"{running.url}/metrics") as response:
        lines = [line.split() for line in (await response.text()).splitlines() if line.startswith("evoplane_sh")]
    return {name: float(value) for name, value in lines}


async def test_a_shadows_tool_call_is_answered_by_what_the_live_session_got_for_the_same_call(running: Running) -> None:
    counters = await shadowed(running, ("s9", "order_status", '{"full": true, "order": "A1"}'))
    assert counters["evoplane_shadow_calls_answered_total"] == 1
    assert counters["evoplane_shadow_calls_refused_total"] == 0
    continued = [
        r for r in running.upstream.requests if r["model"] == "support-v2" and r["messages"][-1]["role"] == "tool"
    ]
    assert [r["messages"][-1] for r in continued] == [
        {"role": "tool", "tool_call_id": "s9", "content": '{"status": "shipped"}'}
    ]


async def test_a_shadows_call_that_the_live_session_never_made_is_refused_and_runs_nowhere(running: Running) -> None:
    counters = await shadowed(running, ("s9", "cancel_order", '{"order": "A1"}'))
    assert counters["evoplane_shadow_calls_answered_total"] == 0
    assert counters["evoplane_shadow_calls_refused_total"] == 1


async def test_a_shadow_stops_when_its_budget_is_spent(running: Running) -> None:
    running.route(pointers.start_shadow, "2", 1.0, requests=2)
    await running.wait_for_control()
    for n in range(5):
        await running.chat([user(f"question {n}")])
    await asyncio.sleep(0.3)
    assert sum(r["model"] == "support-v2" for r in running.upstream.requests) == 2
    running.route(pointers.start_shadow, "2", 1.0, requests=2)  # another stage has its own
    await running.wait_for_control()
    await running.chat([user("one more")])
    await asyncio.sleep(0.3)
    assert sum(r["model"] == "support-v2" for r in running.upstream.requests) == 3


def test_a_tenant_that_opted_out_is_never_in_a_canary_and_a_canary_of_one_touches_no_other() -> None:
    given = Route(agent="support", champion="1", canary="2", canary_weight=1.0, canary_tenants=("northwind",), salt="x")
    for n in range(500):
        assert assign(given, f"s{n}", "northwind") == "2"
        assert assign(given, f"s{n}", "lumen") == "1"
        assert assign(given, f"s{n}", "northwind", "shadow") == "1"


def test_tenants_have_their_own_weights() -> None:
    given = Route(
        agent="support", champion="1", canary="2", canary_weight=0.1, canary_weights={"lumen": 0.6, "acme": 0.0}
    )
    shares = {t: sum(assign(given, f"s{n}", t) == "2" for n in range(4000)) / 4000 for t in ("lumen", "acme", "other")}
    assert abs(shares["lumen"] - 0.6) < 0.03 and shares["acme"] == 0 and abs(shares["other"] - 0.1) < 0.03


async def test_a_tenant_that_opts_out_leaves_the_canary_at_once(running: Running) -> None:
    running.route(pointers.start_canary, "2", 1.0)
    await running.wait_for_control()
    session = {"x-evoplane-session-id": "s"}
    assert (await running.chat([user("hi")], headers=session)).headers["x-evoplane-agent-version"] == "2"
    tenant_policy.put(running.connection, "northwind", tenant_policy.TenantPolicy(exposure="none"), "test")
    await running.wait_for_control()
    assert (await running.chat([user("hi")], headers=session)).headers["x-evoplane-agent-version"] == "1"
    other = await running.chat([user("hi")], "lumen")
    assert other.headers["x-evoplane-agent-version"] == "2"
