"""Clients of one dialect at an upstream that speaks another: served only where configured, and recorded."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import openai
import orjson
import pytest

from evoplane.settings import Settings, SettingsError, read_settings
from registry import pointers
from services.proxy.dialects.messages import to_anthropic
from services.proxy.dialects.responses import to_items
from services.proxy.sse import EventSplitter
from tests.captures import captures, needs_captures
from tests.gateway.conftest import MODEL, Running, gateway, prepared
from tests.gateway.test_dialects import whole_form
from tests.gateway.upstream import ScriptedUpstream, call, frame, recorded, reply, say, stream

BOTH = ["openai.responses", "anthropic.messages"]
CASES = [("/v1/messages", "messages"), ("/v1/responses", "input")]


def asked(path: str, text: str = "hi", model: str = "qwen-1", **fields: Any) -> dict[str, Any]:
    if path == "/v1/messages":
        return {"model": model, "max_tokens": 99, "messages": [{"role": "user", "content": text}], **fields}
    return {"model": model, "input": [{"role": "user", "content": text}], **fields}


def said(body: dict[str, Any]) -> str:
    """The text of a whole answer."""
    if "content" in body:
        return "".join(block["text"] for block in body["content"] if block["type"] == "text")
    return "".join(p["text"] for item in body["output"] if item["type"] == "message" for p in item["content"])


@pytest.fixture
async def translating(tmp_path: Path, upstream: ScriptedUpstream) -> AsyncIterator[Running]:
    """A provider that speaks chat alone, and a worker that is asked in chat; both reached by all dialects."""
    settings, connection, secrets = prepared(tmp_path, upstream.port)
    only_chat = {"url": upstream.url, "dialects": ["openai.chat"], "models": ["qwen-*"], "translate": BOTH}
    silent = {"url": upstream.url, "dialects": ["openai.chat"], "models": ["plain-*"]}
    given = settings.model_dump(exclude_unset=True)
    given["upstreams"] |= {"local": only_chat, "plain": silent}
    given["worker"]["translate"] = BOTH
    settings = Settings.model_validate(given)
    async with gateway(settings, upstream, connection, secrets) as running:
        yield running


@pytest.mark.parametrize(("path", "field"), CASES)
async def test_a_client_is_answered_in_its_own_dialect_and_the_translation_is_recorded(
    translating: Running, path: str, field: str
) -> None:
    translating.upstream.scripts.append(say("hello there"))
    response = await translating.post(path, asked(path, unheard_of=1))
    assert response.status == 200
    assert said(await response.json()) == "hello there"
    assert translating.upstream.paths == ["/v1/chat/completions"]
    assert translating.upstream.requests[0]["messages"] == [{"role": "user", "content": "hi"}]
    event = translating.resolved(response)
    dialect = "anthropic.messages" if field == "messages" else "openai.responses"
    assert event["ext"]["dialect"] == dialect
    assert event["ext"]["translation"] == {"from": dialect, "to": "openai.chat", "dropped": ["unheard_of"]}
    assert event["y"] == {"status": "ok", "finish_reason": "stop", "retries": 0}
    assert event["m"]["usage"]["output_tokens"] == 3
    assert event["ext"]["response"] == {"id": "chatcmpl-1", "model": "qwen-1"}
    translating.chain(response)


@pytest.mark.parametrize(("path", "field"), CASES)
async def test_streamed_or_whole_gives_the_same_event(translating: Running, path: str, field: str) -> None:
    translating.upstream.default = say("one two three")
    events = []
    for streams in (True, False):
        fresh = {"x-evoplane-session-id": f"s-{streams}"}
        response = await translating.post(path, asked(path, stream=streams), headers=fresh)
        assert response.content_type == ("text/event-stream" if streams else "application/json")
        event = translating.resolved(response)
        events.append([event["a"], event["o"], event["y"], event["ext"]["translation"], event["ext"]["response"]])
    assert events[0] == events[1]


@needs_captures
@pytest.mark.parametrize(("path", "field"), CASES)
async def test_what_a_real_chat_server_streamed_gives_the_same_event_streamed_and_whole(
    translating: Running, path: str, field: str
) -> None:
    chance = random.Random(path)
    answers = [c for c in captures() if c.dialect_path == "/chat/completions" and c.streamed and c.whole]
    for capture in [c for c in answers if not c.scenario.startswith("fault")][::3]:
        events = []
        for script, streams in ((recorded(capture, chance), True), (reply(200, whole_form(capture)), False)):
            translating.upstream.scripts.append(script)
            fresh = {"x-evoplane-session-id": f"{capture.name}/{streams}"}
            response = await translating.post(path, asked(path, stream=streams), headers=fresh)
            event = translating.resolved(response)
            events.append([event["a"], event["y"], event["m"].get("usage"), event["ext"]["response"]])
            assert event["y"]["status"] == "ok", capture.name
        assert events[0] == events[1], capture.name


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize(("path", "field"), CASES)
async def test_token_ids_of_our_worker_are_captured_and_the_client_sees_none(
    translating: Running, path: str, field: str, streams: bool
) -> None:
    translating.upstream.default = say("one two")
    response = await translating.post(path, asked(path, model="support", stream=streams))
    body = await response.text()
    (request,) = translating.upstream.requests
    assert request["return_token_ids"] is request["logprobs"] is True
    assert request["model"] == MODEL
    event = translating.event(response)
    tokens = event["tokens"]
    assert tokens["prompt_token_ids"] == list(range(10))
    expected = [100, 200, 101, 201, 2] if streams else [7, 8, 2]
    assert tokens["completion_token_ids"] == expected
    assert len(tokens["logprobs"]) == len(expected)
    assert "tokens_incomplete" not in event["ext"]
    assert event["ext"]["response"]["model"] == MODEL
    assert "token_ids" not in body
    assert 'logprob":' not in body
    assert '"model":"support"' in body, "the client knows the model by the name it asked for"


async def test_without_token_ids_the_worker_is_asked_in_the_clients_dialect_by_default(running: Running) -> None:
    body = {"type": "message", "id": "m", "content": [{"type": "text", "text": "x"}], "stop_reason": "end_turn"}
    running.upstream.scripts.append(reply(200, orjson.dumps(body)))
    response = await running.post("/v1/messages", asked("/v1/messages", model=MODEL))
    assert running.upstream.paths == ["/v1/messages"]
    assert "translation" not in running.event(response)["ext"]


@pytest.mark.parametrize(("path", "field"), CASES)
async def test_where_it_is_not_configured_the_dialect_is_not_spoken(
    translating: Running, path: str, field: str
) -> None:
    response = await translating.post(path, asked(path, model="plain-1"))
    assert response.status == 404
    assert "upstreams.plain.translate" in (await response.json())["error"]["message"]
    assert translating.upstream.requests == []


@pytest.mark.parametrize(("path", "field"), CASES)
async def test_a_tool_loop_is_one_session_and_its_second_call_points_at_the_first(
    translating: Running, path: str, field: str
) -> None:
    translating.upstream.scripts += [call(("c1", "f", '{"a":1}'), ("c2", "g", "{}")), say("done")]
    tool = {"name": "f", "input_schema": {"type": "object"}, "parameters": {"type": "object"}, "type": "function"}
    if field == "messages":
        tool = {"name": "f", "input_schema": {"type": "object"}}
    body = asked(path, tools=[tool])
    first = await translating.post(path, body)
    answer = await first.json()
    if field == "messages":
        assert answer["stop_reason"] == "tool_use"
        results = [{"type": "tool_result", "tool_use_id": id, "content": id} for id in ("c1", "c2")]
        more = [{"role": "assistant", "content": answer["content"]}, {"role": "user", "content": results}]
    else:
        results = [{"type": "function_call_output", "call_id": id, "output": id} for id in ("c1", "c2")]
        more = [*answer["output"], *results]
    second = await translating.post(path, {**body, field: [*body[field], *more]})
    assert [m["role"] for m in translating.upstream.requests[1]["messages"]] == ["user", "assistant", "tool", "tool"]
    assert translating.upstream.requests[1]["messages"][1]["tool_calls"][0]["id"] == "c1"
    records = translating.chain(second)
    assert [r["kind"] for r in records[1:]] == ["user_message", "llm_call", "tool_call", "tool_call", "llm_call"]
    observed = translating.event(second)["o"]["messages"]
    assert observed["prefix"] == translating.event(first)["id"]
    assert "changed" not in observed, "the answer came back exactly as it was given"
    back = to_anthropic if field == "messages" else to_items
    assert len(back(translating.resolved(second)["o"]["messages"])) == len([*body[field], *more])


@pytest.mark.parametrize(("path", "field"), CASES)
async def test_errors_keep_their_status_and_retry_headers_and_take_the_clients_form(
    translating: Running, path: str, field: str
) -> None:
    error = b'{"error":{"message":"slow down","type":"requests","param":null,"code":"rate_limit_exceeded"}}'
    translating.upstream.scripts.append(reply(429, error, {"retry-after": "7", "x-should-retry": "true"}))
    response = await translating.post(path, asked(path))
    assert response.status == 429
    assert (response.headers["retry-after"], response.headers["x-should-retry"]) == ("7", "true")
    told = await response.json()
    assert told["error"]["message"] == "slow down"
    assert told["error"]["type"] == ("rate_limit_error" if field == "messages" else "requests")
    event = translating.event(response)
    assert event["y"]["error"]["message"] == error.decode()
    translating.upstream.scripts.append(reply(200, b"<html>", {"content-type": "text/html"}))
    response = await translating.post(path, asked(path, "again"))
    assert (response.status, response.content_type) == (502, "application/json")
    assert translating.event(response)["y"]["error"]["type"] == "invalid_response"


@pytest.mark.parametrize(("path", "field"), CASES)
@pytest.mark.parametrize("abort", [True, False])
async def test_a_truncated_stream_ends_with_the_dialects_error_and_no_clean_close(
    translating: Running, path: str, field: str, abort: bool
) -> None:
    translating.upstream.scripts.append(stream(frame({"content": "half"}), abort=abort))
    got = b""
    async with translating.http.post(
        translating.url + path, json=asked(path, stream=True), headers=translating.headers()
    ) as response:
        with pytest.raises(aiohttp.ClientPayloadError):
            while piece := await response.content.readany():
                got += piece
    last = [orjson.loads(e.data) for e in EventSplitter().feed(got) if e.data][-1]
    assert last["type"] == ("error" if field == "messages" else "response.failed")
    event = translating.resolved(response)
    assert event["y"]["status"] == "truncated"
    assert "half" in orjson.dumps(event["a"]["messages"]).decode()


@pytest.mark.parametrize(("path", "field"), CASES)
async def test_an_error_in_the_stream_is_told_and_recorded(translating: Running, path: str, field: str) -> None:
    error = b'data: {"error":{"message":"overloaded","type":"server_error","code":503}}\n\n'
    translating.upstream.scripts.append(stream(frame({"content": "half"}), error, b"data: [DONE]\n\n"))
    response = await translating.post(path, asked(path, stream=True))
    assert "overloaded" in await response.text()
    y = translating.event(response)["y"]
    assert (y["status"], y["error"]) == ("error", {"type": "server_error", "message": "overloaded"})


@pytest.mark.parametrize(("path", "last"), [("/v1/messages", "message_stop"), ("/v1/responses", "response.completed")])
async def test_the_last_event_waits_until_the_record_is_durable(translating: Running, path: str, last: str) -> None:
    translating.upstream.scripts.append(say("hello"))
    async with translating.http.post(
        translating.url + path, json=asked(path, stream=True), headers=translating.headers()
    ) as response:
        got = b""
        while piece := await response.content.readany():
            got += piece
            if f'"type":"{last}"'.encode() in got:
                assert translating.event(response)["y"]["status"] == "ok"
    assert f'"type":"{last}"'.encode() in got


async def test_a_client_that_leaves_is_recorded_with_what_it_was_told(translating: Running) -> None:
    translating.upstream.scripts.append(stream(frame({"content": "half"}), hang=True))
    response = await translating.http.post(
        f"{translating.url}/v1/messages", json=asked("/v1/messages", stream=True), headers=translating.headers()
    )
    assert b"half" in await response.content.readuntil(b'half"}}\n\n')
    response.close()
    for _ in range(200):
        await asyncio.sleep(0.02)
        event = translating.reader.record("northwind", response.headers["x-evoplane-event-id"])
        if event is not None:
            break
    assert event is not None
    assert event["y"]["status"] == "cancelled"
    assert event["a"]["messages"][0]["parts"][0]["content"] == "half"


async def test_a_shadow_is_asked_the_same_way(translating: Running) -> None:
    translating.route(pointers.start_shadow, "2", 1.0)
    await translating.wait_for_control()
    response = await translating.post("/v1/messages", asked("/v1/messages", model="support", stream=True))
    own = translating.event(response)["trajectory_id"]
    async with asyncio.timeout(5):
        while len(rows := translating.reader.trajectories("northwind")) < 2:
            await asyncio.sleep(0.02)
    (mirrored,) = [row.trajectory_id for row in rows if row.trajectory_id != own]
    called = translating.reader.records("northwind", mirrored)[-1]
    assert translating.upstream.paths == ["/v1/chat/completions"] * 2
    assert called["ext"]["translation"]["from"] == "anthropic.messages"
    assert called["tokens"]["completion_token_ids"] == [7, 8, 2]
    assert called["a"]["messages"][0]["parts"] == [{"type": "text", "content": "hello"}]


async def test_what_the_provider_would_keep_is_refused_so_that_clients_know_what_to_do(translating: Running) -> None:
    body = asked("/v1/messages", thread={"type": "create"})
    response = await translating.post("/v1/messages", body)
    assert response.status == 400
    error = (await response.json())["error"]
    assert error["details"] == {"error_code": "thread_unsupported_request"}
    first = await translating.post("/v1/responses", asked("/v1/responses"))
    id = (await first.json())["id"]
    response = await translating.post("/v1/responses", asked("/v1/responses", "more", previous_response_id=id))
    assert response.status == 400
    error = (await response.json())["error"]
    assert (error["param"], error["code"]) == ("previous_response_id", "unsupported_parameter")
    whole = await translating.post("/v1/responses", asked("/v1/responses", "more"))
    assert whole.status == 200


async def test_the_openai_sdk_reads_translated_responses(translating: Running) -> None:
    tool: Any = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": False}
    pieces = [
        frame({"role": "assistant", "reasoning_content": "hm"}),
        frame({"content": "I will"}),
        frame({"content": " look."}),
        frame({"tool_calls": [{"index": 0, "id": "c1", "function": {"name": "f", "arguments": ""}}]}),
        frame({"tool_calls": [{"index": 0, "function": {"arguments": '{"a": 1}'}}]}),
        frame({"tool_calls": [{"index": 1, "id": "c2", "function": {"name": "f", "arguments": "{}"}}]}),
        frame({}, "tool_calls"),
        frame(None, usage={"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}),
        b"data: [DONE]\n\n",
    ]
    translating.upstream.scripts.append(stream(*pieces))
    url, key = f"{translating.url}/v1", translating.secrets["northwind"]
    async with openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=0) as client:
        async with client.responses.stream(model="qwen-1", input="hi", tools=[tool]) as events:
            kinds = [event.type async for event in events]
            final = await events.get_final_response()
        assert final.output_text == "I will look."
        calls = [item for item in final.output if item.type == "function_call"]
        assert [(item.call_id, item.arguments) for item in calls] == [("c1", '{"a": 1}'), ("c2", "{}")]
        assert final.usage is not None
        assert final.usage.total_tokens == 12
        assert kinds.count("response.output_text.delta") == 2
        assert kinds[-1] == "response.completed"
        whole = await client.responses.create(model="qwen-1", input="hi")
        assert whole.output_text == "hello"
        assert whole.status == "completed"


async def test_responses_over_websocket_are_translated_too(translating: Running) -> None:
    translating.upstream.default = say("one")
    async with translating.http.ws_connect(f"{translating.url}/v1/responses", headers=translating.headers()) as socket:
        last: dict[str, Any] = {}
        for text in ("first", "second"):
            previous = {"previous_response_id": last["response"]["id"]} if last else {}
            await socket.send_json({"type": "response.create", **asked("/v1/responses", text), **previous})
            last = {}
            while last.get("type") != "response.completed":
                last = await socket.receive_json(timeout=10)
    said = [message["content"] for message in translating.upstream.requests[1]["messages"]]
    assert said == ["first", "one", "second"], "what only the connection remembers is sent whole"


def test_translating_needs_an_upstream_that_speaks_chat(tmp_path: Path) -> None:
    file = tmp_path / "evoplane.toml"
    section = {"url": "http://x", "dialects": ["anthropic.messages"], "models": ["m"], "translate": BOTH}
    file.write_text("[upstreams.v]\n" + "\n".join(f"{k} = {json.dumps(v)}" for k, v in section.items()))
    with pytest.raises(SettingsError, match=r"openai\.chat"):
        read_settings(file, {})
