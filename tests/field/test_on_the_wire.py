"""What went wrong for others on the wire; each case is one test that states the right value."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
from typing import Any

import aiohttp
import orjson
import pytest

from atdp.messages import to_openai
from registry.manifest import Guardrail, Harness, Manifest, Policy, PromptEdit
from services.proxy.dialects import DIALECTS, Dialect
from services.proxy.dialects.messages import to_anthropic
from services.router.overlays import apply_overlays, undo
from tests.captures import captures, needs_captures
from tests.gateway.conftest import Running, user
from tests.gateway.upstream import frame, reply, stream

VENDOR = "gpt-1"
"""A model of the configured provider's, whose bytes reach the client as they are."""


def sse(*events: dict[str, Any]) -> list[bytes]:
    """Events as Anthropic's server frames them."""
    return [f"event: {event['type']}\n".encode() + b"data: " + orjson.dumps(event) + b"\n\n" for event in events]


def calls_of(event: dict[str, Any]) -> list[tuple[str, Any]]:
    """Name and arguments of the tool calls of an event's first answer."""
    parts = event["a"]["messages"][0]["parts"]
    return [(part["name"], part["arguments"]) for part in parts if part["type"] == "tool_call"]


def call_delta(index: int, id: str, name: str, arguments: str) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"tool_calls": [{"index": index, "id": id, "type": "function", "function": function}]}


def call(id: str, **function: str) -> dict[str, Any]:
    """A tool call of f as a message has it."""
    return {"id": id, "type": "function", "function": {"name": "f", **function}}


async def ask(running: Running, *, stream: bool = True, **body: Any) -> aiohttp.ClientResponse:
    return await running.chat([user("hi")], model=VENDOR, stream=stream, **body)


async def test_case_01_whole_tool_calls_in_single_chunks_stay_apart(running: Running) -> None:
    cities = ["Paris", "Rome", "Oslo"]
    frames = [frame(call_delta(i, f"c{i}", "weather", json.dumps({"city": city}))) for i, city in enumerate(cities)]
    running.upstream.scripts.append(stream(*frames, frame({}, "tool_calls"), b"data: [DONE]\n\n"))
    response = await ask(running)
    assert calls_of(running.event(response)) == [("weather", {"city": city}) for city in cities]


async def test_case_02_arguments_that_are_two_values_are_kept_and_marked(running: Running) -> None:
    glued = '{"a":1}{"b":2}'
    running.upstream.scripts.append(
        stream(frame(call_delta(0, "c", "f", glued)), frame({}, "tool_calls"), b"data: [DONE]\n\n")
    )
    (part,) = running.event(await ask(running))["a"]["messages"][0]["parts"]
    assert part == {"type": "tool_call", "id": "c", "name": "f", "arguments": glued, "malformed": True}


async def test_case_02_in_messages_input_that_was_cut_is_kept_and_marked(running: Running) -> None:
    block = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    running.upstream.scripts.append(
        stream(
            *sse(
                {"type": "message_start", "message": {"id": "m", "role": "assistant", "content": []}},
                {"type": "content_block_start", "index": 0, "content_block": block},
                {
                    "type": "content_block_delta",
                    "index": 0,
                    "delta": {"type": "input_json_delta", "partial_json": '{"city": "Pa'},
                },
                {"type": "message_delta", "delta": {"stop_reason": "max_tokens"}, "usage": {"output_tokens": 4}},
                {"type": "message_stop"},
            )
        )
    )
    response = await running.post("/v1/messages", {"model": "claude-1", "messages": [user("hi")], "stream": True})
    (part,) = running.event(response)["a"]["messages"][0]["parts"]
    assert (part["arguments"], part["malformed"]) == ('{"city": "Pa', True)


async def test_case_03_choices_that_interleave_are_outputs_of_their_own(running: Running) -> None:
    running.upstream.scripts.append(
        stream(
            frame({"content": "a"}, index=0),
            frame(call_delta(0, "x", "f", '{"n":'), index=1),
            frame({"content": "b"}, index=0),
            frame({"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]}, index=1),
            frame({}, "stop", index=0),
            frame({}, "tool_calls", index=1),
            b"data: [DONE]\n\n",
        )
    )
    first, second = running.event(await ask(running, n=2))["a"]["messages"]
    assert first["parts"] == [{"type": "text", "content": "ab"}]
    assert second["parts"][0]["arguments"] == {"n": 1}


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
async def test_case_04_every_legal_line_end_and_no_blank_after_the_colon(running: Running, end: str) -> None:
    chunk = json.dumps({"id": "c", "choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": "stop"}]})
    raw = f": ping{end}{end}data:{chunk}{end}{end}data: [DONE]{end}{end}".encode()
    running.upstream.scripts.append(stream(raw[:20], raw[20:]))
    response = await ask(running)
    assert await response.read() == raw
    assert running.event(response)["y"]["status"] == "ok"


