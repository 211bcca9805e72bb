"""Candidate signals out of a trajectory's events: about the right event, repeatable, never optimisable as they are."""

from __future__ import annotations

from typing import Any

import pytest

from atdp.records import Action, AnnotationDraft
from services.proxy.harvest import at_close, harvest, worth_reading
from tests.harvest.making import answer, event, tool, user, words

REPORT = "=== 1 failed, 3 passed in 0.1s ==="


def said(found: list[AnnotationDraft]) -> list[tuple[str, Any]]:
    return [(each.name, each.label) for each in found]


def test_a_correction_is_about_the_answer_it_follows_and_cites_the_users_words() -> None:
    first, wrong, reply = user("Where is it?"), answer("It arrives on Monday."), user("That's wrong.")
    (found,) = harvest([first, wrong], [reply, answer("Sorry, Tuesday.")])
    assert said([found]) == [("user_corrects", "strong")]
    assert found.targets[0].event_id == wrong.id
    assert found.evidence == [reply.id]
    assert found.optimizable is False
    assert "wrong" not in str(found.explanation)


def test_the_first_message_of_a_conversation_reacts_to_nothing() -> None:
    assert harvest([], [user("That's wrong, thanks"), answer("What is?")]) == []


def test_only_what_follows_nothing_is_left_unread() -> None:
    question, said_, run = user("Where is it?"), answer("On its way."), tool("run_tests", {}, REPORT)
    assert not worth_reading([], [question, said_])
    assert worth_reading([question, said_], [user("That's wrong."), answer("Sorry.")])
    assert worth_reading([run], [user("And?"), answer("It failed.")])
    assert worth_reading([], [run, answer("One test fails.")])
    assert worth_reading([], [question])


def test_harvesting_again_gives_the_same_ids() -> None:
    events = [user("a question"), answer("An answer."), user("thanks!"), answer("Welcome.")]
    assert [each.id for each in harvest([], events)] == [each.id for each in harvest(events[:2], events[2:])]


@pytest.mark.parametrize(
    ("name", "kind", "expected"),
    [("run_tests", "tool_call", 1), ("bash", "code_exec", 1), ("read_file", "tool_call", 0), ("docs", "retrieval", 0)],
)
def test_a_test_run_is_a_verdict_where_a_tool_runs_and_none_where_it_reads(name: str, kind: str, expected: int) -> None:
    found = [each for each in harvest([], [tool(name, {}, REPORT, kind=kind)]) if each.name == "tests"]
    assert len(found) == expected
    for each in found:
        assert (each.value, each.label, each.source.kind) == (0.75, "fail", "environment")
        assert each.ext == {"runner": "pytest", "passed": 3, "failed": 1}


def test_test_output_is_found_inside_a_tools_structured_result() -> None:
    result = {"content": [{"type": "text", "text": f"...\n{REPORT}\n"}], "isError": False}
    assert ("tests", "fail") in said(harvest([], [tool("bash", {}, result)]))


FOUND = '{"order": "W-5521", "carrier": "DHL", "total": 1367.50}'


@pytest.mark.parametrize(
    ("result", "status", "next_step", "expected"),
    [
        (FOUND, "ok", answer("It is with DHL."), "used"),
        (FOUND, "ok", answer("You paid 1,367.5 euros."), "used"),
        (FOUND, "ok", answer("", ("track", {"order": "W-5521"})), "used"),
        ('{"status": "ok"}', "ok", answer("Done."), None),
        ("[" * 5000 + "]" * 5000, "ok", answer("Done."), None),
        ("Error: unknown order", "ok", answer("", ("find", {"q": "b"})), "corrected"),
        ("no", "error", answer("", ("find", {"q": "b"})), "corrected"),
        ("Error: card declined", "ok", answer("Your card has been updated."), "contradicted"),
        ("Error: card declined", "ok", answer("Sorry, the card was declined, I could not update it."), None),
    ],
)
def test_what_became_of_a_result(result: Any, status: str, next_step: Any, expected: str | None) -> None:
    events = [user("find it"), answer("", ("find", {"q": "a"})), tool("find", {"q": "a"}, result, status)]
    found = [each for each in harvest(events[:2], [events[2], next_step]) if each.name == "tool_result"]
    assert [each.label for each in found] == ([] if expected is None else [expected])
    assert all(each.targets[0].event_id == events[2].id and each.kind == "label" for each in found)


def test_a_value_that_was_known_before_proves_no_use() -> None:
    events = [
        user("Is W-5521 there?"),
        tool("find", {"q": "W-5521"}, '{"order": "W-5521"}'),
        answer("W-5521 is there."),
    ]
    assert said(harvest([], events)) == []


def test_only_the_end_shows_that_a_result_was_ignored() -> None:
    events = [user("find it"), tool("find", {}, FOUND), answer("Hello."), user("and?"), answer("Nothing I know of.")]
    assert said(harvest([], events)) == []
    assert said(at_close(events, "outcome")) == [("tool_result", "ignored")]
    used = [*events[:-1], answer("It is W-5521.")]
    assert at_close(used, "outcome") == []


def test_an_answer_that_came_back_in_other_words_was_edited() -> None:
    given = "Dear customer, your order has been delayed by three days. We are sorry for that."
    edited = "Dear Ms Doe, your order has been delayed by four days. We are sorry."
    before = answer(given)
    for came_back, expected in ((edited, 1), (given, 0), (given.replace(" ", "\n"), 0), (given[:40], 0), ("Other.", 0)):
        now = answer("ok", history=[words("user", "write"), words("assistant", came_back), words("user", "send")])
        found = [
            each for each in harvest([user("write"), before], [user("send"), now]) if each.name == "downstream_edit"
        ]
        assert len(found) == expected
        for each in found:
            assert 0.5 < each.value < 1  # type: ignore[operator]
            assert each.targets[0].event_id == before.id


@pytest.mark.parametrize(
    ("name", "kind", "expected"),
    [
        ("transfer_to_human_agents", "tool_call", True),
        ("escalate", "tool_call", True),
        ("human", "handoff", True),
        ("billing", "handoff", False),
        ("get_person", "tool_call", False),
        ("personal_data", "tool_call", False),
        ("agent_search", "tool_call", False),
    ],
)
def test_work_given_to_a_person_is_an_escalation(name: str, kind: str, expected: bool) -> None:
    assert (("escalated", "to_person") in said(harvest([], [tool(name, {}, "ok", kind=kind)]))) == expected


def test_an_approval_tells_its_delay_and_its_no() -> None:
    asked = event("approval", a=Action(name="refund", decision="rejected"), duration_ms=90_000.0)
    delay, denied = harvest([], [asked])
    assert (delay.name, delay.value, delay.label) == ("approval_delay_s", 90.0, "rejected")
    assert denied.name == "approval_denied"


@pytest.mark.parametrize(
    ("reply", "last", "reason", "expected"),
    [
        ("That's wrong.", "It is Tuesday.", "idle", "after_complaint"),
        ("And now?", "Which of the two do you mean?", "idle", "question_left"),
        ("And now?", "It is Tuesday.", "idle", None),
        ("Thanks!", "You are welcome. Anything else?", "idle", None),
        ("That's wrong.", "It is Tuesday.", "outcome", None),
    ],
)
def test_who_never_came_back_is_told_by_what_was_left(reply: str, last: str, reason: str, expected: str | None) -> None:
    events = [user("When?"), answer("On Monday."), user(reply), answer(last)]
    found = [each.label for each in at_close(events, reason) if each.name == "user_abandons"]
    assert found == ([] if expected is None else [expected])
