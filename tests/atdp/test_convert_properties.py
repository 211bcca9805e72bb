"""Whatever was said in a conversation survives every format that is a list of messages, but for the stated losses."""

from __future__ import annotations

from typing import Any

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from atdp import convert
from atdp.convert.base import Record, as_records, contents
from atdp.convert.view import trajectories

_texts = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1, max_size=20)
_values: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | _texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_texts, inner, max_size=3),
    max_leaves=6,
)
_arguments = st.dictionaries(_texts, _values, max_size=3)


@st.composite
def conversations(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Turns of a user, an assistant that may call tools, and the tools, call ids sometimes used again."""
    messages: list[dict[str, Any]] = []
    if draw(st.booleans()):
        messages.append({"role": "system", "content": draw(_texts)})
    for _ in range(draw(st.integers(1, 3))):
        messages.append({"role": "user", "content": draw(_texts)})
        for _ in range(draw(st.integers(0, 2))):
            ids = draw(st.lists(st.sampled_from(["c1", "c2", "c3"]), min_size=1, max_size=2, unique=True))
            calls = [
                {
                    "id": id,
                    "type": "function",
                    "function": {"name": "f", "arguments": orjson.dumps(draw(_arguments)).decode()},
                }
                for id in ids
            ]
            messages.append({"role": "assistant", "content": draw(st.none() | _texts), "tool_calls": calls})
            messages += [{"role": "tool", "tool_call_id": id, "content": draw(_texts)} for id in ids]
        messages.append({"role": "assistant", "content": draw(_texts)})
    return messages


def read(name: str, data: bytes) -> tuple[list[Record], dict[str, bytes]]:
    items = list(convert.get(name).read(data).records)
    return list(as_records(items)), contents(items)


def told(records: list[Record], call_ids: bool) -> list[Any]:
    """The transcript: who said what, called what with which values, was answered what."""
    (view,) = trajectories(records)
    keys = ("type", "content", "name", "arguments", "response", *(("id",) if call_ids else ()))
    return [
        (
            said.message["role"],
            [{key: part[key] for key in keys if part.get(key) is not None} for part in said.message["parts"]],
        )
        for said in view.transcript()
    ]


CARRIERS = {
    "openai-sft": True,
    "trl-sft": True,
    "atif": True,
    "adp": False,
    "tau-bench": True,
    "tau2-bench": True,
    "rlds": True,
}
"""Formats that are a transcript, and whether they have call ids."""


@settings(max_examples=25, deadline=None)
@given(conversations())
def test_a_conversation_says_the_same_after_a_trip_through_every_format(messages: list[dict[str, Any]]) -> None:
    records, content = read("openai-sft", orjson.dumps({"messages": messages}) + b"\n")
    for name, call_ids in CARRIERS.items():
        written = convert.get(name).write(records, content.get)
        mine, theirs = told(records, call_ids), told(read(name, written.data)[0], call_ids)
        if "message.system" in written.loss.lost:
            mine = [turn for turn in mine if turn[0] != "system"]
        assert theirs == mine, name
        assert ("part.tool_call.id" in written.loss.lost) == (not call_ids and any("tool_calls" in m for m in messages))


@settings(max_examples=25, deadline=None)
@given(conversations())
def test_every_call_of_a_conversation_has_the_same_prompt_and_answer_as_a_span(messages: list[dict[str, Any]]) -> None:
    records, content = read("openai-sft", orjson.dumps({"messages": messages}) + b"\n")
    for name in ("otlp", "openinference", "mlflow"):
        written = convert.get(name).write(records, content.get)
        assert _calls(read(name, written.data)[0]) == _calls(records), name


def _calls(records: list[Record]) -> list[Any]:
    (view,) = trajectories(records)
    keys = ("type", "content", "id", "name", "arguments", "response")
    found = []
    for call in view.calls():
        spoken = [*(said.message for said in view.prompt(call)), call["a"]["messages"][0]]
        found.append([[{k: p[k] for k in keys if p.get(k) is not None} for p in m["parts"]] for m in spoken])
    return sorted(found, key=len)
