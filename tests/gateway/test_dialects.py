"""Every dialect passes through the gateway unchanged and is stored whole."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import orjson
import pytest

from services.proxy.dialects import CHAT, DIALECTS, MESSAGES, RESPONSES
from services.proxy.dialects.messages import to_anthropic
from services.proxy.dialects.responses import to_items
from tests.captures import Capture, captures, needs_captures
from tests.gateway.conftest import Running
from tests.gateway.upstream import recorded, reply, stream

_CALLS = [
    capture
    for capture in captures()
    if capture.method == "POST" and capture.dialect_path in DIALECTS and isinstance(capture.body, dict)
    if DIALECTS[capture.dialect_path].content_field in capture.body and capture.whole
    if not capture.scenario.startswith("fault") and "previous_response_id" not in capture.body
    if "previous_message_id" not in str(capture.body.get("thread"))
    if not DIALECTS[capture.dialect_path].names(capture.body)
]
_OURS = ("x-evoplane-", "date", "server", "content-length", "connection", "transfer-encoding")


def whole_form(capture: Capture) -> bytes:
    """The answer of a stream as it would have come in one body."""
    dialect = DIALECTS[capture.dialect_path]
    lines = [line[6:] for line in capture.answer.decode().split("\n") if line.startswith("data: {")]
    chunks = [orjson.loads(line) for line in lines]
    if dialect is RESPONSES:
        return orjson.dumps(chunks[-1]["response"])
    assembler = dialect.assembler()
    for chunk in chunks:
        assembler.add(chunk)
    completion = assembler.completion
    head = {"id": completion.id, "model": completion.model, "usage": completion.usage}
    if dialect is MESSAGES:
        (stop,) = [chunk["delta"]["stop_reason"] for chunk in chunks if chunk["type"] == "message_delta"]
        return orjson.dumps({**head, "type": "message", **completion.choices[0].message, "stop_reason": stop})
    choices = [{"index": c.index, "message": c.message, "finish_reason": c.finish_reason} for c in completion.ordered()]
    return orjson.dumps({**head, "choices": choices})


def vendor(body: dict[str, Any]) -> dict[str, Any]:
    """The request for a model of the configured provider's."""
    return {**body, "model": "claude-fake" if "claude" in body["model"] else "gpt-fake"}


@needs_captures
@pytest.mark.parametrize("framework", sorted({capture.framework for capture in _CALLS}))
async def test_what_the_provider_sends_reaches_the_client_byte_for_byte_and_is_stored_whole(
    running: Running, framework: str
) -> None:
    chance = random.Random(framework)
    for capture in (c for c in _CALLS if c.framework == framework):
        dialect = DIALECTS[capture.dialect_path]
        running.upstream.scripts.append(recorded(capture, chance))
        body = orjson.dumps(vendor(capture.body))
        response = await running.post(capture.path, body)
        assert response.status == 200, capture.name
        assert await response.read() == capture.answer, capture.name
        assert running.upstream.bodies[-1] == body, "the request travels as it came"
        theirs = {k: v for k, v in capture.answer_headers.items() if not k.startswith(_OURS)}
        assert theirs.items() <= {k.lower(): v for k, v in response.headers.items()}.items(), capture.name
        running.chain(response)
        event = running.resolved(response)
        assert event["y"]["status"] == "ok", capture.name
        said = event["o"]["messages"]
        if dialect is MESSAGES:
            assert to_anthropic(said) == capture.body["messages"], capture.name
        elif dialect is RESPONSES and isinstance(capture.body["input"], list):
            assert len(to_items(said)) == len(capture.body["input"])
        elif dialect is CHAT:
            assert len(said) == len(capture.body["messages"])
        if "usage" in capture.answer.decode():
            assert event["m"]["usage"]["output_tokens"] >= 0, capture.name


