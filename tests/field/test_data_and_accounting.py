"""What went wrong for others with data, privacy and accounting; each case is one test that states the right value."""

from __future__ import annotations

import aiohttp

from tests.gateway.conftest import Running, user
from tests.gateway.upstream import reply

VENDOR = "gpt-1"
ANSWER = b'{"id":"r","choices":[{"message":{"content":"k"},"finish_reason":"stop"}],"usage":{"completion_tokens":1}}'


async def test_case_15_the_same_prompt_from_two_tenants_shares_nothing(running: Running) -> None:
    said = [user("the same words " * 300)]
    running.upstream.default = reply(200, ANSWER)
    mine, theirs = [await running.chat(said, key=key, model=VENDOR) for key in ("northwind", "lumen")]
    ours = running.chain(mine)
    others = running.chain(theirs, "lumen")
    assert mine.headers["x-evoplane-session-id"] != theirs.headers["x-evoplane-session-id"]
    assert {r["hash"] for r in ours}.isdisjoint(r["hash"] for r in others)
    assert running.reader.record("lumen", mine.headers["x-evoplane-event-id"]) is None
    links = [records[-1]["ext"]["links"]["ends"] for records in (ours, others)]
    assert links[0] != links[1], "fingerprints of the same words are no common language between tenants"


async def test_case_17_a_retry_is_an_attempt_under_one_step_and_counted_once(running: Running) -> None:
    running.upstream.scripts += [reply(500, b"{}"), reply(429, b"{}"), reply(200, ANSWER)]
    said = [user("once")]
    responses = [await running.chat(said, model=VENDOR) for _ in range(2)]
    # a client that falls back to an unstreamed request asks the same
    responses.append(await running.chat(said, model=VENDOR, stream=False))
    events = [running.event(response) for response in responses]
    assert [event["y"]["retries"] for event in events] == [0, 1, 2]
    assert len({(event["trajectory_id"], event["step"]) for event in events}) == 1
    assert len([r for r in running.chain(responses[-1]) if r.get("kind") == "user_message"]) == 1


async def test_case_18_what_was_accepted_is_there_for_whoever_reads_next(running: Running) -> None:
    """Through `kill -9`: tests/gateway/test_crash.py and tests/crash."""
    event = {"kind": "tool_call", "session_id": "s", "name": "f", "result": 1}
    accepted: aiohttp.ClientResponse = await running.report(event)
    assert accepted.status == 202
    assert running.reader.record("northwind", (await accepted.json())["id"]) is not None


async def test_case_19_feedback_before_its_target_and_long_after_its_end_both_bind(running: Running) -> None:
    early = await (await running.feedback({"session_id": "s", "name": "helpful", "value": 1})).json()
    assert early["bound"] == [False]
    running.upstream.default = reply(200, ANSWER)
    response = await running.chat([user("hi")], model=VENDOR, headers={"x-evoplane-session-id": "s"})
    await running.report({"kind": "outcome", "session_id": "s", "status": "ok"})
    event_id = response.headers["x-evoplane-event-id"]
    late = await (await running.feedback({"event_id": event_id, "name": "reopened", "value": -1})).json()
    assert late["bound"] == [True]
    names = [r["name"] for r in running.chain(response) if r["record"] == "annotation"]
    assert sorted(names) == ["helpful", "reopened"]
