"""What led to an event, by its recorded causes; and what a part is worth, by leaving it out."""

from __future__ import annotations

import random
from typing import Any

import pytest

from evaluators.credit import contribution_rows, contributions, effect_rows, leave_one_out
from evaluators.rewards.links import links
from tests.evaluators.recorded import annotations, events, read
from tests.evaluators.rewards.making import event, says
from tests.shared import DATA, REASON


def words(role: str, text: str) -> dict[str, Any]:
    return {"messages": [{"role": role, "parts": [{"type": "text", "content": text}]}]}


def chain() -> list[dict[str, Any]]:
    """A user asks, the model looks up and reads, and answers with what one of two tools told."""
    return [
        event("u1", "user_message", o=words("user", "How long may I send A-17 back?")),
        event("c1", causes=(("u1", "input"),), o=words("system", "You are a shop."), a=words("assistant", "")),
        event("t1", "tool_call", (("c1", "decided_by"),), a={"name": "look"}, y={"status": "ok", "result": "45 days"}),
        event("t2", "retrieval", (("c1", "decided_by"),), a={"name": "find"}, y={"status": "ok", "result": "Hours: 9"}),
        event(
            "c2",
            causes=(("t1", "input"), ("t2", "input")),
            a=words("assistant", "You may send it back for 45 days, since SUMMER-24 holds."),
            ext={
                "overlays": [
                    {"surface": "memory", "text": "\nNotes:\n- promotion SUMMER-24\n- we are closed on Sunday",
                     "items": [{"id": "m1"}, {"id": "m2"}]},
                    {"surface": "guardrails", "text": "Be polite.", "items": ["g1"]},
                    {"surface": "skills", "skipped": "too large", "items": ["s1"]},
                ]
            },
        ),
    ]  # fmt: skip


def share(found: list[Any]) -> dict[str, float]:
    return {c.id: c.share for c in found}


def test_credit_adds_up_and_the_input_whose_words_are_in_the_answer_has_more_of_it() -> None:
    found = contributions(chain(), "c2", decay=0.6)
    shares = share(found)
    assert sum(shares.values()) == pytest.approx(1)
    assert shares["c2"] == pytest.approx(0.4)
    assert shares["t1"] > shares["t2"]
    assert shares["m1"] > shares["m2"]
    assert "s1" not in shares  # it was not shown
    kinds = {c.id: c.kind for c in found}
    assert (kinds["t1"], kinds["t2"], kinds["m1"], kinds["g1"], kinds["u1"], kinds["c1/system"]) == (
        "tool call", "retrieval", "memory item", "guardrail", "observation", "prompt fragment")  # fmt: skip
    evidence = {row["id"]: row["evidence"] for row in contribution_rows(found)}
    assert evidence["t1"] == "input; shares 45"
    assert evidence["m1"] == "overlay memory; shares SUMMER-24"


def test_what_is_further_away_gets_less() -> None:
    found = {c.id: c for c in contributions(chain(), "t1", decay=0.5)}
    assert (found["t1"].links, found["c1"].links, found["u1"].links) == (0, 1, 2)
    assert found["t1"].share > found["c1"].share > found["u1"].share
    assert "t2" not in found and "c2" not in found


def test_what_the_log_says_became_of_a_result_moves_its_share() -> None:
    label = says("a", None, "tool_result", "code", about="t2", kind="label", label="used")
    plain, told = share(contributions(chain(), "c2")), share(contributions(chain(), "c2", [label]))
    assert told["t2"] > plain["t2"]
    assert told["t1"] < plain["t1"]
    ignored = share(contributions(chain(), "c2", [{**label, "label": "ignored"}]))
    assert ignored["t2"] < plain["t2"]


def test_earlier_calls_of_the_conversation_are_reached_through_the_prefix_of_the_stored_record() -> None:
    stored = [*chain(), event("u2", "user_message"), event("c3", causes=(("u2", "input"),))]
    stored[-1]["o"] = {"messages": {"prefix": "c2", "append": [{"event": "u2"}]}}
    assert "t1" in share(contributions(stored, "c3", known_links=links(stored)))
    assert {c.id: c.links for c in contributions(stored, "c3", known_links=links(stored))}["t1"] == 1
    resolved = [*stored[:-1], {**stored[-1], "o": {"messages": []}}]
    assert "t1" not in share(contributions(resolved, "c3"))
    assert "t1" in share(contributions(resolved, "c3", known_links=links(stored)))


def test_an_unknown_event_is_an_error() -> None:
    with pytest.raises(KeyError):
        contributions(chain(), "nothing")


@pytest.mark.skipif(not DATA.exists(), reason=REASON)
def test_in_recorded_runs_credit_goes_from_the_last_answer_back_to_tools_and_to_what_users_said() -> None:
    for records in read(DATA / "tau2-airline" / "gpt-4o_airline.json").values():
        steps = events(records)
        last = [e for e in steps if e["kind"] == "llm_call"][-1]
        found = contributions(steps, last["id"], annotations(records), known_links=links(steps))
        kinds = {c.kind for c in found}
        assert {"decision", "observation"} <= kinds
        assert "tool call" in kinds or all(e["kind"] != "tool_call" for e in steps[: steps.index(last)])
        assert 0.9 < sum(c.share for c in found) <= 1 + 1e-9  # what is missing are shares too small for a row


def scripted(effects: dict[str, float], n: int, seed: int = 7) -> Any:
    """Runs of an agent that succeeds with probability 0.5 plus what each part that is there adds; common seeds."""

    def rerun(without: str | None) -> list[float | None]:
        chance = random.Random(seed)
        level = 0.5 + sum(e for part, e in effects.items() if part != without)
        return [float(chance.random() < level) for _ in range(n)]

    return rerun


def test_a_part_that_helps_one_that_harms_and_one_that_does_nothing_are_told_apart() -> None:
    effects = leave_one_out(["fact", "rule", "filler"], scripted({"fact": 0.3, "rule": -0.3, "filler": 0.0}, 200))
    assert {e.part: e.state for e in effects} == {
        "fact": "helps", "rule": "harms", "filler": "no difference found"}  # fmt: skip
    assert [e.part for e in effects] == ["fact", "filler", "rule"]
    assert effect_rows(effects)[0]["part"] == "fact"


def test_parts_without_effect_are_hardly_ever_called_helpful_or_harmful() -> None:
    wrong = 0
    for seed in range(100):
        chance = random.Random(seed)

        def rerun(without: str | None, chance: random.Random = chance) -> list[float | None]:
            return [float(chance.random() < 0.5) for _ in range(40)]  # independent: the worst case for pairs

        wrong += any(e.state in ("helps", "harms") for e in leave_one_out(list("abcde"), rerun))
    assert wrong <= 12


def test_runs_nobody_can_judge_are_left_out_in_pairs_and_counted() -> None:
    with_it, without = [1, 1, None, 0, *[1] * 8], [0, None, 1, 0, *[0] * 8]
    (effect,) = leave_one_out(["a"], lambda part: without if part else with_it)
    assert (effect.difference.n, effect.unknown, effect.state) == (10, 2, "helps")


def test_a_few_runs_are_not_enough_data() -> None:
    (effect,) = leave_one_out(["a"], lambda part: [0.0] * 4 if part else [1.0] * 4)
    assert effect.state == "not enough data"


def test_runs_that_do_not_correspond_are_refused() -> None:
    with pytest.raises(ValueError, match="no pairs"):
        leave_one_out(["a"], lambda part: [1.0] if part else [1.0, 0.0])
    with pytest.raises(ValueError, match="0 or 1"):
        leave_one_out(["a"], lambda part: [0.5])
