"""Input that nothing can be done with: a clear refusal, before anybody else is asked."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from yarl import URL

from tests.gateway.conftest import MODEL, Running, user
from tests.gateway.test_a2a import agent, answers, ask, gateway, task
from tests.gateway.test_mcp import ToolServer
from tests.gateway.upstream import call

__all__ = ["agent", "gateway"]

CHAT, RESPONSES, MESSAGES, COMPLETIONS = "/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/completions"
SAID: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [user("hi")]},
    RESPONSES: {"input": "hi"},
    MESSAGES: {"messages": [user("hi")], "max_tokens": 5},
    COMPLETIONS: {"prompt": "hi"},
    "/v1/embeddings": {"input": "hi"},
}


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"a": value}
    return value


CONTROLS = ("a\r\nx-evil: 1", "a\nb", "x\0y", "a\x7f", "a\x01")


@pytest.mark.parametrize("path", SAID)
async def test_a_session_id_with_control_characters_is_refused_before_the_model_is_asked(
    running: Running, path: str
) -> None:
    named: list[dict[str, Any]] = [
        {"metadata": {name: id}} for name in ("session_id", "thread_id", "conversation_id") for id in CONTROLS
    ]
    for each in [*named, *({"session_id": id} for id in CONTROLS)]:
        response = await running.post(path, {"model": "gpt-1", **SAID[path], **each})
        assert response.status == 400
        assert "control characters" in await response.text()
    assert running.upstream.requests == []


async def test_a_tag_with_control_characters_is_refused_before_the_model_is_asked(running: Running) -> None:
    for tag in ("a%0d%0ax-evil:%201", "a%00b", "a%7f"):
        url = URL(f"{running.url}/s/{tag}{CHAT}", encoded=True)
        body = {"model": MODEL, "messages": [user("hi")]}
        async with running.http.post(url, json=body, headers=running.headers()) as response:
            assert response.status == 400
    assert running.upstream.requests == []


async def test_a_reported_id_with_a_nul_is_refused_and_nothing_of_the_list_is_stored(running: Running) -> None:
    event = {"kind": "tool_call", "session_id": "s", "name": "f"}
    for field in ("session_id", "trajectory_id", "id", "parent_id"):
        response = await running.report([event, {**event, field: "x\0y"}])
        assert response.status == 400
    assert running.reader.trajectories("northwind") == []


async def test_feedback_with_a_nul_in_an_id_is_refused(running: Running) -> None:
    for field in ("session_id", "trajectory_id", "event_id", "id", "name"):
        response = await running.feedback({"session_id": "s", "name": "n", "value": 1, field: "x\0y"})
        assert response.status == 400


@pytest.mark.parametrize("path", SAID)
async def test_what_is_nested_too_deeply_is_refused_before_the_model_is_asked(running: Running, path: str) -> None:
    content = next(iter(SAID[path]))
    for levels in (200, 400, 900):
        deep = nested(levels)
        for more in ({"metadata": deep}, {"tools": [deep]}, {content: [deep]}, {"user": deep}):
            response = await running.post(path, json.dumps({"model": "gpt-1", **SAID[path], **more}).encode())
            assert response.status == 400
            assert "nested too deeply" in await response.text()
    assert running.upstream.requests == []


async def test_a_websocket_message_nested_too_deeply_is_an_error_and_the_connection_goes_on(running: Running) -> None:
    async with running.http.ws_connect(f"{running.url}{RESPONSES}", headers=running.headers()) as socket:
        for _ in range(2):
            await socket.send_str(json.dumps({"type": "response.create", "model": "gpt-1", "input": [nested(400)]}))
            event = await socket.receive_json(timeout=10)
            assert (event["type"], event["status"]) == ("error", 400)
    assert running.upstream.requests == []


async def test_what_is_nested_as_deeply_as_is_allowed_is_answered_and_stored(running: Running) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": nested(124)}}
    response = await running.chat([{"role": "user", "content": "hi", "more": nested(120)}], tools=[tool] * 20)
    assert response.status == 200
    assert running.resolved(response)["y"]["status"] == "ok"
    event = {"kind": "tool_call", "session_id": "s", "name": "f", "arguments": nested(125), "result": nested(125)}
    assert (await running.report(event)).status == 202


@pytest.mark.parametrize("levels", [200, 900, 5000])
async def test_arguments_whose_text_is_nested_deeply_are_recorded(running: Running, levels: int) -> None:
    arguments = '{"a":' * levels + "1" + "}" * levels
    running.upstream.scripts.append(call(("c1", "f", arguments)))
    first = await running.chat([user("hi")])
    assert first.status == 200
    said = (await first.json())["choices"][0]["message"]
    second = await running.chat([user("hi"), said, {"role": "tool", "tool_call_id": "c1", "content": arguments}])
    assert second.status == 200
    assert len([r for r in running.chain(second) if r["record"] == "event"]) >= 3


async def test_reports_nested_too_deeply_are_refused(running: Running) -> None:
    for path in ("/rl/start_session", "/export_trajectories", "/v1/events", "/v1/feedback", "/v1/traces"):
        for deep in (b'{"a":' * 5000 + b"1" + b"}" * 5000, b"[" * 5000 + b"]" * 5000):
            assert (await running.post(path, deep)).status == 400


async def test_an_acknowledgement_beyond_64_bits_is_refused(running: Running) -> None:
    for ack in (b"9223372036854775808", b"1" + b"0" * 40, b"-1"):
        response = await running.post("/export_trajectories", b'{"consumer":"c","ack":' + ack + b"}")
        assert response.status == 400


async def test_an_agent_is_not_asked_what_has_no_method(gateway: Running, agent: ToolServer) -> None:
    methods: list[Any] = [[[]], {"a": 1}, None, 7]
    for method in methods:
        response = await gateway.post("/a2a/billing", {**ask(), "method": method})
        assert response.status == 400
        error = await response.json()
        assert (error["id"], error["error"]["code"]) == (1, -32600)
    assert agent.requests == []


async def test_an_agent_is_not_asked_what_is_nested_too_deeply(gateway: Running, agent: ToolServer) -> None:
    deep = {**ask(), "params": {"message": nested(400)}}
    response = await gateway.post("/a2a/billing", json.dumps(deep).encode())
    assert response.status == 400
    assert (await response.json())["error"]["data"]["type"] == "nested_too_deeply"
    assert agent.requests == []


async def test_a_span_with_times_beyond_64_bits_is_refused_in_otlps_form(running: Running) -> None:
    huge = "1" + "0" * 400
    for at, count, status in ((huge, "1", 400), (str(2**64), "1", 400), ("-1", "1", 400), ("1", huge, 200)):
        told = {"gen_ai.operation.name": {"stringValue": "chat"}, "gen_ai.usage.input_tokens": {"intValue": count}}
        attributes = [{"key": key, "value": value} for key, value in told.items()]
        times = {"startTimeUnixNano": at, "endTimeUnixNano": at}
        span = {"traceId": "0a" * 16, "spanId": "b7" * 8, "name": "chat", "attributes": attributes, **times}
        response = await running.post("/v1/traces", {"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]})
        assert response.status == status
        assert status == 200 or set(await response.json()) == {"code", "message"}


@pytest.mark.parametrize("path", SAID)
async def test_a_status_that_http_does_not_know_is_a_broken_answer(running: Running, path: str) -> None:
    async def odd(upstream: Any, request: Any, body: Any) -> Any:
        request.transport.write(b"HTTP/1.1 999 Odd\r\ncontent-length: 2\r\n\r\n{}")
        await asyncio.sleep(0.05)
        request.transport.close()

    running.upstream.default = odd
    response = await running.post(path, {"model": "gpt-1", **SAID[path]})
    assert response.status == 502
    assert "broke off" in await response.text()
    if "x-evoplane-event-id" in response.headers:
        assert running.event(response)["y"]["error"]["type"] == "upstream_broken"


async def test_a_status_of_an_agent_that_http_does_not_know_is_a_broken_answer(
    gateway: Running, agent: ToolServer
) -> None:
    agent.answer = answers(task("completed"), status=999)
    response = await gateway.post("/a2a/billing", ask())
    assert response.status == 502
    assert (await response.json())["error"]["data"]["type"] == "upstream_broken"