@needs_captures
async def test_streamed_or_whole_gives_the_same_event(running: Running) -> None:
    chance, seen = random.Random(7), 0
    for capture in (c for c in _CALLS if c.streamed):
        events = []
        for script, asked in ((recorded(capture, chance), True), (reply(200, whole_form(capture)), False)):
            running.upstream.scripts.append(script)
            body = {**vendor(capture.body), "stream": asked}
            fresh = {"x-evoplane-session-id": f"{capture.name}/{asked}"}
            event = running.resolved(await running.post(capture.path, body, headers=fresh))
            events.append({"a": event["a"], "y": event["y"], "usage": event["m"].get("usage"), "o": event["o"]})
        assert events[0] == events[1], capture.name
        seen += 1
    assert seen > 40


@pytest.mark.parametrize(
    ("path", "body", "error"),
    [
        ("/v1/chat/completions", {"messages": []}, "error"),
        ("/v1/responses", {"input": "hi"}, "error"),
        ("/v1/messages", {"messages": [], "max_tokens": 1}, "type"),
    ],
)
async def test_errors_have_the_form_of_their_dialect(
    running: Running, path: str, body: dict[str, Any], error: str
) -> None:
    for request, headers, status in (
        ({**body, "model": "nobody"}, {}, 404),
        ({**body, "model": "gpt-1"}, {"authorization": "Bearer wrong"}, 401),
        (body, {}, 400),
    ):
        response = await running.post(path, request, headers=headers)
        answer = await response.json()
        assert response.status == status
        assert error in answer
        assert answer["error"]["message"]
    if path == "/v1/messages":
        assert answer == {
            "type": "error",
            "error": {"type": "invalid_request_error", "message": answer["error"]["message"]},
        }


_CUT = {
    "/v1/chat/completions": (
        {"model": "gpt-1", "messages": [{"role": "user", "content": "hi"}], "stream": True},
        b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"half"}}]}\n\n',
        b'data: {"error":',
    ),
    "/v1/responses": (
        {"model": "gpt-1", "input": "hi", "stream": True},
        b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","output_index":0,'
        b'"content_index":0,"delta":"half"}\n\n',
        b"event: response.failed\n",
    ),
    "/v1/messages": (
        {"model": "claude-1", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 9, "stream": True},
        b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,"delta":'
        b'{"type":"text_delta","text":"half"}}\n\n',
        b"event: error\n",
    ),
}


@pytest.mark.parametrize("path", _CUT)
async def test_a_stream_that_just_ends_ends_with_the_dialects_error_and_no_clean_close(
    running: Running, path: str
) -> None:
    body, half, ending = _CUT[path]
    running.upstream.scripts.append(stream(half))
    async with running.http.post(running.url + path, json=body, headers=running.headers()) as response:
        got = b""
        with pytest.raises(Exception, match=r"not completed|payload"):
            while chunk := await response.content.readany():
                got += chunk
    assert got.startswith(half)
    assert ending in got
    event = running.resolved(response)
    assert event["y"]["status"] == "truncated"
    assert "half" in orjson.dumps(event["a"]["messages"]).decode()


async def test_a_moving_cache_mark_and_a_reshaped_answer_cost_no_second_copy(running: Running) -> None:
    """Claude Code moves its breakpoint every turn and turns single blocks into strings behind it."""
    marked = {"cache_control": {"type": "ephemeral"}}
    filler = "history " * 40
    said: list[dict[str, Any]] = []
    responses = []
    for turn in range(6):
        said.append({"role": "user", "content": [{"type": "text", "text": f"{turn} {filler}", **marked}]})
        answer = {"type": "text", "text": f"answer {turn} {filler}"}
        message = {
            "id": f"msg_{turn}",
            "type": "message",
            "role": "assistant",
            "content": [answer],
            "stop_reason": "end_turn",
        }
        running.upstream.scripts.append(reply(200, orjson.dumps(message)))
        sent = [*said]
        responses.append((await running.post("/v1/messages", {"model": "claude-1", "messages": sent}), sent))
        said = [
            {"role": m["role"], "content": m["content"][0]["text"] if isinstance(m["content"], list) else m["content"]}
            for m in said
        ]
        said.append({"role": "assistant", "content": [answer]})
    sizes = []
    for response, sent in responses:
        event = running.event(response)
        assert to_anthropic(running.resolved(response)["o"]["messages"]) == sent
        sizes.append(len(orjson.dumps(event["o"])))
    assert sizes[-1] < 2 * sizes[1], sizes
    assert len({running.event(response)["trajectory_id"] for response, _ in responses}) == 1