async def test_case_05_a_usage_chunk_without_choices_is_read_and_passed_on(running: Running) -> None:
    usage = frame(None, usage={"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7})
    running.upstream.scripts.append(stream(frame({"content": "x"}, "stop"), usage, b"data: [DONE]\n\n"))
    response = await ask(running, stream_options={"include_usage": True})
    assert usage in await response.read()
    assert running.event(response)["m"]["usage"] == {"input_tokens": 5, "output_tokens": 2}


async def test_case_06_no_usage_is_absent_and_nothing_is_added_to_the_request(running: Running) -> None:
    running.upstream.scripts.append(stream(frame({"content": "x"}, "stop"), b"data: [DONE]\n\n"))
    event = running.event(await ask(running))
    assert "usage" not in event["m"]
    assert event["ext"]["usage_source"] == "absent"
    assert running.upstream.requests == [{"model": VENDOR, "messages": [user("hi")], "stream": True}]


async def test_case_07_a_stream_that_just_ends_is_truncated_and_the_client_is_told(running: Running) -> None:
    running.upstream.scripts.append(stream(frame({"content": "half"})))
    response = await ask(running)
    event = running.event(response)
    assert (event["y"]["status"], event["a"]["messages"][0].get("finish_reason")) == ("truncated", None)
    # the other dialects' forms: tests/gateway/test_dialects.py


async def test_case_08_a_client_that_leaves_mid_stream(running: Running) -> None:
    running.upstream.scripts.append(stream(frame({"content": "so far"}), hang=True))
    body = {"model": VENDOR, "messages": [user("hi")], "stream": True}
    url = f"{running.url}/v1/chat/completions"
    async with running.http.post(url, json=body, headers=running.headers()) as response:
        await response.content.readany()
        response.close()
    for _ in range(100):
        event = running.reader.record("northwind", response.headers["x-evoplane-event-id"])
        if event is not None and running.upstream.cancelled:
            break
        await asyncio.sleep(0.02)
    assert event is not None
    assert event["a"]["messages"][0]["parts"][0]["content"] == "so far"
    assert event["ext"]["client_disconnected"] is True
    assert running.upstream.cancelled == 1


async def test_case_09_thinking_signatures_and_cache_marks_are_the_same_both_ways(running: Running) -> None:
    blocks = [
        {"type": "thinking", "thinking": "hm", "signature": "c2ln"},
        {"type": "redacted_thinking", "data": "b3BhcXVl"},
        {"type": "text", "text": "done", "cache_control": {"type": "ephemeral"}},
    ]
    answer = orjson.dumps({"id": "m", "type": "message", "content": blocks, "stop_reason": "end_turn"})
    running.upstream.scripts += [reply(200, answer), reply(200, answer)]
    system = [{"type": "text", "text": "terse", "cache_control": {"type": "ephemeral"}}]
    said = [user("hi")]
    for turn in range(2):
        sent = orjson.dumps({"model": "claude-1", "messages": said, "system": system, "max_tokens": 9})
        response = await running.post("/v1/messages", sent)
        assert await response.read() == answer
        assert running.upstream.bodies[-1] == sent
        event = running.resolved(response)
        assert to_anthropic(event["o"]["messages"]) == said
        assert event["o"]["system_instructions"] == system
        said = [*said, {"role": "assistant", "content": blocks}, user(f"and {turn}?")]


async def test_case_10_what_is_odd_but_legal_passes_as_it_was_sent(running: Running) -> None:
    said = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [call("c")],
        },
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "ok"}]},
    ]
    body = orjson.dumps({"model": VENDOR, "messages": said, "tools": [], "unheard_of": {"x": [1]}})
    running.upstream.scripts.append(reply(200, b'{"choices":[{"message":{"content":"k"},"finish_reason":"stop"}]}'))
    response = await running.post("/v1/chat/completions", body)
    assert running.upstream.bodies == [body]
    event = running.resolved(response)
    assert [m["role"] for m in event["o"]["messages"]] == ["developer", "user", "assistant", "tool"]
    assert to_openai(event["o"]["messages"][1]) == said[1]
    assert event["a"]["params"]["unheard_of"] == {"x": [1]}


