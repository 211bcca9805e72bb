"""Requests of one dialect as chat, and chat answers as answers of that dialect."""

from __future__ import annotations

import random
from typing import Any, get_args

import orjson
import pytest

from atdp import messages
from evoplane.settings import Translated
from services.proxy.completion import Completion
from services.proxy.dialects import BY_NAME, CHAT, DIALECTS, MESSAGES, RESPONSES, Dialect
from services.proxy.sse import EventSplitter, ServerSentEvent
from services.proxy.translate import NotTranslatable, Translator, translator
from tests.captures import Capture, captures, needs_captures

BOTH = [MESSAGES, RESPONSES]
_POSTED = [c for c in captures() if c.method == "POST" and c.dialect_path in DIALECTS and isinstance(c.body, dict)]
_ANSWERS = [c for c in _POSTED if DIALECTS[c.dialect_path] is CHAT and c.whole and not c.scenario.startswith("fault")]
_REQUESTS = [
    c
    for c in _POSTED
    if DIALECTS[c.dialect_path] in BOTH and DIALECTS[c.dialect_path].content_field in c.body
    if c.body.get("thread") is None and not {"previous_response_id", "conversation"} & c.body.keys()
]


def asked(dialect: Dialect, **fields: Any) -> dict[str, Any]:
    said = {"messages": [{"role": "user", "content": "hi"}]} if dialect is MESSAGES else {"input": "hi"}
    return {"model": "m", **said, **fields}


def to_chat(dialect: Dialect, **fields: Any) -> tuple[dict[str, Any], list[str]]:
    """A request as chat, and what was dropped."""
    made = translator(dialect, request := asked(dialect, **fields), request)
    return made.request, made.record["dropped"]


def back(dialect: Dialect, **fields: Any) -> Translator:
    request = asked(dialect, **fields)
    return translator(dialect, request, request)


def chunk(delta: dict[str, Any] | None, finish: str | None = None, **more: Any) -> dict[str, Any]:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    return {"id": "chatcmpl-1", "created": 5, "model": "up", "choices": choices, **more}


def sse(value: Any) -> ServerSentEvent:
    (event,) = EventSplitter().feed(b"data: " + (value if isinstance(value, bytes) else orjson.dumps(value)) + b"\n\n")
    return event


def streamed(made: Translator, chunks: list[dict[str, Any]], *, done: bool = True) -> list[dict[str, Any]]:
    """The events that a client gets, each checked for its framing."""
    out = [told for value in [*chunks, *([b"[DONE]"] if done else [])] for told in made.event(sse(value))]
    out += made.close()
    events = []
    for event in EventSplitter().feed(b"".join(told.raw for told in out)):
        assert event.data is not None
        data = orjson.loads(event.data)
        assert event.raw == b"event: " + data["type"].encode() + b"\ndata: " + event.data + b"\n\n"
        events.append(data)
    return events


def assembled(dialect: Dialect, events: list[dict[str, Any]]) -> Completion:
    assembler = dialect.assembler()
    for event in events:
        assembler.add(event)
    return assembler.completion


def call(index: int, id: str | None = None, name: str | None = None, arguments: str = "") -> dict[str, Any]:
    more = {"id": id, "type": "function"} if id else {}
    return {"index": index, **more, "function": {**({"name": name} if name else {}), "arguments": arguments}}


def whole_body(completion: Completion) -> dict[str, Any]:
    head = {"id": completion.id, "model": completion.model, "usage": completion.usage, "created": 1}
    choices = [{"index": c.index, "message": c.message, "finish_reason": c.finish_reason} for c in completion.ordered()]
    return {**head, "object": "chat.completion", "choices": choices}


def read_whole(made: Translator, body: dict[str, Any]) -> tuple[dict[str, Any], Completion]:
    read = made.whole(body)
    assert read is not None
    return orjson.loads(read[0]), read[1]


# -- answers


