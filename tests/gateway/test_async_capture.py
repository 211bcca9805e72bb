"""`gateway.capture = "async"`: answers don't wait for the log, and what goes on from them belongs together."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from registry import control, tenant_policy, tenants
from registry.tenant_policy import TenantPolicy
from services.gateway import core
from services.gateway.harvester import Harvester
from services.gateway.unconfirmed import Unconfirmed
from services.proxy.capture import Exchange
from services.proxy.dialects import RESPONSES
from services.proxy.drafts import StoreUnavailable
from services.proxy.store import EventStore
from tests.gateway.conftest import MODEL, Running, serve, user
from tests.gateway.test_rl import chat, numbered, post, rewards, start
from tests.gateway.upstream import call, frame, reply, say, stream

pytestmark = pytest.mark.parametrize("running", [{"capture": "async"}], indirect=True)

ANSWER = {"role": "assistant", "content": "hello"}


@pytest.fixture(autouse=True)
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under load an exchange is recorded that much later."""
    monkeypatch.setattr(core, "_GATHER_S", 0.15)


async def stored(running: Running, *ids: str) -> list[dict[str, Any]]:
    async with asyncio.timeout(5):
        while None in (found := [running.reader.record("northwind", id) for id in ids]):
            await asyncio.sleep(0.01)
    return [record for record in found if record is not None]


@pytest.mark.parametrize("named", [True, False])
async def test_a_turn_that_comes_before_the_one_before_it_is_stored_goes_on_in_its_trajectory(
    running: Running, named: bool
) -> None:
    headers = {"x-evoplane-session-id": "s"} if named else {}
    said, ids = [user("hi")], []
    for turn in range(4):
        response = await running.chat(said, headers=headers)
        ids.append(response.headers["x-evoplane-event-id"])
        said += [ANSWER, user(f"more {turn}")]
    calls = await stored(running, *ids)
    assert len({call["trajectory_id"] for call in calls}) == 1
    assert [call["o"]["messages"]["prefix"] for call in calls[1:]] == ids[:-1]
    assert [call["step"] for call in calls] == [1, 2, 3, 4]
    kinds = [record["kind"] for record in running.reader.records("northwind", calls[0]["trajectory_id"])[1:]]
    assert kinds == ["user_message", "llm_call"] * 4


async def test_an_answer_named_before_it_is_stored_is_known(running: Running) -> None:
    said = [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "yes"}]}]
    answer = {"id": "resp_1", "object": "response", "status": "completed", "model": "gpt-1", "output": said}
    running.upstream.default = reply(200, orjson.dumps(answer))
    first = await running.post("/v1/responses", {"model": "gpt-1", "input": "hi"})
    second = await running.post("/v1/responses", {"model": "gpt-1", "input": "more", "previous_response_id": "resp_1"})
    assert (first.status, second.status) == (200, 200)
    one, two = await stored(running, *(r.headers["x-evoplane-event-id"] for r in (first, second)))
    assert one["trajectory_id"] == two["trajectory_id"]
    assert one["ext"]["dialect"] == RESPONSES.name


async def test_a_new_conversation_waits_for_no_other(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "_GATHER_S", 0.9)
    responses = [await running.chat([user(f"hi {number}")]) for number in range(5)]
    assert running.reader.record("northwind", responses[0].headers["x-evoplane-event-id"]) is None  # all are answered