async def test_case_11_a_gzipped_body_does_not_travel_with_its_old_headers(running: Running) -> None:
    plain = b'{"choices":[{"message":{"content":"k"},"finish_reason":"stop"}]}'
    running.upstream.scripts.append(reply(200, gzip.compress(plain), {"content-encoding": "gzip"}))
    response = await ask(running, stream=False)
    assert await response.read() == plain
    assert "content-encoding" not in response.headers
    assert response.headers["content-length"] == str(len(plain))


async def test_case_12_big_things_are_kept_apart_and_nothing_is_dropped(running: Running) -> None:
    image = "data:image/png;base64," + base64.b64encode(bytes(range(256)) * 400).decode()
    said = [
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": image}}]},
        {
            "role": "assistant",
            "tool_calls": [call("c", arguments="{}")],
        },
        {"role": "tool", "tool_call_id": "c", "content": "row\n" * 25_000},
    ]
    huge_error = orjson.dumps({"error": {"message": "x" * 15_000, "type": "too_big"}})
    running.upstream.scripts += [
        reply(200, b'{"choices":[{"message":{"content":"k"},"finish_reason":"stop"}]}'),
        reply(400, huge_error),
    ]
    for script in range(2):
        response = await running.chat(said, model=VENDOR, headers={"x-evoplane-session-id": f"s{script}"})
        records = running.chain(response)
        assert all(len(orjson.dumps(record)) < 6_000 for record in records)
        whole = [to_openai(m) for m in running.resolved(response)["o"]["messages"]]
        assert whole[0] == said[0]
        assert whole[2] == said[2]
    assert running.resolved(response)["y"]["error"]["message"] == huge_error.decode()


async def test_case_13_a_tool_without_parameters_gives_the_same_event_both_ways(running: Running) -> None:
    message = {
        "content": None,
        "tool_calls": [call("c", arguments="{}")],
    }
    whole = {"id": "r", "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}
    running.upstream.scripts += [
        reply(200, orjson.dumps(whole)),
        stream(frame(call_delta(0, "c", "f", "{}"), "tool_calls"), b"data: [DONE]\n\n"),
    ]
    events = [running.event(await ask(running, stream=asked)) for asked in (False, True)]
    assert calls_of(events[0]) == calls_of(events[1]) == [("f", {})]


@needs_captures
def test_case_14_no_overlay_moves_splits_or_rewords_a_call_or_its_result() -> None:
    edits = (
        PromptEdit(id="1", op="add", text="Be kind."),
        PromptEdit(id="2", op="delete", old="tool"),
        PromptEdit(id="3", op="replace", old="You", text="We"),
    )
    version = Manifest(
        policy=Policy(base="m", served_name="m"),
        harness=Harness(edits=edits, system_append=" (v2)"),
        guardrails=(Guardrail(id="g", text="No politics."),),
    )
    seen = 0
    for capture in captures():
        dialect = DIALECTS.get(capture.dialect_path)
        if dialect is None or not isinstance(capture.body, dict) or "prompt" in capture.body:
            continue
        result, overlays = apply_overlays(capture.body, version, "t", dialect=dialect)
        before, after = (_conversation(dialect, body) for body in (capture.body, result))
        assert after == before
        assert orjson.dumps(undo(result, overlays)) == orjson.dumps(capture.body)
        seen += any(message["role"] == "tool" for message in before)
    assert seen > 10, "the recordings have calls and results"


def _conversation(dialect: Dialect, body: dict[str, Any]) -> list[dict[str, Any]]:
    """All but instructions, in order."""
    return [m for m in dialect.conversation(body) if m["role"] not in ("system", "developer")]


async def test_case_14_a_call_and_its_result_stay_a_pair_in_order_through_an_overlay_and_the_record(
    running: Running,
) -> None:
    calls = [call(f"c{i}", arguments="{}") for i in range(3)]
    results = [{"role": "tool", "tool_call_id": f"c{i}", "content": str(i)} for i in (2, 0, 1)]
    said = [user("hi"), {"role": "assistant", "content": None, "tool_calls": calls}, *results]
    running.upstream.scripts.append(reply(200, b'{"choices":[{"message":{"content":"k"},"finish_reason":"stop"}]}'))
    response = await running.chat(said, model=VENDOR)
    records = running.chain(response)
    told = [(r["a"]["call_id"], r["y"]["result"]) for r in records if r.get("kind") == "tool_call"]
    assert told == [("c2", "2"), ("c0", "0"), ("c1", "1")]
    assert [to_openai(m) for m in running.resolved(response)["o"]["messages"]] == said