def in_pieces(message: dict[str, Any], chance: random.Random) -> list[dict[str, Any]]:
    """A whole message as the deltas of a stream, cut anywhere."""

    def cut(text: str) -> list[str]:
        cuts = sorted(chance.sample(range(1, len(text)), min(chance.randint(0, 4), len(text) - 1))) if text else []
        return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]

    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    for field in ("reasoning_content", "reasoning", "content", "refusal"):
        if isinstance(message.get(field), str):
            deltas += [{field: piece} for piece in cut(message[field])]
    for index, made in enumerate(message.get("tool_calls") or []):
        deltas.append({"tool_calls": [call(index, made["id"], made["function"]["name"])]})
        deltas += [{"tool_calls": [call(index, arguments=piece)]} for piece in cut(made["function"]["arguments"])]
    return deltas


@needs_captures
@pytest.mark.parametrize("dialect", BOTH, ids=lambda d: d.name)
def test_streamed_or_whole_a_translated_answer_is_the_same(dialect: Dialect) -> None:
    chance, seen = random.Random(dialect.name), 0
    for capture in _ANSWERS:
        completion = _said(capture)
        if completion is None or not completion.finished:
            continue
        body = whole_body(completion)
        told, whole = read_whole(back(dialect), body)
        choice = completion.choices[0]
        tail = [chunk({}, choice.finish_reason), chunk(None, usage=completion.usage)]
        for _ in range(4):
            made = back(dialect)
            pieces = [chunk(delta) for delta in in_pieces(choice.message, chance)]
            each = [{**piece, "id": body["id"], "model": body["model"], "created": 1} for piece in [*pieces, *tail]]
            events = streamed(made, each)
            stream = assembled(dialect, events)
            made.complete(stream)
            stream.done = True
            assert dialect.answer(stream.choices[0]) == dialect.answer(whole.choices[0]), capture.name
            assert stream == whole, capture.name
            if dialect is RESPONSES:
                assert events[-1]["response"] == told
        answer = dialect.answer(whole.choices[0])
        assert [(c["id"], c["name"], c["arguments"]) for c in messages.tool_calls(answer)] == [
            (c["id"], c["name"], c["arguments"]) for c in messages.tool_calls(CHAT.answer(choice))
        ], capture.name
        assert messages.text(answer) == messages.text(CHAT.answer(choice))
        seen += 1
    assert seen > 40


def _said(capture: Capture) -> Completion | None:
    if not capture.streamed:
        return CHAT.whole(orjson.loads(capture.answer))
    assembler = CHAT.assembler()
    for event in EventSplitter().feed(capture.answer):
        if event.data and event.data.startswith(b"{"):
            assembler.add(orjson.loads(event.data))
    return assembler.completion


def _forms(events: list[dict[str, Any]], *left_out: str) -> list[Any]:
    """Event types in order with their fields, repeated deltas once."""
    result: list[Any] = []
    for event in events:
        form = (event["type"], sorted(event))
        if event["type"] not in left_out and not (result and result[-1] == form and event["type"].endswith("delta")):
            result.append(form)
    return result


def _captured(name: str) -> list[dict[str, Any]]:
    (found,) = [c for c in captures() if c.name == name]
    return [orjson.loads(event.data) for event in EventSplitter().feed(found.answer) if event.data]


@needs_captures
def test_events_of_a_message_come_in_the_order_of_a_real_server() -> None:
    captured = _captured("anthropic/05-messages.json")
    pieces: list[dict[str, Any]] = [{"reasoning_content": "thi"}, {"reasoning_content": "nk"}]
    pieces += [{"tool_calls": [call(0, "c", "get_weather")]}, {"tool_calls": [call(0, arguments='{"city": "Paris"}')]}]
    events = streamed(back(MESSAGES), [*map(chunk, pieces), chunk({}, "tool_calls")])
    theirs = [e for e in captured if e.get("delta", {}).get("type") != "signature_delta"]
    assert _forms(events) == _forms(theirs, "ping")
    assert [e.get("index") for e in events if e["type"] == "content_block_start"] == [0, 1]
    assert events[-2]["delta"] == captured[-2]["delta"]
    assert events[0]["message"].keys() == captured[0]["message"].keys()


