from __future__ import annotations

import pytest

from examples.support.scenario import (
    CHANGED_TOPIC,
    TENANTS,
    Request,
    facts_now,
    is_right,
    requests,
    right_answer,
)
from examples.support.shop import Shop

FACTS = facts_now(changed=True)


def test_training_and_heldout_share_no_template_and_no_order_number() -> None:
    train, heldout = requests("train", 300, 1), requests("heldout", 300, 1)
    assert not {r.template for r in train} & {r.template for r in heldout}
    numbers = [{dict(r.arguments).get("order_id") for r in split} - {None} for split in (train, heldout)]
    assert not numbers[0] & numbers[1]


def test_no_shop_is_asked_the_same_heldout_question_twice() -> None:
    asked = [(r.tenant, r.text) for r in requests("heldout", 84, 7)]
    assert len(set(asked)) == len(asked)


def test_the_same_seed_gives_the_same_customers() -> None:
    assert requests("train", 50, 3) == requests("train", 50, 3) != requests("train", 50, 4)


def test_every_tenant_tool_and_topic_is_asked_about() -> None:
    asked = requests("train", 90, 1)
    assert {r.tenant for r in asked} == set(TENANTS)
    assert {r.tool for r in asked if r.tool} == {"track_order", "cancel_order", "start_return", "change_address"}
    assert {r.topic for r in asked if r.topic} == set(FACTS["lumen"])


@pytest.mark.parametrize("request_", requests("heldout", 40, 5), ids=lambda r: r.id)
def test_the_right_answer_is_right(request_: Request) -> None:
    answer = right_answer(request_, FACTS)
    calls = [(answer["tool"], answer["arguments"])] if "tool" in answer else []
    assert is_right(request_, FACTS, answer.get("content"), calls)  # type: ignore[arg-type]


def test_an_outdated_fact_is_wrong() -> None:
    asked = next(r for r in requests("train", 60, 1) if r.topic == CHANGED_TOPIC)
    outdated = right_answer(asked, facts_now(changed=False))["content"]
    assert not is_right(asked, FACTS, str(outdated), [])


def test_the_right_tool_for_the_wrong_order_is_wrong() -> None:
    asked = next(r for r in requests("train", 10, 1) if r.tool == "track_order")
    assert not is_right(asked, FACTS, "", [("track_order", {"order_id": "Z0"})])


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("refund", {}),
        ("track_order", {}),
        ("track_order", {"order_id": 7}),
        ("start_return", {"order_id": "A1", "reason": "bored"}),
    ],
)
def test_the_shop_refuses_calls_it_does_not_know(name: str, arguments: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"unknown tool|takes the strings|reason must be"):
        Shop().call(name, arguments)