async def test_after_an_exchange_that_was_lost_its_conversation_is_told_anew(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(self: EventStore, tenant: str, *drafts: Any) -> Any:
        raise StoreUnavailable("disk full")

    with monkeypatch.context() as patched:
        patched.setattr(EventStore, "submit", lose)
        await running.chat([user("hi")])
        await asyncio.sleep(0.2)
    response = await running.chat([user("hi"), ANSWER, user("more")])
    (call,) = await stored(running, response.headers["x-evoplane-event-id"])
    assert [message["role"] for message in call["o"]["messages"]] == ["user", "assistant", "user"]


async def test_nobody_waits_for_ever(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "_PATIENCE_S", 0.05)
    running.upstream.default = say("hello")
    await running.chat([user("hi")])
    response = await running.chat([user("hi"), ANSWER, user("more")])
    assert response.status == 200
    await stored(running, response.headers["x-evoplane-event-id"])


async def test_of_two_that_began_alike_the_one_whose_answer_is_not_stored_yet_goes_on(running: Running) -> None:
    begun = [user("hi"), ANSWER, user("more")]
    for name in ("a", "b"):
        await running.chat([user("hi")], headers={"x-evoplane-session-id": name})
    await asyncio.sleep(0.3)
    before = await running.chat(begun, headers={"x-evoplane-session-id": "b"})
    after = await running.chat([*begun, ANSWER, user("yet more")])
    one, two = await stored(running, *(r.headers["x-evoplane-event-id"] for r in (before, after)))
    assert one["trajectory_id"] == two["trajectory_id"]


async def test_a_sub_agent_that_begins_before_its_callers_call_is_stored_is_told_to_be_one(running: Running) -> None:
    headers = {"x-claude-code-session-id": "s"}
    above = await running.chat([user("hi")], headers=headers)
    first = await running.chat([user("do this")], headers={**headers, "x-claude-code-agent-id": "a"})
    one, two = await stored(running, *(r.headers["x-evoplane-event-id"] for r in (above, first)))
    (header, *_) = running.reader.records("northwind", two["trajectory_id"])
    assert header["parent"] == {"trajectory_id": one["trajectory_id"], "event_id": one["id"], "rel": "subagent"}


async def test_a_session_goes_on_under_another_key_of_its_agent(running: Running) -> None:
    with control.transaction(running.connection):
        running.secrets["rotated"] = tenants.create_key(running.connection, "northwind", "support")[1]
    await running.wait_for_control()
    headers, said, ids = {"x-evoplane-session-id": "s"}, [user("hi")], []
    for key in ("northwind", "rotated", "rotated"):
        response = await running.chat(said, key=key, headers=headers)
        ids.append(response.headers["x-evoplane-event-id"])
        said += [ANSWER, user("more")]
    calls = await stored(running, *ids)
    assert [call["o"]["messages"]["prefix"] for call in calls[1:]] == ids[:-1]


async def test_an_attempt_that_failed_a_moment_ago_is_known_to_be_tried_again(running: Running) -> None:
    running.upstream.scripts.append(reply(500, b'{"error": {"message": "no"}}'))
    responses = [await running.chat([user("hi")]) for _ in range(2)]
    one, two = await stored(running, *(r.headers["x-evoplane-event-id"] for r in responses))
    assert one["trajectory_id"] == two["trajectory_id"]
    assert {"id": one["id"], "rel": "retry_of"} in two["causes"]


async def test_a_conversation_with_examples_waits_for_no_strangers(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "_GATHER_S", 0.9)
    response = await running.chat([user("hi")])
    await running.chat([user("2+2?"), ANSWER, user("3+3?")])
    assert running.reader.record("northwind", response.headers["x-evoplane-event-id"]) is None


async def test_what_goes_wrong_behind_the_log_leaves_nobody_waiting(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(self: Harvester, tenant: str, events: Any) -> None:
        raise RuntimeError("harvesting")

    monkeypatch.setattr(Harvester, "offer", wrong)
    monkeypatch.setattr(core, "_PATIENCE_S", 60)
    await running.chat([user("hi")])
    async with asyncio.timeout(20):
        await running.chat([user("hi"), ANSWER, user("more")])


async def test_a_count_that_cannot_be_written_takes_nothing_along_when_the_gateway_stops(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = running.settings.var / f"budgets-{running.settings.gateway.port}.json.new"
    response = await running.chat([user("hi")])
    blocked.mkdir()
    await running.stop()
    assert running.reader.record("northwind", response.headers["x-evoplane-event-id"]) is not None
    assert "shutdown failed" not in caplog.text


async def test_a_count_that_cannot_be_written_does_not_keep_trajectories_open(
    running: Running,
) -> None:
    (running.settings.var / f"budgets-{running.settings.gateway.port}.json.new").mkdir()
    await running.stop()
    often = running.settings.gateway.model_copy(update={"session_idle_s": 0.1})
    settings = running.settings.model_copy(update={"gateway": often})
    url, *running.server = await serve(settings)
    running.url = url
    response = await running.chat([user("hi")])
    (call,) = await stored(running, response.headers["x-evoplane-event-id"])
    async with asyncio.timeout(3):
        while (row := running.reader.trajectory("northwind", call["trajectory_id"])) is None or not row.closed:
            await asyncio.sleep(0.05)


async def test_a_session_that_is_ended_at_once_has_its_last_answer_before_its_end(running: Running) -> None:
    response = await running.chat([user("hi")], headers={"x-evoplane-session-id": "s"})
    ended = await running.post("/v1/sessions/s/end", {})
    assert ended.status == 200
    (call,) = await stored(running, response.headers["x-evoplane-event-id"])
    records = running.reader.records("northwind", call["trajectory_id"])
    assert [record.get("kind") for record in records] == [None, "user_message", "llm_call", "outcome"]


@pytest.mark.parametrize("named", [True, False])
async def test_a_tool_call_that_is_reported_at_once_is_the_one_that_was_asked_for(
    running: Running, named: bool
) -> None:
    running.upstream.default = call(("call_123456789", "track", '{"id": 1}'))
    response = await running.chat([user("hi")], headers={"x-evoplane-session-id": "s"})
    told = {"kind": "tool_call", "name": "track", "arguments": {"id": 1}, "call_id": "call_123456789", "result": "x"}
    place = {"session_id": "s"} if named else {"session_hint": "elsewhere"}
    reported = await running.report({**told, **place})
    assert reported.status == 202, await reported.text()
    (asked,) = await stored(running, response.headers["x-evoplane-event-id"])
    (event,) = await stored(running, (await reported.json())["id"])
    assert event["trajectory_id"] == asked["trajectory_id"]
    assert asked["id"] in [cause["id"] for cause in event["causes"]]


async def test_a_reward_that_is_given_at_once_is_the_last_answers(running: Running) -> None:
    running.upstream.default = numbered()
    session = await start(running)
    first, second = await chat(running, session["api_key"], "hi", "more")
    assert first["id"] != second["id"]
    assert (await post(running, "/rl/set_reward", {"reward": 1.0}, session["api_key"]))[0] == 200
    status, told = await post(running, "/rl/end_session", {}, session["api_key"])
    assert (status, told["interaction_count"]) == (200, 2)
    (given,) = rewards(running)
    about = running.reader.record("northwind", given["targets"][0]["event_id"])
    assert about is not None and about["ext"]["response"]["id"] == second["id"]


async def test_a_verdict_that_comes_at_once_finds_the_whole_trajectory(running: Running) -> None:
    headers = {"x-evoplane-session-id": "s"}
    await running.chat([user("hi")], headers=headers)
    response = await running.chat([user("hi"), ANSWER, user("more")], headers=headers)
    assert (await running.feedback({"name": "resolved", "value": 1, "session_id": "s"})).status == 202
    (last,) = await stored(running, response.headers["x-evoplane-event-id"])
    kinds = [record.get("kind") for record in running.reader.records("northwind", last["trajectory_id"])]
    assert kinds == [None, "user_message", "llm_call", "user_message", "llm_call", "reward"]


async def test_whatever_becomes_of_an_exchange_nothing_is_waited_for_afterwards(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Unconfirmed] = []
    noted: list[Exchange] = []
    note = Unconfirmed.note

    def noting(self: Unconfirmed, exchange: Exchange) -> None:
        made.append(self)
        noted.append(exchange)
        note(self, exchange)

    monkeypatch.setattr(Unconfirmed, "note", noting)
    hi = frame({"role": "assistant", "content": "hel"})
    running.upstream.scripts += [stream(hi, abort=True), stream(hi), reply(500, b"no"), reply(200, b"not json")]
    for streamed in (True, True, False, False):
        await running.chat([user("hi")], stream=streamed)
    running.upstream.scripts += [stream(hi, hang=True), say("late", delay=1.0)]
    request = {"model": MODEL, "messages": [user("hi")], "stream": True}
    gone = await running.http.post(f"{running.url}/v1/chat/completions", json=request, headers=running.headers())
    await gone.content.readany()
    gone.close()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await running.chat([user("hi")])
    await running.chat([user("x" * 300_000)])
    await asyncio.sleep(0.6)
    tenant_policy.put(running.connection, "northwind", TenantPolicy(on_failure="block"), "test")
    await running.wait_for_control()
    response = await running.chat([user("hi")])
    await stored(running, response.headers["x-evoplane-event-id"])
    assert len(noted) >= 7
    async with asyncio.timeout(3):  # the gateway hears of it a little later than a reader sees it
        while any(each.any(noted[0].session.key) for each in made):
            await asyncio.sleep(0.01)