@needs_captures
@pytest.mark.parametrize(
    ("name", "pieces", "finish"),
    [
        ("openai/14-responses.json", [{"content": "a"}, {"content": "b"}], "stop"),
        ("openai-agents/35-responses.json", [{"tool_calls": [call(0, "c", "f", '{"a"')]}], "tool_calls"),
    ],
)
def test_events_of_a_response_come_in_the_order_of_a_real_server(
    name: str, pieces: list[dict[str, Any]], finish: str
) -> None:
    captured = _captured(name)
    events = streamed(back(RESPONSES), [*map(chunk, pieces), chunk({}, finish), chunk(None, usage={})])
    assert _forms(events) == _forms(captured)
    assert [e["sequence_number"] for e in events] == list(range(len(events)))
    for ours, theirs in zip([e for e in events if "item" in e], [e for e in captured if "item" in e], strict=True):
        assert ours["item"].keys() == theirs["item"].keys()
    assert captured[-1]["response"].keys() - events[-1]["response"].keys() == {"service_tier"}


@pytest.mark.parametrize("dialect", BOTH, ids=lambda d: d.name)
def test_parallel_calls_stay_apart_and_in_order_even_when_their_pieces_interleave(dialect: Dialect) -> None:
    events = streamed(
        back(dialect),
        [
            chunk({"tool_calls": [call(0, "c0", "f")]}),
            chunk({"tool_calls": [call(0, arguments='{"a"')]}),
            chunk({"tool_calls": [call(1, "c1", "g", '{"x"')]}),
            chunk({"tool_calls": [call(0, arguments=":1}"), call(1, arguments=":2}")]}),
            chunk({"tool_calls": [call(2, "c2", "h", "{}")]}),
            chunk({"content": "late"}),
            chunk({}, "tool_calls"),
        ],
    )
    answer = dialect.answer(assembled(dialect, events).choices[0])
    assert [(c["id"], c["name"], c["arguments"]) for c in messages.tool_calls(answer)] == [
        ("c0", "f", {"a": 1}),
        ("c1", "g", {"x": 2}),
        ("c2", "h", {}),
    ]
    assert messages.text(answer) == "late"
    opened = [e.get("index", e.get("output_index")) for e in events if e["type"] in _OPENS]
    closed = [e.get("index", e.get("output_index")) for e in events if e["type"] in _CLOSES]
    assert opened == closed == [0, 1, 2, 3]


_OPENS = ("content_block_start", "response.output_item.added")
_CLOSES = ("content_block_stop", "response.output_item.done")


@pytest.mark.parametrize("dialect", BOTH, ids=lambda d: d.name)
def test_a_call_that_goes_on_after_it_was_complete_is_an_error_and_not_another_call(dialect: Dialect) -> None:
    pieces = [call(0, "c0", "f", "{}"), call(1, "c1", "g", "{}"), call(0, arguments='{"b":2}')]
    events = streamed(back(dialect), [chunk({"tool_calls": [piece]}) for piece in pieces] + [chunk({}, "tool_calls")])
    assert events[-1]["type"] in ("error", "response.failed")
    assert not assembled(dialect, events).finished


@pytest.mark.parametrize("dialect", BOTH, ids=lambda d: d.name)
@pytest.mark.parametrize("arguments", ['{"a":1}{"b":2}', '{"a": "half', "[1]", "not json", "null"])
def test_arguments_that_are_no_object_travel_as_the_text_they_are(dialect: Dialect, arguments: str) -> None:
    made = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    body = whole_body(_completion({"role": "assistant", "content": None, "tool_calls": [made]}, "tool_calls"))
    read = read_whole(back(dialect), body)
    stream = assembled(
        dialect, streamed(back(dialect), [chunk({"tool_calls": [call(0, "c", "f", arguments)]}, "stop")])
    )
    for completion in (read[1], stream):
        (part,) = messages.tool_calls(dialect.answer(completion.choices[0]))
        assert part["arguments"] == arguments
        assert part["malformed"] is True
    said = read[0].get("output") or [{"role": "assistant", "content": read[0]["content"]}]
    request, _ = to_chat(dialect, **{dialect.content_field: said})
    assert request["messages"][-1]["tool_calls"] == [made], "and goes back as it came"


