"""What users' replies say about answers, on a labelled set: precise first, and it must stay so."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from services.proxy.harvest.replies import CONFIDENCE, reactions, similarity

ITEMS: list[dict[str, Any]] = [
    json.loads(line) for line in Path(__file__).with_name("replies.jsonl").read_text().splitlines()
]
"""{answer, earlier, text, labels}: labels are the signals a person sees in the text."""

PRECISION = {"user_corrects": 0.95, "user_repeats": 0.95, "user_thanks": 0.9, "user_wants_person": 0.95}
RECALL = {"user_corrects": 0.85, "user_repeats": 0.85, "user_thanks": 0.95, "user_wants_person": 0.95}


def found() -> list[tuple[dict[str, Any], set[str]]]:
    return [(item, {r.name for r in reactions(item["text"], item["answer"], item["earlier"])}) for item in ITEMS]


@pytest.mark.parametrize("name", PRECISION)
def test_a_reaction_is_recognised_with_the_stated_precision_and_recall(name: str) -> None:
    right = sum(name in names and name in item["labels"] for item, names in found())
    said = sum(name in names for _, names in found())
    true = sum(name in item["labels"] for item in ITEMS)
    print(f"{name}: precision {right}/{said}, recall {right}/{true}")
    assert right / said >= PRECISION[name]
    assert right / true >= RECALL[name]


def test_no_confidence_is_higher_than_the_precision_it_stands_for() -> None:
    said: Counter[tuple[str, str]] = Counter()
    right: Counter[tuple[str, str]] = Counter()
    for item in ITEMS:
        for reaction in reactions(item["text"], item["answer"], item["earlier"]):
            said[reaction.name, reaction.label] += 1
            right[reaction.name, reaction.label] += reaction.name in item["labels"]
    assert said.keys() == CONFIDENCE.keys()
    for key, confidence in CONFIDENCE.items():
        assert confidence <= right[key] / said[key]


def test_what_is_quoted_or_pasted_is_not_what_the_user_says() -> None:
    for text in ("```\nthat's wrong\n```\nexplain this log", "> you forgot the tests\nis from whom?"):
        assert reactions(text, "Done.", ["hello there, do it"]) == []


def test_a_no_to_a_question_is_an_answer_and_to_a_statement_a_correction() -> None:
    asked = reactions("No, the second one.", "Which one do you mean?", [])
    told = reactions("No, the second one.", "I cancelled the first one.", [])
    assert (asked, [r.name for r in told]) == ([], ["user_corrects"])


def test_similarity_is_of_characters_so_that_any_language_will_do() -> None:
    assert similarity("我的订单什么时候送到？", "我的订单什么时候能送到？") > 0.7
    assert similarity("Where is my order?", "where is my order") == 1.0
    assert similarity("Where is my order?", "Cancel the flight") < 0.2
    assert similarity("", "x") == 0.0
