"""Responses over WebSocket: the same answers and the same records as over HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import orjson
import pytest

from services.proxy.dialects.responses import to_items
from tests.gateway.conftest import Running
from tests.gateway.upstream import Script, reply, stream


def answer(id: str, text: str) -> Script:
    """A streamed response of one message."""
    item = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}
    response = {"id": id, "object": "response", "status": "completed", "model": "gpt-1", "output": [item]}
    events = [
        {"type": "response.created", "response": {**response, "status": "in_progress", "output": []}},
        {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": text},
        {"type": "response.completed", "response": response},
    ]
    return stream(*(b"event: x\ndata: " + orjson.dumps(event) + b"\n\n" for event in events))


async def ask(socket: aiohttp.ClientWebSocketResponse, **fields: Any) -> list[dict[str, Any]]:
    """Send a request and read its events up to the last."""
    await socket.send_json({"type": "response.create", "model": "gpt-1", **fields})
    events = []
    while True:
        event = await socket.receive_json(timeout=10)
        events.append(event)
        if event["type"] in ("response.completed", "response.failed", "error"):
            return events


async def test_a_client_goes_on_from_what_only_the_connection_remembers(running: Running) -> None:
    running.upstream.scripts += [answer("resp_1", "one"), answer("resp_2", "two")]
    async with running.http.ws_connect(f"{running.url}/v1/responses", headers=running.headers()) as socket:
        first = await ask(socket, input="first", store=False)
        assert [event["type"] for event in first] == [
            "response.created",
            "response.output_text.delta",
            "response.completed",
        ]
        more = [{"type": "message", "role": "user", "content": "more"}]
        await ask(socket, input=more, store=False, previous_response_id="resp_1")
    assert running.upstream.requests[1]["input"][0]["content"] == "first"
    assert len(running.upstream.requests[1]["input"]) == 3
    assert "previous_response_id" not in running.upstream.requests[1]
    (row,) = running.reader.trajectories("northwind")
    records = running.reader.records("northwind", row.trajectory_id)
    assert running.reader.verify("northwind", row.trajectory_id) == []
    assert [r["kind"] for r in records[1:]] == ["user_message", "llm_call", "user_message", "llm_call"]
    said = running.reader.resolve("northwind", records[-1])["o"]["messages"]
    assert to_items(said) == running.upstream.requests[1]["input"]


async def test_a_request_that_generates_nothing_is_answered_here_and_can_be_gone_on_from(running: Running) -> None:
    running.upstream.scripts.append(answer("resp_1", "one"))
    async with running.http.ws_connect(f"{running.url}/s/tag-1/v1/responses", headers=running.headers()) as socket:
        *_, warmed = await ask(socket, input=[{"role": "developer", "content": "be brief"}], generate=False)
        await ask(socket, input="hello", previous_response_id=warmed["response"]["id"])
    (asked,) = running.upstream.requests
    assert [item["role"] for item in asked["input"]] == ["developer", "user"]
    (row,) = running.reader.trajectories("northwind")
    assert row.session_id == "tag:tag-1"


async def test_errors_are_events_and_the_connection_goes_on(running: Running) -> None:
    running.upstream.scripts += [reply(400, b'{"error":{"message":"no","code":"bad"}}'), answer("resp_1", "one")]
    async with running.http.ws_connect(f"{running.url}/v1/responses", headers=running.headers()) as socket:
        (error,) = await ask(socket, input="x")
        assert (error["status"], error["error"]["code"]) == (400, "bad")
        (unknown,) = await ask(socket, input="x", model="nobody")
        assert unknown["status"] == 404
        await socket.send_str("not json")
        assert (await socket.receive_json(timeout=5))["status"] == 400
        assert (await ask(socket, input="x"))[-1]["type"] == "response.completed"


async def test_a_connection_without_a_key_is_refused_with_the_reason(running: Running) -> None:
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        await running.http.ws_connect(f"{running.url}/v1/responses")
    assert refused.value.status == 401


async def test_a_client_that_leaves_mid_answer_is_recorded_and_the_upstream_let_go(running: Running) -> None:
    half = {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": "half"}
    running.upstream.scripts.append(stream(b"data: " + orjson.dumps(half) + b"\n\n", hang=True))
    async with running.http.ws_connect(f"{running.url}/v1/responses", headers=running.headers()) as socket:
        await socket.send_json({"type": "response.create", "model": "gpt-1", "input": "x"})
        assert (await socket.receive_json(timeout=5))["delta"] == "half"
    for _ in range(100):
        rows = running.reader.trajectories("northwind")
        if rows and running.upstream.cancelled:
            break
        await asyncio.sleep(0.02)
    *_, call = running.reader.records("northwind", rows[0].trajectory_id)
    assert call["y"]["status"] == "cancelled"
    assert call["a"]["messages"][0]["parts"][0]["content"] == "half"
    assert running.upstream.cancelled == 1


async def test_a_client_that_leaves_with_many_requests_waiting_is_noticed(running: Running) -> None:
    running.upstream.default = stream(b": alive\n\n", hang=True)
    async with running.http.ws_connect(f"{running.url}/v1/responses", headers=running.headers()) as socket:
        for number in range(40):
            await socket.send_json({"type": "response.create", "model": "gpt-1", "input": f"x {number}"})
        async with asyncio.timeout(5):
            while not running.upstream.requests:
                await asyncio.sleep(0.01)
    async with asyncio.timeout(5):
        while not (events := running.reader.events("support", kinds=["llm_call"])[0]):
            await asyncio.sleep(0.02)
    assert events[0][1]["y"]["status"] == "cancelled"


async def test_a_client_that_sends_more_ahead_than_is_kept_is_disconnected(running: Running) -> None:
    running.upstream.default = stream(b": alive\n\n", hang=True)
    async with running.http.ws_connect(f"{running.url}/v1/responses", headers=running.headers()) as socket:
        for number in range(100):
            await socket.send_json({"type": "response.create", "model": "gpt-1", "input": f"x {number}"})
        while (message := await socket.receive(timeout=5)).type is aiohttp.WSMsgType.TEXT:
            pass
        assert message.data == 1008


@pytest.mark.parametrize("odd", [b"{no json", b'{"a":"\xff"}', b'{"a":"\\ud83d"}', b'{"a":NaN}'])
async def test_an_event_that_can_not_be_read_ends_neither_the_connection_nor_the_record(
    running: Running, odd: bytes
) -> None:
    done = {"type": "response.completed", "response": {"id": "resp_1", "status": "completed", "output": []}}
    running.upstream.scripts.append(stream(b"data: %b\n\n" % odd, b"data: " + orjson.dumps(done) + b"\n\n"))
    async with running.http.ws_connect(f"{running.url}/v1/responses", headers=running.headers()) as socket:
        await socket.send_json({"type": "response.create", "model": "gpt-1", "input": "x"})
        assert (await socket.receive(timeout=5)).data == odd.decode(errors="replace")
        assert (await socket.receive_json(timeout=5))["type"] == "response.completed"
    ((_, event),) = running.reader.events("support", kinds=["llm_call"])[0]
    assert event["y"]["status"] == "ok"
