"""Streams are read as the protocol allows them to be written."""

from __future__ import annotations

import json
from typing import Any

import pytest

from services.proxy.dialects import CHAT
from services.proxy.dialects.base import Assembler
from services.proxy.sse import EventSplitter


def chunk(delta: dict[str, Any], finish: str | None = None, index: int = 0) -> dict[str, Any]:
    return {"choices": [{"index": index, "delta": delta, "finish_reason": finish}]}


def assemble(*chunks: dict[str, Any]) -> Assembler:
    assembler = CHAT.assembler()
    for each in chunks:
        assembler.add(each)
    return assembler


def piece(index: int, id: str | None = None, name: str | None = None, arguments: str | None = None) -> dict[str, Any]:
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    return {"index": index, **({"id": id, "type": "function"} if id else {}), "function": function}


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("space", [b"", b" "])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_any_line_end_any_chunking_with_or_without_a_space(end: bytes, space: bytes, size: int) -> None:
    raw = b": ping" + end + end + b"data:" + space + b'{"a":1}' + end + end + b"data:" + space + b"[DONE]" + end + end
    splitter = EventSplitter()
    events = [event for at in range(0, len(raw), size) for event in splitter.feed(raw[at : at + size])]
    events += splitter.close()
    assert [event.data for event in events if event.data is not None] == [b'{"a":1}', b"[DONE]"]
    assert b"".join(event.raw for event in events) == raw


def test_an_event_that_was_not_ended_by_a_blank_line_is_still_read() -> None:
    splitter = EventSplitter()
    assert splitter.feed(b"data: [DONE]") == []
    assert [event.data for event in splitter.close()] == [b"[DONE]"]


def test_several_data_lines_are_one_value() -> None:
    (event,) = EventSplitter().feed(b"event: x\ndata: {\ndata: }\n\n")
    assert event.data == b"{\n}"
    assert event.with_data(b"{}") == b"data: {}\n\n"


def test_three_whole_tool_calls_in_single_chunks_stay_three() -> None:
    calls = [
        piece(i, f"c{i}", "get_weather", json.dumps({"city": city})) for i, city in enumerate(["Paris", "Rome", "Oslo"])
    ]
    completion = assemble(*(chunk({"tool_calls": [call]}) for call in calls), chunk({}, "tool_calls")).completion
    got = completion.choices[0].message["tool_calls"]
    assert [(c["id"], c["function"]["arguments"]) for c in got] == [
        ("c0", '{"city": "Paris"}'),
        ("c1", '{"city": "Rome"}'),
        ("c2", '{"city": "Oslo"}'),
    ]


def test_whole_tool_calls_that_all_say_index_0_are_not_glued_together() -> None:
    completion = assemble(
        chunk({"tool_calls": [piece(0, "c0", "f", '{"a":1}')]}), chunk({"tool_calls": [piece(0, "c1", "f", '{"b":2}')]})
    ).completion
    got = completion.choices[0].message["tool_calls"]
    assert [(c["id"], c["function"]["arguments"]) for c in got] == [("c0", '{"a":1}'), ("c1", '{"b":2}')]


def test_pieces_of_arguments_are_joined_as_they_come() -> None:
    completion = assemble(
        chunk({"role": "assistant", "content": None}),
        chunk({"tool_calls": [piece(0, "c0", "f", "")]}),
        chunk({"tool_calls": [piece(0, None, None, '{"a"')]}),
        chunk({"tool_calls": [piece(1, "c1", "g", '{"x"')]}),
        chunk({"tool_calls": [piece(0, None, None, ":1}"), piece(1, None, None, ":2}")]}),
        chunk({}, "tool_calls"),
    ).completion
    assert [c["function"] for c in completion.choices[0].message["tool_calls"]] == [
        {"name": "f", "arguments": '{"a":1}'},
        {"name": "g", "arguments": '{"x":2}'},
    ]


def test_choices_that_interleave_are_kept_apart_with_their_own_tool_calls() -> None:
    completion = assemble(
        chunk({"content": "a"}, index=1),
        chunk({"content": "b"}, index=0),
        chunk({"tool_calls": [piece(0, "x", "f", "{}")]}, index=1),
        chunk({"tool_calls": [piece(0, "y", "g", "{}")]}, index=0),
        chunk({"content": "c"}, "stop", 1),
    ).completion
    assert [choice.message["content"] for choice in completion.ordered()] == ["b", "ac"]
    assert [c.message["tool_calls"][0]["id"] for c in completion.ordered()] == ["y", "x"]
    assert not completion.finished


def test_a_usage_chunk_without_choices_is_read() -> None:
    usage = {"prompt_tokens": 1, "completion_tokens": 2}
    completion = assemble(chunk({"content": "a"}, "stop"), {"choices": [], "usage": usage}).completion
    assert completion.usage == usage
    assert completion.finished


def test_no_usage_is_no_usage() -> None:
    assert assemble(chunk({"content": "a"}, "stop")).completion.usage is None


def test_a_tool_without_parameters_gives_the_same_streamed_and_whole() -> None:
    message = {"role": "assistant", "tool_calls": [piece(0, "c", "f", "{}")]}
    whole = CHAT.whole({"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]})
    streamed = assemble(chunk({"tool_calls": [piece(0, "c", "f", "{}")]}), chunk({}, "tool_calls")).completion
    for completion in (whole, streamed):
        assert completion.choices[0].message["tool_calls"][0]["function"] == {"name": "f", "arguments": "{}"}
        assert completion.finished


@pytest.mark.parametrize("body", [{}, {"choices": None}, {"choices": [None, 3]}, {"choices": [{"message": "x"}]}])
def test_a_reply_of_another_form_is_not_finished_and_breaks_nothing(body: dict[str, Any]) -> None:
    completion = CHAT.whole(body)
    assert completion is None or not completion.finished
    assert not assemble(body).completion.finished
