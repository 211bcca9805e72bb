"""Other requests are told from the same ones in other words, with an effect size and a valid p-value."""

from __future__ import annotations

import random

import pytest

from evaluators import text_drift
from evaluators.text_drift import Topics

ORDERS = ["Where is my order {}?", "Cancel order {} please.", "What is the status of order {}?", "Do you ship to {}?"]
BILLS = ["My invoice {} is wrong.", "Please refund payment {}.", "Why was my card charged twice for {}?"]


def texts(chance: random.Random, of: list[str], n: int) -> list[str]:
    return [chance.choice(of).format(chance.randrange(1000)) for _ in range(n)]


def test_other_requests_are_seen_and_the_same_ones_are_not() -> None:
    chance = random.Random(1)
    other = text_drift.compare(texts(chance, ORDERS + BILLS, 100), texts(chance, ORDERS, 100), alpha=0.01, min_auc=0.6)
    assert other.state == "drift" and other.auc.low > 0.6
    assert any("invoice" in t or "refund" in t or "charged" in t for t in other.telling)
    alarms = sum(
        text_drift.compare(texts(chance, ORDERS, 60), texts(chance, ORDERS, 60), alpha=0.05, min_auc=0.5).p < 0.05
        for _ in range(60)
    )
    assert alarms <= 8


def test_few_requests_are_not_enough() -> None:
    found = text_drift.compare(["hello"] * 8, ["goodbye"] * 400, alpha=0.05, min_auc=0.6)
    assert found.state == "not enough data"


def test_topics_stay_what_they_were_found_to_be() -> None:
    chance = random.Random(2)
    topics = Topics()
    first = topics.of(texts(chance, ORDERS, 80))
    assert len(set(first)) > 1
    centres = list(topics.centres)
    assert topics.of(["Where is my order 7?", "Where is my order 8?"]) == [topics.of(["Where is my order 9?"])[0]] * 2
    assert topics.centres == centres


@pytest.mark.stack
def test_embeddings_come_with_their_package_and_see_a_paraphrase_as_the_same() -> None:
    chance = random.Random(3)
    same = [
        "Could you tell me where order {} is?",
        "Please stop order {}.",
        "Order {}: any news?",
        "Is {} a place you send to?",
    ]
    found = text_drift.compare(
        texts(chance, BILLS, 60), texts(chance, ORDERS, 60), alpha=0.01, min_auc=0.6, method="embeddings"
    )
    assert found.state == "drift"
    near, far, base = (text_drift.embed([t], "embeddings")[0] for t in (same[0], BILLS[0], ORDERS[0]))
    assert near @ base > far @ base
