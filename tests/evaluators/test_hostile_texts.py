"""Texts made to be slow to read take no longer than others."""

from __future__ import annotations

import time

import pytest

from evaluators import facts
from flows.interventions.imperatives import imperatives
from tests.evaluators.conftest import make_case

_SIZE = 100_000
_PATIENCE_S = 2.0


@pytest.mark.parametrize(
    "text",
    ["The window is 4" + " " * _SIZE + "x", "and the window is " * (_SIZE // 18), "the " + "a " * _SIZE],
    ids=["spaces", "beginnings", "words"],
)
def test_a_long_text_is_soon_read_for_facts(text: str) -> None:
    began = time.process_time()
    assert facts.stated_fact(text) is None
    assert time.process_time() - began < _PATIENCE_S


def test_a_fact_is_found_beside_a_text_that_is_too_long_to_state_one() -> None:
    text = "and the window is " * 1000 + ". The returns window is 45 days."
    assert facts.stated_fact(text) == facts.Fact("returns window", "45 days")


def test_a_long_correction_is_soon_read_for_instructions() -> None:
    text = "always " + "ignore it " * (_SIZE // 10)
    began = time.process_time()
    assert imperatives([make_case(corrections=[text])], 1) == []
    assert time.process_time() - began < _PATIENCE_S
