"""Skills are mined where people show a procedure, patched where a step is missing, retired where they harm."""

from __future__ import annotations

import msgspec

from evaluators.cases import Case
from evaluators.intervals import rate_difference, wilson
from evaluators.skills import utility
from registry.manifest import Skill
from tests.evaluators.conftest import make_case
from tests.surfaces.making import applied, asked, evidence, manifest, ordinary, propose, sent, showing, step

STEPS = [
    "Call get_order with order_id from the request.",
    "Call refund with amount from the result of get_order, order_id from the request.",
]


def refunds(n: int, tenants: tuple[str, ...] = ("northwind", "lumen"), shown: bool = True, **given) -> list[Case]:
    """People ask for their money; the agent refunds without looking the order up, and people show both steps."""
    asks = ("Refund order {} please.", "I'd like a refund for {}.", "Money back for my refund {}!", "A refund of {}?")
    cases = []
    for number in range(n):
        order, amount = f"A{1000 + number}", f"{number + 10}.50"
        calls = (("get_order", {"order_id": order}), ("refund", {"order_id": order, "amount": amount}))
        looked_up = step("get_order", text=f'{{"total": "{amount}"}}', order_id=order)
        if shown:
            told = {
                "reward": 0.0,
                "calls": [("refund", {"order_id": order, "amount": "0"})],
                "demonstration": showing(*calls),
                "demonstration_id": f"an_{order}",
                "steps": (looked_up,),
            }
        else:
            told = {"reward": 1.0, "calls": [calls[0]], "steps": (looked_up, step("refund", **calls[1][1]))}
        cases.append(
            make_case(asks[number % len(asks)].format(order), tenant=tenants[number % len(tenants)], **told, **given)
        )
    return cases


def left_out(n: int) -> list[Case]:
    return [
        msgspec.structs.replace(
            c, action=make_case(calls=[("refund", {"order_id": "A1", "amount": "0"})]).action, steps=()
        )
        for c in refunds(n)
    ]


def test_a_procedure_people_show_becomes_steps_that_say_where_arguments_come_from() -> None:
    seen = evidence([*refunds(12), *ordinary()])
    (proposal,) = propose("skill", seen)
    version = applied(seen, proposal)
    (skill,) = version.skills
    assert list(skill.steps) == STEPS
    assert (skill.when, skill.trust, skill.tenant) == ("refund", "candidate", msgspec.UNSET)
    assert skill.provenance
    body = sent(version, asked("Can I have a refund for A77?"))
    assert body["messages"][0]["content"] == f"Procedure (refund: get_order then refund):\n1. {STEPS[0]}\n2. {STEPS[1]}"
    assert sent(version, asked("Where is my parcel?")) == asked("Where is my parcel?")


def test_its_tests_are_decisions_it_was_not_learned_from() -> None:
    cases = [*refunds(12), *ordinary()]
    (proposal,) = propose("skill", evidence(cases))
    sessions = {c.key: c.session for c in cases}
    assert proposal.tests
    assert not {sessions[id] for id in proposal.tests} & set(proposal.source_sessions)


def test_a_procedure_is_mined_from_successes_when_it_is_certain_to_go_better() -> None:
    good = refunds(20, shown=False)
    bad = [
        make_case(
            f"Refund order A{n} please.",
            reward=0.0,
            calls=[("refund", {"order_id": f"A{n}"})],
            tenant=("northwind", "lumen")[n % 2],
        )
        for n in range(3000, 3010)
    ]
    (proposal,) = propose("skill", evidence([*good, *bad, *ordinary()]))
    assert proposal.content["skills"][0]["steps"] == STEPS
    assert propose("skill", evidence([*good, *bad[:2], *ordinary()])) == []


def test_work_that_goes_well_or_fails_at_random_makes_no_skill() -> None:
    assert propose("skill", evidence([*refunds(20, shown=False), *ordinary()])) == []
    for seed in range(10):
        assert propose("skill", evidence(ordinary(120, failing=0.3, seed=seed))) == []


def test_what_one_tenant_or_one_user_does_stays_theirs() -> None:
    seen = evidence([*refunds(12, ("lumen",)), *ordinary()])
    (proposal,) = propose("skill", seen)
    version = applied(seen, proposal)
    assert version.skills[0].tenant == "lumen"
    assert "Procedure" in str(sent(version, asked("refund A1"), "lumen"))
    assert sent(version, asked("refund A1"), "northwind") == asked("refund A1")
    seen = evidence([*refunds(12, ("lumen",), params={"user": "ann"}), *ordinary()])
    version = applied(seen, propose("skill", seen)[0])
    assert version.skills[0].subject == "ann"
    assert sent(version, asked("refund A1", user="bob"), "lumen") == asked("refund A1", user="bob")
    assert "Procedure" in str(sent(version, asked("refund A1", user="ann"), "lumen"))


def test_a_skill_that_lacks_a_step_is_patched_under_its_name() -> None:
    short = Skill(id="s1", name="refunds", when="refund", steps=("Call refund.",), trust="vetted")
    seen = evidence([*left_out(12), *ordinary()], manifest(skills=(short,)))
    (proposal,) = propose("skill", seen)
    (skill,) = applied(seen, proposal).skills
    assert (skill.id, skill.name, len(skill.steps)) == ("s1", "refunds", 2)
    assert "- 1. Call refund." in proposal.diff


def test_a_skill_counts_its_uses_and_a_harmful_one_is_retired() -> None:
    skill = Skill(id="s1", name="parcels", when="parcel", steps=("Wait.",))
    shown = [
        make_case(f"My parcel {n}?", reward=float(n % 5 == 0), overlay_text=f"\n{skill.heading}\n1. Wait.")
        for n in range(20)
    ]
    without = [make_case(f"My parcel {n}?", reward=float(n % 5 != 0)) for n in range(20)]
    counted = utility(skill, [*shown, *without])
    assert (counted.used, counted.succeeded, counted.without.n) == (20, 4, 20)
    assert counted.harmful
    assert not utility(skill, shown).harmful, "nothing to compare with is not harm"
    seen = evidence([*shown, *without], manifest(skills=(skill,)))
    retired = next(p for p in propose("skill", seen) if p.content["retire"])
    assert applied(seen, retired).skills == ()


def test_the_difference_of_two_rates_is_newcombes_example() -> None:
    # Newcombe 1998, table II (a): 56/70 - 48/80, method 10
    found = rate_difference(wilson(56, 70), wilson(48, 80))
    assert (round(found.low, 4), round(found.high, 4)) == (0.0524, 0.3339)