def answered(id: str, text: str) -> bytes:
    item = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}
    return orjson.dumps({"id": id, "object": "response", "status": "completed", "model": "gpt-1", "output": [item]})


async def test_previous_response_id_continues_the_session_and_the_record_holds_what_the_model_saw(
    running: Running,
) -> None:
    running.upstream.scripts += [reply(200, answered("resp_1", "one")), reply(200, answered("resp_2", "two"))]
    await running.post("/v1/responses", {"model": "gpt-1", "input": "first", "instructions": "terse"})
    second = await running.post("/v1/responses", {"model": "gpt-1", "input": "more", "previous_response_id": "resp_1"})
    assert [m["parts"][0]["content"] for m in running.resolved(second)["o"]["messages"]] == ["first", "one", "more"]
    records = running.chain(second)
    assert [r["kind"] for r in records[1:]] == ["user_message", "llm_call", "user_message", "llm_call"]
    assert [r["turn"] for r in records[1:]] == [1, 1, 2, 2]


async def test_anothers_response_id_does_not_exist(running: Running) -> None:
    running.upstream.scripts.append(reply(200, answered("resp_1", "one")))
    await running.post("/v1/responses", {"model": "gpt-1", "input": "first"})
    body = {"model": "gpt-1", "input": "more", "previous_response_id": "resp_1"}
    foreign = await running.post("/v1/responses", body, key="lumen")
    never = await running.post("/v1/responses", {**body, "previous_response_id": "resp_9"}, key="lumen")
    assert foreign.status == never.status == 404
    assert (await foreign.text()).replace("resp_1", "resp_9") == await never.text()
    assert len(running.upstream.requests) == 1


@pytest.mark.parametrize("running", [{"session_idle_s": 0.3}], indirect=True)
async def test_an_answer_of_long_ago_can_be_gone_on_from(running: Running) -> None:
    running.upstream.scripts += [reply(200, answered("resp_1", "one")), reply(200, answered("resp_2", "two"))]
    first = await running.post("/v1/responses", {"model": "gpt-1", "input": "first"})
    await asyncio.sleep(1.0)  # the session has left the memory
    body = {"model": "gpt-1", "input": "more", "previous_response_id": "resp_1"}
    refused = await running.post("/v1/responses", body, key="lumen")
    assert refused.status == 404
    second = await running.post("/v1/responses", body)
    assert second.status == 200
    assert [m["parts"][0]["content"] for m in running.resolved(second)["o"]["messages"]] == ["first", "one", "more"]
    header = running.chain(second)[0]
    assert header["parent"] == {
        "trajectory_id": running.event(first)["trajectory_id"],
        "event_id": first.headers["x-evoplane-event-id"],
        "rel": "continuation",
    }
    assert first.headers["x-evoplane-session-id"] == second.headers["x-evoplane-session-id"]


async def test_an_input_with_half_an_emoji_is_passed_on_and_stored_as_its_text(running: Running) -> None:
    """A model's output may be cut anywhere; no record can hold the half as a character."""
    given = '{"to": "anna.berg@example.com \\ud83d"}'
    block = {"type": "tool_use", "id": "t1", "name": "f", "input": {}}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {"id": "m1", "model": "claude-1", "role": "assistant", "content": []}},
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": given}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 1}},
        {"type": "message_stop"},
    ]
    pieces = [b"event: %b\ndata: %b\n\n" % (event["type"].encode(), orjson.dumps(event)) for event in events]
    running.upstream.scripts.append(stream(*pieces))
    body = {"model": "claude-1", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 9, "stream": True}
    response = await running.post("/v1/messages", body)
    assert await response.read() == b"".join(pieces)
    (message,) = running.event(response)["a"]["messages"]
    (part,) = message["parts"]
    assert part["arguments"].startswith('{"to": "<EMAIL_')
