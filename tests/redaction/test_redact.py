from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from registry.tenant_policy import Dictionary, FieldRule
from tests.redaction.corpus import redactor

MAIL = "anna@example.com"


def result(value: Any, **policy: Any) -> Any:
    return redactor(**policy).redact({"y": {"result": value}}).record["y"]["result"]


def test_what_was_redacted_once_stays_as_it_is_when_redacted_again() -> None:
    rules = redactor()
    record = {"y": {"result": f"{MAIL} 4111111111111111 password: hunter2-x sk-{'a1' * 20} postgres://a:b1c2d3@h/x"}}
    once = rules.redact(record).record
    assert rules.redact(once).record == once


def test_json_text_stays_json_with_numbers_escapes_and_doubled_values() -> None:
    text = '{"card": 4111111111111111, "who": "a\\n\\u0061nna\\u0040example.com", "n": 1}'
    stored = json.loads(result(text))
    assert stored["n"] == 1
    assert stored["card"].startswith("<CREDIT_CARD_")
    assert stored["who"].startswith("a\n<EMAIL_")
    doubled = result('{"password":"hunter2"}{"password":"swordfish"')
    assert "hunter2" not in doubled and "swordfish" not in doubled
    assert doubled.startswith('{"password":"<PASSWORD>"}{"password":')


def test_json_text_with_half_of_an_emoji_stays_a_text_that_can_be_stored() -> None:
    stored = result('{"who": "anna\\u0040example.com \\ud83d"}')
    assert stored.encode().startswith(b'{"who": "<EMAIL_')
    assert json.loads(stored)["who"].endswith("\ud83d")


def test_json_within_json_is_searched_too() -> None:
    inner = json.dumps({"password": "hunter2", "m": MAIL})
    stored = json.loads(json.loads(result(json.dumps({"arguments": inner})))["arguments"])
    assert stored["password"] == "<PASSWORD>"
    assert stored["m"].startswith("<EMAIL_")


def test_a_fields_name_says_what_a_number_is() -> None:
    stored = result({"customer_phone": "030 1234567", "ssn": "078051120", "order_phone_id": "12", "pin": 4921})
    assert stored["ssn"].startswith("<US_SSN_")
    assert stored["customer_phone"].startswith("<PHONE_")
    assert stored["order_phone_id"] == "12"
    assert stored["pin"] == "<PIN>"


def test_a_schema_of_a_secret_field_is_no_secret() -> None:
    schema = {"properties": {"password": {"type": "string", "description": "at least 8"}}, "required": ["password"]}
    assert result(schema) == schema


def test_headers_as_pairs_and_as_an_object() -> None:
    assert result([["authorization", "Bearer x"], ["accept", "*/*"]]) == [
        ["authorization", "<TOKEN>"],
        ["accept", "*/*"],
    ]
    assert result({"Set-Cookie": "sid=1", "x-api-key": "k"}) == {"Set-Cookie": "<TOKEN>", "x-api-key": "<TOKEN>"}


def test_actions_of_a_policy() -> None:
    assert result(MAIL, actions={"EMAIL_ADDRESS": "mask"}) == "<EMAIL>"
    assert result(MAIL, actions={"EMAIL_ADDRESS": "keep"}) == MAIL
    dropped = result({"note": "x y"}, fields=(FieldRule(field="note", action="drop", entity="NOTE"),))
    assert dropped == {"note": {"redacted": "drop", "labels": ["pii.note"]}}
    named = result("the Blue Heron", dictionaries=(Dictionary(name="project", terms=("blue heron",)),))
    assert named.startswith("the <PROJECT_")


def test_a_path_rule_reaches_into_lists_by_a_star() -> None:
    rule = FieldRule(field="customers.*.name", entity="PERSON")
    stored = result({"customers": [{"name": "Mia"}, {"name": "Li"}], "name": "shop"}, fields=(rule,))
    assert stored["name"] == "shop"
    assert all(customer["name"].startswith("<PERSON_") for customer in stored["customers"])


def test_a_secret_over_five_strings_of_a_list_is_found() -> None:
    stored = result(["it is sk-ant-", "api03-a1B2c3", "d4E5f6g7H8", "i9J0k1L2m3", "N4o5 ok"])
    assert stored == ["it is <API_KEY>", "", "", "", " ok"]


def test_levels() -> None:
    key = "sk-" + "a1" * 20
    assert result(f"{MAIL} {key}", redaction="secrets") == f"{MAIL} <API_KEY>"
    assert result({"first_name": "Mia"}, redaction="strict")["first_name"].startswith("<PERSON_")
    assert result({"first_name": "Mia"}) == {"first_name": "Mia"}


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=40),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=20,
)


@given(_json)
@settings(max_examples=100, deadline=None)
def test_structure_and_types_survive_whatever_comes(value: Any) -> None:
    redacted = redactor().redact({"y": {"result": value}})
    assert not redacted.failed
    json.dumps(redacted.record)
    if not redacted.changed:
        assert redacted.record["y"]["result"] is value


@pytest.mark.parametrize("odd", [b"x", object(), {1: 2}, {1, 2}])
def test_what_is_no_json_is_replaced(odd: Any) -> None:
    assert result(odd) == {"redacted": "drop", "labels": ["redaction_failed"]}