def test_an_integer_of_any_size_travels_whole() -> None:
    made = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a":12345678901234567890123}'}}
    body = whole_body(_completion({"role": "assistant", "tool_calls": [made]}, "tool_calls"))
    read = back(MESSAGES).whole(body)
    assert read is not None
    assert b'"a":12345678901234567890123}' in read[0]


@pytest.mark.parametrize("dialect", BOTH, ids=lambda d: d.name)
@pytest.mark.parametrize("arguments", ["{}", ""])
def test_a_call_without_arguments_is_one_with_an_empty_object_where_the_dialect_wants_one(
    dialect: Dialect, arguments: str
) -> None:
    events = streamed(back(dialect), [chunk({"tool_calls": [call(0, "c", "f", arguments)]}), chunk({}, "tool_calls")])
    message = assembled(dialect, events).choices[0].message
    if dialect is MESSAGES:
        assert message["content"] == [{"type": "tool_use", "id": "c", "name": "f", "input": {}}]
    else:
        assert message["output"][0]["arguments"] == arguments


@pytest.mark.parametrize(
    ("finish", "message", "stop", "status"),
    [
        ("stop", {"content": "x"}, "end_turn", ("completed", None)),
        ("length", {"content": "x"}, "max_tokens", ("incomplete", "max_output_tokens")),
        ("content_filter", {"content": ""}, "refusal", ("incomplete", "content_filter")),
        ("stop", {"refusal": "no"}, "refusal", ("completed", None)),
        ("stop", {"tool_calls": [call(0, "c", "f", "{}")]}, "tool_use", ("completed", None)),
        ("abort", {"content": "x"}, "abort", ("incomplete", "abort")),
    ],
)
def test_why_an_answer_ended_is_said_in_the_dialects_words_and_recorded_in_the_upstreams(
    finish: str, message: dict[str, Any], stop: str, status: tuple[str, str | None]
) -> None:
    body = whole_body(_completion({"role": "assistant", **message}, finish))
    first, second = read_whole(back(MESSAGES), body), read_whole(back(RESPONSES), body)
    assert first[0]["stop_reason"] == stop
    assert (second[0]["status"], (second[0]["incomplete_details"] or {}).get("reason")) == status
    assert first[1].choices[0].finish_reason == second[1].choices[0].finish_reason == finish


def test_a_stop_sequence_that_the_upstream_names_is_named() -> None:
    body = whole_body(_completion({"role": "assistant", "content": "x"}, "stop"))
    body["choices"][0]["stop_reason"] = "END"
    read = read_whole(back(MESSAGES, stop_sequences=["END"]), body)
    assert (read[0]["stop_reason"], read[0]["stop_sequence"]) == ("stop_sequence", "END")


def test_usage_is_told_in_the_dialects_counting_and_recorded_in_the_upstreams() -> None:
    used = {
        "prompt_tokens": 10, "completion_tokens": 4, "total_tokens": 14, "prompt_tokens_details": {"cached_tokens": 8},
        "completion_tokens_details": {"reasoning_tokens": 3},
    }  # fmt: skip
    body = {**whole_body(_completion({"role": "assistant", "content": "x"}, "stop")), "usage": used}
    first, second = read_whole(back(MESSAGES), body), read_whole(back(RESPONSES), body)
    assert first[0]["usage"] == {"input_tokens": 2, "cache_read_input_tokens": 8, "output_tokens": 4}
    assert second[0]["usage"] == {
        "input_tokens": 10,
        "input_tokens_details": {"cached_tokens": 8},
        "output_tokens": 4,
        "output_tokens_details": {"reasoning_tokens": 3},
        "total_tokens": 14,
    }
    assert first[1].usage == second[1].usage == used


