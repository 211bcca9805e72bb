"""OpenAI messages survive the way into ATDP and back."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from atdp import messages
from atdp.canonical import canonical
from atdp.records import Message


def call(arguments: str, id: str = "c1", name: str = "f") -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


SAME_AGAIN: list[dict[str, Any]] = [
    {"role": "user", "content": "hi"},
    {"role": "user", "content": ""},
    {"role": "developer", "content": "be terse"},
    {"role": "user", "content": None},
    {"role": "user"},
    {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "u"}}]},
    {"role": "system", "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]},
    {"role": "assistant", "content": "hello"},
    {"role": "assistant", "content": None, "tool_calls": [call('{"a": 1}'), call("{}", "c2", "g")]},
    {"role": "assistant", "content": None, "tool_calls": [call('{"a":1}')]},
    {"role": "assistant", "content": "x", "refusal": "no", "reasoning_content": "because"},
    {"role": "tool", "tool_call_id": "c1", "content": "done"},
    {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "done"}], "x": 1},
    {"role": "user", "name": "ann", "content": "hi", "unknown": {"deep": [1, None]}},
]


@pytest.mark.parametrize("message", SAME_AGAIN, ids=range(len(SAME_AGAIN)))
def test_a_message_comes_back_as_it_was(message: dict[str, Any]) -> None:
    form = messages.from_openai(message)
    msgspec.convert(form, Message)
    assert messages.to_openai(form) == message


@pytest.mark.parametrize("arguments", ['{"a":1}{"b":2}', "", "[1]", '{"a": ', "null"])
def test_arguments_that_are_not_one_json_object_are_kept_as_text_and_marked(arguments: str) -> None:
    (part,) = messages.tool_calls(messages.from_openai({"role": "assistant", "tool_calls": [call(arguments)]}))
    assert part["malformed"] is True
    assert messages.arguments_text(part) == arguments


def test_empty_arguments_stay_an_empty_object() -> None:
    (part,) = messages.tool_calls(messages.from_openai({"role": "assistant", "tool_calls": [call("{}")]}))
    assert part["arguments"] == {}
    assert "malformed" not in part


def test_an_integer_too_big_for_a_json_number_keeps_its_digits() -> None:
    big = call('{"id": 12345678901234567890}')
    (part,) = messages.tool_calls(messages.from_openai({"role": "assistant", "tool_calls": [big]}))
    assert messages.arguments_text(part) == '{"id": 12345678901234567890}'
    assert "malformed" not in part


def test_an_answer_means_the_same_however_an_sdk_sends_it_back() -> None:
    generated = {"role": "assistant", "content": "", "refusal": None, "tool_calls": [call('{"city": "Paris"}')]}
    resent = {"role": "assistant", "tool_calls": [call('{"city":"Paris"}')]}
    other = {"role": "assistant", "tool_calls": [call('{"city":"Rome"}')]}
    meaning = [messages.meaning(messages.from_openai(message)) for message in (generated, resent, other)]
    assert meaning[0] == meaning[1] != meaning[2]


def test_ids_and_names_of_the_wrong_type_do_not_break_capture() -> None:
    odd = {"role": "tool", "tool_call_id": 7, "name": 3, "content": 5}
    msgspec.convert(messages.from_openai(odd), Message)
    msgspec.convert(
        messages.from_openai({"role": "assistant", "tool_calls": [{"id": 1, "function": {}}, "x"]}), Message
    )


def test_arguments_come_back_byte_for_byte_from_a_log_that_orders_keys() -> None:
    texts = (
        '{"b": 1, "a": 2}',
        '{"a": 1, "b": {"d": 1, "c": 2}}',
        '{"a": 1}',
        '{"a":1}',
        '{"\U0001f600": 1, "\uffee": 2}',
    )
    for text in texts:
        (part,) = messages.tool_calls(messages.from_openai({"role": "assistant", "tool_calls": [call(text)]}))
        stored = json.loads(canonical(part))
        assert messages.arguments_text(stored) == text
