"""Memory: inserted, updated, retired; chosen otherwise; and whose it is."""

from __future__ import annotations

from typing import Any

from evaluators.cases import Case
from registry.manifest import MemoryItem
from tests.evaluators.conftest import make_case
from tests.surfaces.making import applied, asked, evidence, manifest, ordinary, propose, sent


def item(topic: str, text: str, **given: Any) -> MemoryItem:
    return MemoryItem(id=f"mem_{topic}", tenant="northwind", topic=topic, text=text, trust="vetted", **given)


def corrected(*texts: str, request: str = "How long is the warranty?", **given: Any) -> list[Case]:
    return [make_case(request, corrections=[text], **given) for text in texts]


def test_a_fact_one_user_states_is_theirs_and_a_fact_several_state_is_everybodys() -> None:
    seen = evidence(corrected(*["The warranty is 24 months."] * 4, params={"user": "mallory"}))
    version = applied(seen, propose("memory", seen)[0])
    assert version.memory[0].subject == "mallory"
    mine, others = asked("the warranty?", user="mallory"), asked("the warranty?", user="ann")
    assert "24 months" in str(sent(version, mine))
    assert sent(version, others) == others
    both = [*seen.cases, *corrected("The warranty is 24 months.", params={"user": "ann"})]
    version = applied(evidence(both), propose("memory", evidence(both))[0])
    assert "24 months" in str(sent(version, others))


def test_a_users_own_fact_takes_nobody_elses_place() -> None:
    known = manifest(memory=(item("warranty", "The warranty is 12 months."),))
    seen = evidence(corrected(*["The warranty is 24 months."] * 4, params={"user": "mallory"}), known)
    version = applied(seen, propose("memory", seen)[0])
    assert "12 months" in str(sent(version, asked("the warranty?", user="ann")))


def test_what_people_contradict_without_agreeing_is_retired() -> None:
    known = manifest(memory=(item("warranty", "The warranty is 12 months."), item("fee", "The fee is 3 euros.")))
    seen = evidence(corrected(*(f"The warranty is {n} months." for n in (24, 36, 18, 6))), known)
    (proposal,) = propose("memory", seen)
    assert proposal.diff == "- northwind: The warranty is 12 months.  (contradicted in 4 sessions)"
    version = applied(seen, proposal)
    assert [i.topic for i in version.memory] == ["fee"]
    assert sent(version, asked("the warranty?")) == asked("the warranty?")


def test_what_few_contradict_or_most_confirm_stays() -> None:
    known = manifest(memory=(item("warranty", "The warranty is 12 months."),))
    assert (
        propose("memory", evidence(corrected("The warranty is 24 months.", "The warranty is 9 months."), known)) == []
    )
    confirmed = corrected(*["The warranty is 12 months."] * 3, *(f"The warranty is {n} months." for n in (1, 2, 3)))
    assert propose("memory", evidence(confirmed, known)) == []


def test_an_item_that_was_there_and_not_shown_lowers_the_share_of_words_it_takes() -> None:
    known = manifest(memory=(item("free shipping minimum order", "The free shipping minimum order is 40 euros."),))
    said = ["The free shipping minimum order is 40 euros."] * 4
    seen = evidence(corrected(*said, request="When is shipping on you?"), known)
    (proposal,) = propose("memory", seen)
    assert proposal.diff == "- overlap 0.5\n+ overlap 0.25"
    version = applied(seen, proposal)
    assert "40 euros" in str(sent(version, asked("When is shipping on you?")))
    assert sent(version, asked("Where are you?")) == asked("Where are you?")


def test_an_item_that_others_crowded_out_raises_the_number_shown() -> None:
    items = [item(f"warranty {n}", f"The warranty {n} is {n} months.", created_at="2") for n in ("a b", "c d", "e f")]
    known = manifest(memory=(*items, item("warranty of lamps", "The warranty of lamps is 9 months.", created_at="1")))
    said = ["The warranty of lamps is 9 months."] * 4
    request = "What warranty: a b, c d, e f, lamps?"
    seen = evidence(corrected(*said, request=request), known)
    (proposal,) = propose("memory", seen)
    assert proposal.diff == "- items 3\n+ items 4"


def test_what_was_shown_calls_for_no_other_retrieval_and_noise_for_nothing() -> None:
    known = manifest(memory=(item("warranty", "The warranty is 12 months."),))
    assert propose("memory", evidence(corrected(*["The warranty is 12 months."] * 5), known)) == []
    for seed in range(5):
        assert propose("memory", evidence(ordinary(120, failing=0.3, seed=seed), known)) == []


def test_a_proposal_holds_only_so_many_facts() -> None:
    topics = ["warranty", "fee", "deposit", "window", "minimum", "limit", "price", "delay", "surcharge", "discount"]
    cases = [case for topic in topics for case in corrected(*[f"The {topic} is 5 euros."] * 3)]
    (proposal,) = propose("memory", evidence(cases))
    assert len(proposal.content["items"]) == 8


def test_another_tenants_session_of_the_same_name_does_not_make_a_users_fact_everybodys() -> None:
    told = [
        make_case(session_id=f"s{n}", corrections=["The warranty is 24 months."], params={"user": "mallory"})
        for n in range(4)
    ]
    theirs = [make_case("Where is it?", session_id=f"s{n}", tenant="lumen") for n in range(4)]
    seen = evidence([*told, *theirs])
    assert applied(seen, propose("memory", seen)[0]).memory[0].subject == "mallory"