def test_no_usage_is_recorded_where_none_was_said() -> None:
    body = {**whole_body(_completion({"role": "assistant", "content": "x"}, "stop")), "usage": None}
    for dialect in BOTH:
        read = read_whole(back(dialect), body)
        assert read[1].usage is None


@pytest.mark.parametrize("dialect", BOTH, ids=lambda d: d.name)
def test_token_ids_and_log_probabilities_reach_the_record_and_not_the_client(dialect: Dialect) -> None:
    first = chunk({"role": "assistant", "content": ""}, prompt_token_ids=[1, 2])
    second = chunk({"content": "x"}, "stop")
    second["choices"][0] |= {"token_ids": [7], "logprobs": {"content": [{"token": "x", "logprob": -0.5}]}}
    made = back(dialect)
    events = streamed(made, [first, second])
    completion = assembled(dialect, events)
    made.complete(completion)
    assert (completion.prompt_token_ids, completion.choices[0].token_ids) == ([1, 2], [7])
    assert completion.choices[0].logprobs == [-0.5]
    assert "token_ids" not in str(events)
    assert "-0.5" not in str(events)


@pytest.mark.parametrize("dialect", BOTH, ids=lambda d: d.name)
def test_a_stream_that_was_not_ended_gets_no_end(dialect: Dialect) -> None:
    for done in (True, False):
        completion = assembled(dialect, streamed(back(dialect), [chunk({"content": "half"})], done=done))
        assert not completion.finished
        assert completion.error is None
    finished = streamed(back(dialect), [chunk({"content": "all"}, "stop")], done=False)
    assert assembled(dialect, finished).finished, "a finish reason without [DONE] is an end"


@pytest.mark.parametrize("dialect", BOTH, ids=lambda d: d.name)
def test_an_error_in_the_stream_is_the_dialects_error_and_the_last_event(dialect: Dialect) -> None:
    made = back(dialect)
    error = {"error": {"message": "overloaded", "type": "server_error", "code": 503}}
    events = streamed(made, [chunk({"content": "half"}), error, chunk({"content": "more"}, "stop")])
    assert events[-1]["type"] in ("error", "response.failed")
    assert "overloaded" in str(events[-1])
    completion = assembled(dialect, events)
    made.complete(completion)
    assert completion.error == error["error"]


def test_comments_stay_what_they_are() -> None:
    (ping,) = EventSplitter().feed(b": ping\n\n")
    assert back(MESSAGES).event(ping) == [ping]


def test_errors_have_the_clients_form() -> None:
    theirs = {"error": {"message": "slow down", "type": "requests", "param": None, "code": "rate_limit_exceeded"}}
    raw = orjson.dumps(theirs)
    assert back(RESPONSES).error(429, raw, theirs) == raw
    assert orjson.loads(back(MESSAGES).error(429, raw, theirs)) == {
        "type": "error",
        "error": {"type": "rate_limit_error", "message": "slow down"},
    }
    page = back(RESPONSES).error(502, b"<html>bad gateway</html>", None)
    assert orjson.loads(page)["error"]["message"] == "<html>bad gateway</html>"


def _completion(message: dict[str, Any], finish: str) -> Completion:
    completion = Completion(id="chatcmpl-1", model="up")
    choice = completion.choice(0)
    choice.message, choice.finish_reason = message, finish
    return completion


# -- requests


@needs_captures
@pytest.mark.parametrize("capture", _REQUESTS, ids=lambda c: c.name)
def test_what_was_said_is_said_in_chat_too(capture: Capture) -> None:
    dialect = DIALECTS[capture.dialect_path]
    made = translator(dialect, capture.body, capture.body)
    said = CHAT.conversation(made.request)
    before = dialect.conversation(capture.body)
    assert _gist(said) == _gist(before), made.record
    functions = [t for t in capture.body.get("tools") or [] if t.get("type") in (None, "custom", "function")]
    assert [t["function"]["name"] for t in made.request.get("tools", [])] == [t["name"] for t in functions]
    named = {each.split(".")[0] for each in made.record["dropped"]}
    left = capture.body.keys() - named
    assert left <= _CARRIED, "every field is carried or named"


