"""The canonical form is RFC 8785, and ids keep their order."""

from __future__ import annotations

import json
import struct

import msgspec
import pytest
import rfc8785
from hypothesis import given, settings
from hypothesis import strategies as st

from atdp import chain, clock
from atdp.canonical import canonical, digest, digest_bytes, is_canonical
from atdp.ids import derived_id, new_id, uuid7
from atdp.records import Action, EventDraft, Message, Metadata, Observation, Outcome, Part

# RFC 8785, appendix B: IEEE 754 bits and the text ECMAScript writes
NUMBERS = [
    ("0000000000000000", "0"),
    ("8000000000000000", "0"),
    ("0000000000000001", "5e-324"),
    ("7fefffffffffffff", "1.7976931348623157e+308"),
    ("4340000000000000", "9007199254740992"),
    ("4430000000000000", "295147905179352830000"),
    ("44b52d02c7e14af5", "9.999999999999997e+22"),
    ("44b52d02c7e14af6", "1e+23"),
    ("444b1ae4d6e2ef4f", "999999999999999900000"),
    ("444b1ae4d6e2ef50", "1e+21"),
    ("3eb0c6f7a0b5ed8c", "9.999999999999997e-7"),
    ("3eb0c6f7a0b5ed8d", "0.000001"),
    ("41b3de4355555553", "333333333.3333332"),
    ("becbf647612f3696", "-0.0000033333333333333333"),
    ("43143ff3c1cb0959", "1424953923781206.2"),
]


@pytest.mark.parametrize(("bits", "text"), NUMBERS)
def test_numbers_are_written_as_rfc_8785_appendix_b_says(bits: str, text: str) -> None:
    (value,) = struct.unpack(">d", bytes.fromhex(bits))
    assert canonical(value).decode() == text


def test_keys_are_sorted_by_utf_16_code_units() -> None:
    given = json.loads(
        '{"\\u20ac":"Euro Sign","\\r":"Carriage Return","\\ufb33":"Hebrew Letter Dalet With Dagesh","1":"One",'
        '"\\ud83d\\ude00":"Emoji: Grinning Face","\\u0080":"Control","\\u00f6":"Latin Small Letter O With Diaeresis"}'
    )
    order = list(json.loads(canonical(given)).values())
    assert order == [
        "Carriage Return",
        "One",
        "Control",
        "Latin Small Letter O With Diaeresis",
        "Euro Sign",
        "Emoji: Grinning Face",
        "Hebrew Letter Dalet With Dagesh",
    ]


def test_strings_are_escaped_as_rfc_8785_section_3_2_2_says() -> None:
    given = {"string": "\u20ac$\u000f\u000aA'\u0042\u0022\u005c\\\"\u002f", "literals": [None, True, False]}
    assert canonical(given) == '{"literals":[null,true,false],"string":"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'.encode()


def test_one_and_one_point_zero_have_the_same_digest() -> None:
    assert digest({"a": 1.0, "b": 2}) == digest({"b": 2, "a": 1})


def test_what_json_cannot_hold_is_refused() -> None:
    for value in (float("nan"), float("inf"), 2**53 + 1):
        with pytest.raises(ValueError, match=r".+"):
            canonical(value)


