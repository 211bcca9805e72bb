from evaluators import corrections, dataset, facts, tasks
from evaluators.facts import Fact


def test_facts_are_read_from_what_people_write():
    expected = Fact("returns window", "45 days")
    for said in (
        "The returns window is 45 days.",
        "No, the returns window is now 45 days.",
        "That's wrong. Our returns window is 45 days, not 30 days.",
        "the returns window is 45 days now",
    ):
        assert facts.stated_fact(said) == expected, said
    assert facts.stated_fact("That is not what I asked.") is None


def test_order_numbers_are_not_quantities():
    assert facts.quantities("Order A9221 takes 45 days") == [("45", "day")]


def test_a_fact_needs_three_sessions_and_no_majority_against_it(case):
    def said(value, n, **given):
        return [case(corrections=[f"The warranty is {value}."], **given) for _ in range(n)]

    assert corrections.established(said("12 months", 2)) == []
    assert corrections.established(said("12 months", 5, session_id="se_one")) == []
    (known,) = corrections.established(said("12 months", 3))
    assert known.fact.value == "12 months" and len(known.provenance) == 3
    assert (
        corrections.established(said("6 months", 3) + said("12 months", 3) + said("6 months", 3))[0].fact.value
        == "6 months"
    )


def test_a_newer_fact_replaces_an_older_one_and_what_was_right_becomes_outdated(case):
    old = case(
        "How long is the returns window?", text="The returns window is 30 days.", reward=1.0, at="2025-01-01T00:00:00Z"
    )
    before = [case(corrections=["The returns window is 30 days."]) for _ in range(5)]
    after = [case(corrections=["The returns window is 45 days."]) for _ in range(3)]
    (known,) = corrections.established(before + after)
    assert known.fact.value == "45 days" and known.contradicted == 0
    assert corrections.outdated(old, [known])
    assert not corrections.outdated(case("How long is the warranty?", text="30 days", reward=1.0), [known])


def test_requests_that_differ_in_entities_are_one_task():
    keys = {tasks.task_key(t) for t in ("Send order A12 to Oslo instead.", "Send order B99 to New York instead.")}
    assert keys == {"send order # to @ instead ."}
    clusters = tasks.cluster(["what warranty does the lamp have ?", "what warranty does the tent have ?", "stop #"])
    assert len(set(clusters.values())) == 2


def test_training_and_held_out_share_neither_task_nor_entity(case, demonstrated):
    texts = [
        "Where is order {}?",
        "Can you track {} for me?",
        "I am still waiting for {} here.",
        "Has {} been sent yet?",
    ]
    cases = [
        case(text.format(f"A{i}{n}0"), demonstration=demonstrated("track_order", order_id=f"A{i}{n}0"))
        for i, text in enumerate(texts)
        for n in range(10, 16)
    ]
    shared = case("Where is order A3100?", demonstration=demonstrated("track_order", order_id="A3100"))
    split = dataset.split([*cases, shared], share=0.25)
    chosen = dataset.select([*cases, shared], split, [], limit=100)
    assert len(split.heldout) == 1 and chosen.train and chosen.heldout
    assert not {c.task_key for c in chosen.train} & {c.task_key for c in chosen.heldout}
    heldout_entities = {e for c in [*cases, shared] if split.is_held_out(c) for e in c.entities}
    assert not heldout_entities & {e for c in chosen.train for e in c.entities}


def test_demonstrations_that_answer_from_nothing_are_not_trained_on(case):
    answer = {"role": "assistant", "content": "The warranty is 12 months."}
    blind = case(demonstration=answer)
    informed = case("What warranty do you give?", demonstration=answer, overlay_text="- The warranty is 12 months.")
    nobody = dataset.Split(clusters={}, heldout=frozenset(), heldout_entities=frozenset())
    chosen = dataset.select([blind, informed], nobody, [], limit=10)
    assert chosen.train == (informed,)
    assert chosen.dropped == {"answer is not grounded in the context": 1}


def test_ineligible_trajectories_never_reach_a_training_set(case, demonstrated):
    nobody = dataset.Split(clusters={}, heldout=frozenset(), heldout_entities=frozenset())
    refused = case("Stop A10 please.", demonstration=demonstrated("cancel_order", order_id="A10"), trainable=False)
    assert dataset.select([refused], nobody, [], limit=10).train == ()