_CARRIED = {
    "model", "messages", "input", "instructions", "system", "stream", "tools", "tool_choice", "max_tokens",
    "max_output_tokens", "temperature", "top_p", "stop_sequences", "output_config", "text", "reasoning", "include",
    "parallel_tool_calls", "store", "prompt_cache_key", "prompt_cache_retention", "metadata",
}  # fmt: skip


def _gist(said: list[dict[str, Any]]) -> list[Any]:
    gist: list[Any] = []
    for message in said:
        for part in message["parts"]:
            match part["type"]:
                case "text" if message["role"] not in ("system", "developer") and part["content"]:
                    gist.append((message["role"], part["content"]))
                case "tool_call":
                    gist.append((part["id"], part["name"], part["arguments"]))
                case "tool_call_response":
                    response = part["response"]
                    texts = response if isinstance(response, list) else [{"text": response}]
                    gist.append((part["id"], [text.get("text") for text in texts]))
    return gist


def test_a_request_of_messages_becomes_chat() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    request, dropped = to_chat(
        MESSAGES,
        system=[{"type": "text", "text": "Be terse.", "cache_control": {"type": "ephemeral"}}],
        messages=[
            {"role": "user", "content": [{"type": "text", "text": "Look"}, image]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "sig"},
                    {"type": "text", "text": "I will."},
                    {"type": "tool_use", "id": "t1", "name": "f", "input": {"ä": 1}},
                    {"type": "tool_use", "id": "t2", "name": "g", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "one"}, image]},
                    {"type": "tool_result", "tool_use_id": "t2", "is_error": True},
                    {"type": "text", "text": "and now?"},
                ],
            },
        ],
        max_tokens=99,
        stop_sequences=["END"],
        temperature=0.5,
        top_k=3,
        metadata={"user_id": "u"},
        thinking={"type": "enabled", "budget_tokens": 10},
        tools=[
            {"name": "f", "description": "d", "input_schema": {"type": "object"}, "cache_control": {"type": "x"}},
            {"name": "g"},
            {"type": "web_search_20250305", "name": "web_search"},
        ],
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
        output_config={"effort": "high", "format": {"type": "json_schema", "schema": {"type": "object"}}},
        stream=True,
    )
    url = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    assert request == {
        "model": "m",
        "messages": [
            {"role": "system", "content": "Be terse."},
            {"role": "user", "content": [{"type": "text", "text": "Look"}, url]},
            {
                "role": "assistant",
                "content": "I will.",
                "tool_calls": [
                    {"id": "t1", "type": "function", "function": {"name": "f", "arguments": '{"ä": 1}'}},
                    {"id": "t2", "type": "function", "function": {"name": "g", "arguments": "{}"}},
                ],
            },
            {"role": "tool", "tool_call_id": "t1", "content": "one"},
            {"role": "tool", "tool_call_id": "t2", "content": ""},
            {"role": "user", "content": [url, {"type": "text", "text": "and now?"}]},
        ],
        "temperature": 0.5,
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_completion_tokens": 99,
        "stop": ["END"],
        "tools": [
            {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}},
            {"type": "function", "function": {"name": "g"}},
        ],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": {"type": "object"}, "strict": True},
        },
    }
    assert dropped == [
        "system.text.cache_control",
        "messages.thinking",
        "messages.tool_result.is_error",
        "top_k",
        "metadata",
        "thinking",
        "tools.cache_control",
        "tools.web_search_20250305",
        "output_config.effort",
    ]


