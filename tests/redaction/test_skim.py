"""The first look never says clean of what the walk would change."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from registry.tenant_policy import Dictionary, FieldRule
from services.proxy.redaction.redact import Redactor
from services.proxy.redaction.skim import Skim
from services.proxy.redaction.walk import Walk
from tests.redaction.corpus import KINDS, benign, planted, redactor, told


def clean(rules: Redactor, value: Any, key: str = "y") -> bool:
    skim = Skim(rules)
    skim.forget()
    return skim.clean(value, key)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_with_a_planted_secret_looks_clean(kind: str) -> None:
    rules = redactor()
    for case in planted(seed=13, each=1, only=kind):
        if not told(case.secret, json.dumps(case.record, ensure_ascii=False)):
            continue  # too short a disguise to be told from words
        members = {key: value for key, value in case.record.items() if key in ("o", "a", "y", "m", "ext")}
        assert not all(clean(rules, value, key) for key, value in members.items()), (case.place, case.secret)


def test_look_alikes_look_clean_and_are_given_back_as_they_are() -> None:
    rules = redactor()
    for _, text in benign(seed=17, each=5):
        if text.startswith("{") or "\\" in text:
            continue  # JSON is for the walk
        record = {"y": {"status": "ok", "result": text}}
        assert clean(rules, record["y"])
        assert rules.redact(record).record is record


@pytest.mark.parametrize(
    ("value", "key"),
    [
        ([["authorization", "x1y2"], ["accept", "*/*"]], "headers"),
        (["it is sk-ant-", "api03-a1B2c3", "d4E5f6g7H8", "i9J0k1L2m3", "N4o5 ok"], "y"),
        ({"password": "hunter2"}, "ext"),
        ({"customer_phone": "030 1234567"}, "y"),
        ({"card": 4111111111111111}, "y"),
        ({"n": float("nan"), "x": {1: 2}}, "y"),
        ({"messages": {"prefix": "anna@example.com", "append": []}}, "ext"),
        (json.dumps({"who": "a\\u0040example.com", "password": "x"}), "y"),
    ],
)
def test_what_needs_the_walk_goes_to_it(value: Any, key: str) -> None:
    assert not clean(redactor(), value, key)


def test_a_policys_own_words_and_fields_are_looked_for() -> None:
    named = redactor(dictionaries=(Dictionary(name="project", terms=("heron",)),))
    assert not clean(named, {"note": "heron"})
    assert clean(redactor(), {"note": "heron"})
    assert not clean(redactor(fields=(FieldRule(field="customer.note"),)), {"customer": {"note": "x"}})


_texts = st.text(max_size=30) | st.sampled_from(
    ["anna@example.com", "4111111111111111", "030 1234567", "pin 4921", "AB 12 34 56 C", "token", "a1b2-c3", "٤١١١١١"]
)
_json = st.recursive(
    st.none() | st.booleans() | st.integers() | _texts,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["text", "type", "phone", "password", "event", "append"]) | _texts, inner)
    ),
    max_leaves=12,
)


@given(_json, st.sampled_from(["o", "y", "ext", "m"]))
@settings(max_examples=150, deadline=None)
def test_what_looks_clean_the_walk_gives_back(value: Any, key: str) -> None:
    rules = redactor()
    if clean(rules, value, key):
        walk = Walk(rules)
        assert walk.value(value, key, (key,)) is value
        assert not walk.entities and not walk.failed