_SCALARS = st.none() | st.booleans() | st.text() | st.floats() | st.integers(-(2**60), 2**60)
_VALUES = st.recursive(
    _SCALARS | st.lists(st.integers(-(2**54), 2**54)),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@settings(max_examples=150, deadline=None)
@given(_VALUES)
def test_the_fast_form_is_the_reference_form_of_every_value(value: object) -> None:
    try:
        expected = rfc8785.dumps(value)
    except ValueError:
        with pytest.raises(ValueError, match=r".+"):
            canonical(value)
    else:
        assert canonical(value) == expected


@settings(max_examples=2000, deadline=None)
@given(st.integers(0, 2**64 - 1))
def test_the_fast_form_of_a_number_is_the_reference_form_for_all_bits(bits: int) -> None:
    (value,) = struct.unpack(">d", bits.to_bytes(8, "big"))
    if value == value and abs(value) != float("inf"):
        assert canonical([value, 0.5]) == rfc8785.dumps([value, 0.5])


def an_event(value: object, text: str = "hello", duration_ms: float = 812.25) -> EventDraft:
    return EventDraft(
        atdp="1.0",
        id="e1",
        trajectory_id="t1",
        kind="tool_call",
        time="2026-11-30T10:15:00.000Z",
        ctx="sha256:" + "a" * 64,
        duration_ms=duration_ms,
        o=Observation(messages=[Message(role="user", parts=[Part(type="text", content=text)])]),
        a=Action(name=text, arguments=value, params={"temperature": 0.7, "max_tokens": 1024}),
        m=Metadata(ttft_ms=190.5, tags={"agent": text}),
        y=Outcome(status="ok", result=value),
        ext={"value": [value, 0.5, value]},
    )


PREVIOUS = "sha256:" + "b" * 64


def reference(draft: EventDraft) -> bytes:
    return rfc8785.dumps({**msgspec.to_builtins(draft), "seq": 7, "prev_hash": PREVIOUS})


def test_a_usual_draft_is_written_in_canonical_form_at_once() -> None:
    draft = an_event({"order": "A-17", "lines": [3, 5], "paid": True}, text="is it 1.5 or 2.0, é?")
    data = chain.draft_json(draft, 7, PREVIOUS)
    assert is_canonical(data)
    assert data == reference(draft)
    assert chain.hashed(data)[0] == chain.seal(msgspec.to_builtins(draft), 7, PREVIOUS)["hash"]


@pytest.mark.parametrize(
    "value", [1.0, -0.0, 1e15, 1e16, 1e-5, -2.5e-7, 1e21, 2**53 + 1, float("nan"), {"\ufb33": 1, "\U0001f600": 2}]
)
def test_a_draft_whose_json_may_not_be_its_canonical_form_gets_a_closer_look(value: object) -> None:
    for held in (value, [value], ["a", value], {"k": value}):
        assert not is_canonical(chain.draft_json(an_event(held), 7, PREVIOUS))


@settings(max_examples=150, deadline=None)
@given(_VALUES, st.text(), st.floats(0, allow_infinity=False))
def test_no_draft_is_taken_for_canonical_that_the_reference_writes_otherwise(
    value: object, text: str, duration_ms: float
) -> None:
    draft = an_event(value, text, duration_ms)
    try:
        data = chain.draft_json(draft, 7, PREVIOUS)
    except (ValueError, OverflowError):
        return
    if is_canonical(data):
        assert data == reference(draft)


@settings(max_examples=500, deadline=None)
@given(st.integers(0, 2**64 - 1))
def test_no_number_in_a_draft_is_taken_for_canonical_that_the_reference_writes_otherwise(bits: int) -> None:
    (value,) = struct.unpack(">d", bits.to_bytes(8, "big"))
    draft = an_event([value, 0.5])
    data = chain.draft_json(draft, 7, PREVIOUS)
    if is_canonical(data):
        assert data == reference(draft)


@settings(max_examples=500, deadline=None)
@given(st.floats(-1e17, 1e17) | st.integers(-(2**63), 2**63).map(float) | st.floats(-1e-3, 1e-3))
def test_no_number_of_everyday_size_is_taken_for_canonical_that_the_reference_writes_otherwise(value: float) -> None:
    draft = an_event({"a": value}, duration_ms=abs(value))
    data = chain.draft_json(draft, 7, PREVIOUS)
    if is_canonical(data):
        assert data == reference(draft)


def test_a_part_is_named_by_its_bytes() -> None:
    assert digest_bytes(b"") == "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def test_ids_sort_in_the_order_they_were_made_and_never_repeat() -> None:
    ids = [uuid7() for _ in range(20_000)]
    assert ids == sorted(ids)
    assert len(set(ids)) == len(ids)
    assert all(id[14] == "7" and id[19] in "89ab" for id in ids)


def test_an_id_says_what_it_names_and_a_derived_id_depends_on_nothing_but_its_parts() -> None:
    assert new_id("ev").startswith("ev_")
    assert derived_id("ev", "a", "b") == derived_id("ev", "a", "b") != derived_id("ev", "ab", "")


def test_times_are_utc_and_one_without_a_zone_is_refused() -> None:
    assert clock.timestamp(clock.parse("2026-09-02T12:15:00.950+02:00")) == "2026-09-02T10:15:00.950Z"
    with pytest.raises(ValueError, match="no time zone"):
        clock.parse("2026-09-02T12:15:00")