def test_a_request_of_responses_becomes_chat() -> None:
    request, dropped = to_chat(
        RESPONSES,
        instructions="Be terse.",
        input=[
            {"role": "developer", "content": "Use tools."},
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "Look"},
                    {"type": "input_image", "image_url": "https://x/y.png", "detail": "low"},
                    {"type": "input_image", "file_id": "file-1"},
                ],
            },
            {"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": "xx"},
            {"type": "message", "role": "assistant", "id": "msg", "content": [{"type": "output_text", "text": "ok"}]},
            {"type": "function_call", "id": "fc", "call_id": "c1", "name": "f", "arguments": '{"a":1}'},
            {"type": "function_call", "call_id": "c2", "name": "g", "arguments": ""},
            {"type": "function_call_output", "call_id": "c1", "output": "one"},
            {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "two"}]},
            {"type": "web_search_call", "id": "ws"},
        ],
        max_output_tokens=99,
        tools=[
            {"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True},
            {"type": "function", "name": "g", "parameters": None},
            {"type": "web_search"},
        ],
        tool_choice={"type": "function", "name": "f"},
        parallel_tool_calls=False,
        text={"format": {"type": "json_schema", "name": "a", "schema": {"type": "object"}, "strict": True}},
        reasoning={"effort": "low", "summary": "auto"},
        include=["reasoning.encrypted_content"],
        store=False,
        client_metadata={"x": 1},
    )
    assert request == {
        "model": "m",
        "messages": [
            {"role": "system", "content": "Be terse."},
            {"role": "system", "content": "Use tools."},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "Look"},
                    {"type": "image_url", "image_url": {"url": "https://x/y.png", "detail": "low"}},
                ],
            },
            {
                "role": "assistant",
                "content": "ok",
                "tool_calls": [
                    {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}},
                    {"id": "c2", "type": "function", "function": {"name": "g", "arguments": ""}},
                ],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "one"},
            {"role": "tool", "tool_call_id": "c2", "content": "two"},
        ],
        "parallel_tool_calls": False,
        "max_completion_tokens": 99,
        "tools": [
            {
                "type": "function",
                "function": {"name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True},
            },
            {"type": "function", "function": {"name": "g"}},
        ],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "a", "schema": {"type": "object"}, "strict": True},
        },
        "reasoning_effort": "low",
    }
    assert dropped == [
        "input.input_image",
        "input.reasoning.encrypted_content",
        "input.web_search_call",
        "include",
        "client_metadata",
        "tools.web_search",
        "reasoning.summary",
    ]


def test_reasoning_of_a_chat_upstream_goes_back_to_it() -> None:
    body = whole_body(_completion({"role": "assistant", "reasoning": "because", "content": "yes"}, "stop"))
    for dialect in BOTH:
        read = read_whole(back(dialect), body)
        (part,) = [p for p in dialect.answer(read[1].choices[0])["parts"] if p["type"] == "reasoning"]
        assert "because" in str(part["content"])
        own = read[0].get("output") or [{"role": "assistant", "content": read[0]["content"]}]
        request, dropped = to_chat(dialect, **{dialect.content_field: own})
        assert request["messages"][-1] == {"role": "assistant", "content": "yes", "reasoning_content": "because"}
        assert dropped == []


@pytest.mark.parametrize(
    ("dialect", "fields", "code"),
    [
        (MESSAGES, {"thread": {"type": "create"}}, "thread_unsupported_request"),
        (RESPONSES, {"previous_response_id": "resp_1"}, "unsupported_parameter"),
        (RESPONSES, {"conversation": "conv_1"}, "unsupported_parameter"),
        (RESPONSES, {"input": [{"type": "item_reference", "id": "msg_1"}]}, "unsupported_parameter"),
    ],
)
def test_what_the_provider_keeps_cannot_be_translated(dialect: Dialect, fields: dict[str, Any], code: str) -> None:
    with pytest.raises(NotTranslatable) as refused:
        back(dialect, **fields)
    assert refused.value.code == code


def test_fields_that_only_some_upstreams_know_are_carried_to_those() -> None:
    request = asked(MESSAGES, top_k=3, unheard_of=1)
    made = translator(MESSAGES, request, request, also=frozenset({"top_k"}))
    assert made.request["top_k"] == 3
    assert made.record == {"from": "anthropic.messages", "to": "openai.chat", "dropped": ["unheard_of"]}


def test_every_dialect_that_can_be_configured_has_a_translation() -> None:
    for name in get_args(Translated):
        assert back(BY_NAME[name]).record["from"] == name
