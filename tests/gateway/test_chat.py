"""One request through the gateway: what the client gets, and what is stored."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import sqlite3
import threading
from typing import Any

import aiohttp
import orjson
import pytest
from openai import AsyncOpenAI

from atdp.messages import to_openai
from services.proxy.governor import Governor
from services.proxy.store import EventStore, StoreUnavailable
from tests.gateway.conftest import MODEL, Running, user
from tests.gateway.upstream import call, completion, frame, reply, say, stream

TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {}}}}
DONE = b"data: [DONE]\n\n"


async def test_a_plain_answer_reaches_the_client_and_is_in_the_log_before_it_does(running: Running) -> None:
    response = await running.chat([user("hi")], temperature=0)
    assert (await response.json())["choices"][0]["message"]["content"] == "hello"
    assert float(response.headers["x-evoplane-overhead-ms"]) >= 0
    assert response.headers["x-evoplane-agent-version"] == "1"
    header, said, called = running.chain(response)
    assert header["session_id"] == response.headers["x-evoplane-session-id"]
    assert header["gov"]["eligibility"]["train"] == "allow"
    assert said["kind"] == "user_message"
    assert called["causes"] == [{"id": said["id"], "rel": "input"}]
    assert called["y"] == {"status": "ok", "finish_reason": "stop", "retries": 0}
    assert called["m"]["usage"] == {"input_tokens": 10, "output_tokens": 3}
    tags = {"agent": "support", "agent_version": "1", "role": "champion", "purpose": "serve", "line": "main"}
    assert called["m"]["tags"] == tags
    assert called["tokens"]["completion_token_ids"] == [7, 8, 2]
    assert called["tokens"]["policy_versions"] == [[3, f"{MODEL}/1"]]
    assert called["replay"]["class"] == "deterministic"
    assert running.reader.contexts("northwind", called["ctx"])["body"]["model"]["name"] == MODEL


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"stream": True},
        {"stream": True, "stream_options": {"include_usage": True}},
        {"logprobs": True, "stream": True},
        {"return_token_ids": True},
        {"n": 1, "stream": False},
    ],
)
async def test_the_client_gets_the_bytes_it_would_have_got_without_us(running: Running, asked: dict[str, Any]) -> None:
    request = {"model": MODEL, "messages": [user("hi")], **asked}
    running.upstream.default = say("sunny, 21 °C")
    async with running.http.post(f"{running.upstream.url}/v1/chat/completions", json=request) as direct:
        expected = await direct.read()
    response = await running.chat([user("hi")], **asked)
    got = await response.read()
    if asked.get("stream"):
        assert got == expected
    else:  # the scripted server writes its JSON with blanks, vLLM without
        assert got == orjson.dumps(json.loads(expected))
    assert running.upstream.requests[-1]["return_token_ids"] is True
    assert "tokens_incomplete" not in running.event(response).get("ext", {})


async def test_streams_of_any_framing_pass_unchanged(running: Running) -> None:
    pieces = [
        b": keep-alive\r\n\r\n",
        b'data:{"choices":[{"index":0,"delta":{"content":"h\xc3',
        b'\xa9"}}]}\r\n\r\n',
        b'event: x\ndata: {"choices":[],"odd":1}\n\n',
        b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n',
        DONE,
    ]
    running.upstream.default = stream(*pieces)
    response = await running.chat([user("hi")], stream=True, stream_options={"include_usage": True})
    assert b": keep-alive\r\n\r\n" in await response.read()
    assert (await response.read()).endswith(DONE)
    event = running.event(response)
    assert event["a"]["messages"][0]["parts"] == [{"type": "text", "content": "hé"}]
    assert event["ext"]["usage_source"] == "absent"
    assert "usage" not in event["m"]


async def test_the_first_byte_does_not_wait_for_the_store_and_the_last_one_does(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    durable = asyncio.Event()
    submit = EventStore.submit

    def slow(self: EventStore, tenant: str, *drafts: Any) -> Any:
        async def after() -> Any:
            await durable.wait()
            return await submit(self, tenant, *drafts)

        return asyncio.ensure_future(after())

    monkeypatch.setattr(EventStore, "submit", slow)
    async with running.http.post(
        f"{running.url}/v1/chat/completions",
        json={"model": MODEL, "messages": [user("hi")], "stream": True},
        headers=running.headers(),
    ) as response:
        seen = b""
        while b'"finish_reason":"stop"' not in seen:
            seen += await asyncio.wait_for(response.content.readany(), 2)
        assert b"[DONE]" not in seen
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(response.content.readany(), 0.1)
        assert running.reader.record("northwind", response.headers["x-evoplane-event-id"]) is None
        durable.set()
        assert (await asyncio.wait_for(response.content.read(), 2)).endswith(DONE)
        assert running.event(response)["y"]["status"] == "ok"


async def test_three_parallel_tool_calls_in_single_chunks_and_their_results_are_joined_by_id(running: Running) -> None:
    calls = [
        {
            "index": i,
            "id": f"c{i}",
            "type": "function",
            "function": {"name": "get_weather", "arguments": json.dumps({"city": city})},
        }
        for i, city in enumerate(["Paris", "Rome", "Oslo"])
    ]
    running.upstream.scripts.append(stream(*[frame({"tool_calls": [c]}) for c in calls], frame({}, "tool_calls"), DONE))
    first = await running.chat([user("weather?")], stream=True, tools=[TOOL])
    answer = {"role": "assistant", "tool_calls": [{k: v for k, v in c.items() if k != "index"} for c in calls]}
    results = [{"role": "tool", "tool_call_id": f"c{i}", "content": f"{i} °C"} for i in (2, 0)]
    second = await running.chat([user("weather?"), answer, *results], tools=[TOOL])
    records = running.chain(second)
    tool_calls = [record for record in records if record["kind" if "kind" in record else "record"] == "tool_call"]
    assert [(t["a"]["call_id"], t["a"]["arguments"], t["y"]["result"]) for t in tool_calls] == [
        ("c2", {"city": "Oslo"}, "2 °C"),
        ("c0", {"city": "Paris"}, "0 °C"),
    ]
    made = first.headers["x-evoplane-event-id"]
    assert all(t["causes"] == [{"id": made, "rel": "decided_by"}] and t["parent_id"] == made for t in tool_calls)
    last = records[-1]
    assert last["causes"] == [{"id": t["id"], "rel": "input"} for t in tool_calls]
    assert last["o"]["messages"] == {"prefix": made, "append": [{"event": t["id"]} for t in tool_calls]}
    resolved = running.reader.resolve("northwind", last)["o"]["messages"]
    assert [to_openai(m) for m in resolved] == [user("weather?"), {"content": None, **answer}, *results]
    assert running.reader.tools("northwind", last["ctx"]) == [TOOL]


async def test_arguments_that_are_two_json_values_are_kept_and_marked(running: Running) -> None:
    running.upstream.scripts.append(call(("c1", "f", '{"a":1}{"b":2}')))
    response = await running.chat([user("go")])
    assert (await response.json())["choices"][0]["message"]["tool_calls"][0]["function"][
        "arguments"
    ] == '{"a":1}{"b":2}'
    (part,) = running.event(response)["a"]["messages"][0]["parts"]
    assert part == {"type": "tool_call", "id": "c1", "name": "f", "arguments": '{"a":1}{"b":2}', "malformed": True}


async def test_every_choice_of_n_is_an_output_of_the_one_event(running: Running) -> None:
    running.upstream.default = stream(
        frame({"content": "a"}, index=1),
        frame({"content": "b"}, index=0),
        frame({"content": "c"}, "stop", 1),
        frame({}, "stop", 0),
        frame(None, usage={"prompt_tokens": 1, "completion_tokens": 3}),
        DONE,
    )
    response = await running.chat([user("hi")], stream=True, n=2, stream_options={"include_usage": True})
    assert b'"usage"' in await response.read()
    event = running.event(response)
    assert [m["parts"][0]["content"] for m in event["a"]["messages"]] == ["b", "ac"]
    assert event["m"]["usage"] == {"input_tokens": 1, "output_tokens": 3}


@pytest.mark.parametrize("abort", [False, True])
async def test_a_stream_that_just_ends_is_truncated_and_the_client_is_told(running: Running, abort: bool) -> None:
    running.upstream.default = stream(frame({"role": "assistant", "content": "par"}), delay=0.05, abort=abort)
    response = await running.http.post(
        f"{running.url}/v1/chat/completions",
        json={"model": MODEL, "messages": [user("hi")], "stream": True},
        headers=running.headers(),
    )
    with pytest.raises(aiohttp.ClientPayloadError):  # not a clean end
        async for chunk in response.content.iter_any():
            seen = chunk
    assert b'"code":"stream_truncated"' in seen
    event = running.event(response)
    assert event["y"]["status"] == "truncated"
    assert "finish_reason" not in event["y"]
    assert event["a"]["messages"][0]["parts"][0]["content"] == "par"


async def test_a_truncated_stream_is_an_error_for_the_openai_sdk(running: Running) -> None:
    running.upstream.default = stream(frame({"role": "assistant", "content": "par"}))
    client = AsyncOpenAI(base_url=f"{running.url}/v1", api_key=running.secrets["northwind"], max_retries=0)
    with pytest.raises(Exception, match="cut short"):
        async for _ in await client.chat.completions.create(model=MODEL, messages=[user("hi")], stream=True):
            pass
    await client.close()


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_client_that_leaves_is_recorded_as_cancelled_and_the_upstream_is_stopped(
    running: Running, streaming: bool
) -> None:
    running.upstream.default = stream(frame({"content": "so far"}), hang=True) if streaming else say("late", 30)
    post = running.http.post(
        f"{running.url}/v1/chat/completions",
        json={"model": MODEL, "messages": [user("hi")], "stream": streaming},
        headers=running.headers(x_evoplane_session_id="left"),
    )
    if streaming:
        response = await post
        await response.content.readany()
        response.close()
    else:
        task = asyncio.ensure_future(post._coro)
        await asyncio.sleep(0.2)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    async with asyncio.timeout(3):
        while not (events := running.reader.events("support", kinds=["llm_call"])[0]):
            await asyncio.sleep(0.02)
        while not running.upstream.cancelled:
            await asyncio.sleep(0.02)
    ((_, event),) = events
    assert event["y"]["status"] == "cancelled"
    assert event["ext"]["client_disconnected"] is True
    assert [m["parts"][0]["content"] for m in event["a"]["messages"]] == (["so far"] if streaming else [])


async def test_a_client_that_hangs_up_on_done_is_no_abort(running: Running) -> None:
    client = AsyncOpenAI(base_url=f"{running.url}/v1", api_key=running.secrets["northwind"], max_retries=0)
    raw = await client.chat.completions.with_raw_response.create(model=MODEL, messages=[user("hi")], stream=True)
    text = "".join([chunk.choices[0].delta.content or "" async for chunk in raw.parse() if chunk.choices])
    assert text == "hello"
    assert running.reader.record("northwind", raw.headers["x-evoplane-event-id"])["y"]["status"] == "ok"
    await client.close()


async def test_odd_but_legal_requests_pass_as_they_are(running: Running) -> None:
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "terse"}]},
        {"role": "user", "content": "hi", "custom": {"a": None}},
        {"role": "assistant", "content": None, "tool_calls": [], "annotations": []},
        {
            "role": "user",
            "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 9000}}],
        },
    ]
    response = await running.chat(messages, tools=[], verbosity="low", seed=2**60, metadata={"k": "v"})
    asked = running.upstream.requests[-1]
    assert asked["messages"] == messages
    assert asked["tools"] == []
    assert (asked["verbosity"], asked["seed"], asked["metadata"]) == ("low", 2**60, {"k": "v"})
    event = running.event(response)
    assert len(json.dumps(event)) < 4000
    assert event["a"]["params"]["verbosity"] == "low"
    resolved = running.reader.resolve("northwind", event)["o"]["messages"]
    assert [to_openai(m) for m in resolved][3] == messages[3]


async def test_a_gzipped_reply_reaches_the_client_readable(running: Running) -> None:
    body = gzip.compress(json.dumps(completion({"messages": [], "model": MODEL}, {"content": "hello"})).encode())
    running.upstream.default = reply(200, body, {"content-encoding": "gzip"})
    response = await running.chat([user("hi")])
    assert "content-encoding" not in response.headers
    assert (await response.json())["choices"][0]["message"]["content"] == "hello"


async def test_token_ids_that_do_not_add_up_mark_the_event_incomplete(running: Running) -> None:
    short = completion(
        {"messages": [user("x")], "model": MODEL, "return_token_ids": True, "logprobs": True}, {"content": "x"}
    )
    short["usage"]["completion_tokens"] = 4
    running.upstream.default = reply(200, json.dumps(short).encode())
    assert running.event(await running.chat([user("hi")]))["ext"]["tokens_incomplete"] is True


async def test_a_conversation_costs_its_new_content_only_and_comes_back_whole(running: Running) -> None:
    def grown(body: dict[str, Any]) -> bytes:
        """Prompt ids that really extend those before, as a chat template does."""
        reply = completion(body, {"content": f"answer {len(body['messages'])}"})
        ids: list[int] = []
        for message in body["messages"]:
            ids += [7, 8, 2] if message["role"] == "assistant" else [5] * 600
        reply["prompt_token_ids"] = ids
        reply["usage"]["prompt_tokens"] = len(ids)
        return json.dumps(reply).encode()

    async def script(upstream: Any, request: Any, body: dict[str, Any]) -> Any:
        return await reply(200, grown(body))(upstream, request, body)

    running.upstream.default = script
    messages: list[dict[str, Any]] = []
    sizes = []
    for turn in range(5):
        messages.append(user(f"question {turn}"))
        response = await running.chat(messages)
        sizes.append(len(json.dumps(running.event(response))))
        whole = running.reader.resolve("northwind", running.event(response))
        assert [to_openai(m) for m in whole["o"]["messages"]] == messages
        assert len(whole["tokens"]["prompt_token_ids"]) == 600 * (turn + 1) + 3 * turn
        messages.append({"role": "assistant", "content": f"answer {len(messages)}"})
    assert sizes[4] < sizes[1] + 100
    assert len([r for r in running.chain(response) if r.get("kind") == "llm_call"]) == 5


async def test_sessions_follow_the_header_else_the_longest_prefix_of_the_same_key(running: Running) -> None:
    first = await running.chat([user("hi")])
    answer = {"role": "assistant", "content": "hello"}
    same = await running.chat([user("hi"), answer, user("more")])
    other = await running.chat([user("hi")])
    foreign = await running.chat([user("hi"), answer, user("more")], key="lumen")
    named = await running.chat([user("hi"), answer, user("more")], headers={"x-evoplane-session-id": "mine"})
    again = await running.chat([user("something else")], headers={"x-evoplane-session-id": "mine"})
    ids = [r.headers["x-evoplane-session-id"] for r in (first, same, other, foreign, named, again)]
    assert ids[0] == ids[1]
    assert ids[4] == ids[5] == "mine"
    assert len(set(ids)) == 4


async def test_the_same_prompt_from_two_tenants_shares_nothing(running: Running) -> None:
    text = "secret " * 1000
    mine = await running.chat([user(text)], headers={"x-evoplane-session-id": "same"})
    theirs = await running.chat([user(text)], key="lumen", headers={"x-evoplane-session-id": "same"})
    a, b = running.event(mine), running.event(theirs, "lumen")
    assert a["trajectory_id"] != b["trajectory_id"]
    assert running.chain(theirs, "lumen")[0]["gov"]["tenant"] == "lumen"
    assert running.reader.record("lumen", a["id"]) is None
    assert running.chain(theirs, "lumen")[0]["gov"]["eligibility"]["train"] == "pending"


async def test_a_retry_is_an_attempt_under_the_same_step(running: Running) -> None:
    running.upstream.scripts.append(reply(500, b'{"error":{"message":"no","type":"InternalServerError"}}'))
    client = AsyncOpenAI(base_url=f"{running.url}/v1", api_key=running.secrets["northwind"], max_retries=2)
    raw = await client.chat.completions.with_raw_response.create(model=MODEL, messages=[user("hi")])
    await client.close()
    tenant, trajectory = running.reader.find_event(raw.headers["x-evoplane-event-id"])
    records = running.reader.records(tenant, trajectory)
    failed, retried = [r for r in records if r.get("kind") == "llm_call"]
    assert [r["kind"] for r in records[1:]] == ["user_message", "llm_call", "llm_call"]
    assert failed["y"]["status"] == "error"
    assert failed["y"]["error"]["type"] == "InternalServerError"
    assert {"id": failed["id"], "rel": "retry_of"} in retried["causes"]
    assert retried["y"]["retries"] == 1
    assert retried["step"] == failed["step"]


async def test_a_stream_that_is_done_without_a_finish_reason_is_passed_on_and_not_called_ok(running: Running) -> None:
    running.upstream.scripts.append(stream(frame({"content": "hel"}), DONE))
    response = await running.chat([user("hi")], stream=True)
    assert (await response.read()).endswith(DONE)
    assert running.event(response)["y"]["status"] == "unknown"


async def test_what_came_of_a_stream_that_the_gateways_stop_cuts_off_is_stored(running: Running) -> None:
    running.upstream.scripts.append(stream(frame({"content": "hel"}), hang=True))
    response = await running.http.post(
        f"{running.url}/v1/chat/completions",
        json={"model": MODEL, "messages": [user("hi")], "stream": True},
        headers=running.headers(),
    )
    await response.content.readany()
    running.server[0].config.timeout_graceful_shutdown = 0.1
    await running.stop()
    stored = running.event(response)
    assert stored["y"]["status"] == "truncated"
    assert stored["a"]["messages"][0]["parts"] == [{"type": "text", "content": "hel"}]


async def test_two_users_who_say_the_same_are_two_sessions_and_each_goes_on_in_its_own(running: Running) -> None:
    one, two = await running.chat([user("hi")]), await running.chat([user("hi")])
    follow = [user("hi"), {"role": "assistant", "content": "hello"}, user("more")]
    third, fourth = await running.chat(follow), await running.chat([*follow[:2], user("other")])
    sessions = {r.headers["x-evoplane-session-id"] for r in (one, two)}
    assert {r.headers["x-evoplane-session-id"] for r in (third, fourth)} == sessions
    assert len(sessions) == 2


async def test_after_the_outcome_the_session_goes_on_in_a_new_trajectory(running: Running) -> None:
    session = {"x-evoplane-session-id": "s"}
    first = await running.chat([user("hi")], headers=session)
    await running.feedback({"session_id": "s", "name": "resolved", "value": 1})
    second = await running.chat([user("more")], headers=session)
    header = running.chain(second)[0]
    assert header["parent"] == {"trajectory_id": running.event(first)["trajectory_id"], "rel": "continuation"}
    assert header["session_id"] == "s"


@pytest.mark.parametrize("running", [{"capture": "async"}], indirect=True)
async def test_async_capture_does_not_wait_but_stores_all_the_same(running: Running) -> None:
    response = await running.chat([user("hi")])
    async with asyncio.timeout(2):
        while running.reader.record("northwind", response.headers["x-evoplane-event-id"]) is None:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("running", [{"capture": "async"}], indirect=True)
async def test_nothing_points_at_an_exchange_that_async_capture_lost(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(self: EventStore, tenant: str, *drafts: Any) -> Any:
        future = asyncio.get_running_loop().create_future()
        future.set_exception(StoreUnavailable("disk full"))
        return future

    with monkeypatch.context() as patched:
        patched.setattr(EventStore, "submit", lose)
        await running.chat([user("hi")], headers={"x-evoplane-session-id": "s"})
        await asyncio.sleep(0.05)
    follow = [user("hi"), {"role": "assistant", "content": "hello"}, user("more")]
    response = await running.chat(follow, headers={"x-evoplane-session-id": "s"})
    async with asyncio.timeout(2):
        while running.reader.record("northwind", response.headers["x-evoplane-event-id"]) is None:
            await asyncio.sleep(0.01)
    header, *_, stored = running.chain(response)
    assert header["record"] == "trajectory"
    assert [message["role"] for message in stored["o"]["messages"]] == ["user", "assistant", "user"]
    assert isinstance(stored["tokens"]["prompt_token_ids"], list)


@pytest.mark.parametrize("step", ["chat", "event"])
async def test_a_session_begins_again_when_its_log_was_taken_away(running: Running, step: str) -> None:
    session = {"x-evoplane-session-id": "s"}
    await running.chat([user("hi")], headers=session)
    with sqlite3.connect(running.settings.store_dir / "northwind.sqlite") as log:
        for table in ("records", "trajectories", "contexts"):
            log.execute(f"DELETE FROM {table}")
    follow = [user("hi"), {"role": "assistant", "content": "hello"}, user("more")]
    if step == "chat":
        refused = await running.chat(follow, headers=session)
    else:
        refused = await running.report({"kind": "user_message", "session_id": "s", "text": "x"})
    assert refused.status == 503
    response = await running.chat(follow, headers=session)
    assert response.status == 200
    _, question, stored = running.chain(response)
    assert [message["role"] for message in stored["o"]["messages"]] == ["user", "assistant", "user"]
    assert stored["causes"] == [{"id": question["id"], "rel": "input"}]
    assert isinstance(stored["tokens"]["prompt_token_ids"], list)


@pytest.mark.parametrize("streaming", [True, False])
async def test_an_answer_that_cannot_be_stored_is_not_acknowledged(
    running: Running, monkeypatch: pytest.MonkeyPatch, streaming: bool
) -> None:
    def refuse(self: EventStore, tenant: str, *drafts: Any) -> Any:
        raise StoreUnavailable("disk full")

    monkeypatch.setattr(EventStore, "submit", refuse)
    response = await running.http.post(
        f"{running.url}/v1/chat/completions",
        json={"model": MODEL, "messages": [user("hi")], "stream": streaming},
        headers=running.headers(),
    )
    if not streaming:
        assert response.status == 503
        assert (await response.json())["error"]["code"] == "event_log_unavailable"
        return
    seen = b""
    with pytest.raises(aiohttp.ClientPayloadError):
        async for chunk in response.content.iter_any():
            seen += chunk
    assert b"event_log_unavailable" in seen
    assert b"[DONE]" not in seen


async def test_a_huge_request_is_recorded_whole_and_nothing_is_redacted_on_the_event_loop(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: set[threading.Thread] = set()
    protect = Governor.protect

    def watched(self: Governor, tenant: str, drafts: Any, ready: Any = None) -> Any:
        threads.add(threading.current_thread())
        return protect(self, tenant, drafts, ready)

    monkeypatch.setattr(Governor, "protect", watched)
    huge = await running.chat([user(f"message {number} of a long history, nothing new") for number in range(6000)])
    small = await running.chat([user("quick")], key="lumen")
    assert (huge.status, small.status) == (200, 200)
    assert len(running.resolved(huge)["o"]["messages"]) == 6000
    assert len([r for r in running.chain(huge) if r.get("kind") == "user_message"]) == 500
    assert threads
    assert threading.current_thread() not in threads


async def test_more_messages_than_the_limit_are_refused(running: Running) -> None:
    assert (await running.chat([user("x")] * 10_001)).status == 400
    assert running.upstream.requests == []


async def test_a_request_nested_too_deeply_to_be_passed_on_is_the_clients_mistake(running: Running) -> None:
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(400):
        deep = {"type": "array", "items": deep}
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": deep}}}}
    assert (await running.chat([user("hi")], tools=[tool])).status == 400
