"""The rule on real interventions with known outcomes: it promotes the one that helped, and holds the others."""

from __future__ import annotations

import json

import pytest

from evaluators import replay
from evaluators.cases import Action
from evaluators.decision import NO_OP, Evaluated, decide
from evoplane.settings import Settings
from tests.evaluators.conftest import make_case
from tests.shared import DATA, REASON

pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason=REASON)
CONFIG = Settings()


def lines(name: str, key: str, value: str) -> dict[str, bool]:
    rows = [json.loads(line) for line in (DATA / name).read_text().splitlines()]
    return {row[key]: bool(row[value]) for row in rows}


def simulations(name: str) -> dict[str, bool]:
    found = json.loads((DATA / name).read_text())["simulations"]
    return {str(run["task_id"]): run["reward_info"]["reward"] > 0.5 for run in found}


KNOWN = {
    "SFT, retail": ("policy", lambda: [simulations(f"tau2-retail/gpt-4.1{v}_retail.json") for v in ("", "-sft")]),
    "SFT, airline": ("policy", lambda: [simulations(f"tau2-airline/gpt-4.1{v}_airline.json") for v in ("", "-sft")]),
    "skill, small model": ("skill", lambda: [lines(f"gskill-jinja/haiku_{v}-skill.jsonl", "instance_id", "test_passed")
                                             for v in ("no", "with")]),
    "skill, large model": ("skill", lambda: [lines(f"gskill-jinja/sonnet_{v}-skill.jsonl", "instance_id", "test_passed")
                                             for v in ("no", "with")]),
    "verbal reflections": ("memory", lambda: [lines(f"reflexion-code/humaneval_py_{v}.jsonl", "task_id", "is_solved")
                                              for v in ("simple", "reflexion")]),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "gained", "lost", "says"),
    [
        ("SFT, retail", 6, 6, "no gain seen"),
        ("SFT, airline", 6, 3, "not enough evidence"),
        ("skill, small model", 4, 1, "not enough evidence"),
        ("skill, large model", 0, 0, "no"),
        ("verbal reflections", 10, 1, "largest lower bound"),
    ],
)
def test_a_known_intervention_is_promoted_only_where_it_helped_for_sure(name, gained, lost, says):
    surface, read = KNOWN[name]
    before, after = read()
    pairs = [(old, after[id]) for id, old in sorted(before.items())]
    assert (pairs.count((False, True)), pairs.count((True, False))) == (gained, lost)
    cases = [make_case(reward=float(old), text="12 months", corrections=() if old else ["The warranty is 12 months."])
             for old, _ in pairs]  # fmt: skip
    answers = {c.key: Action("12 months" if new else "9 days") for c, (_, new) in zip(cases, pairs, strict=True)}
    cost = CONFIG.evolve.policy_cost if surface == "policy" else CONFIG.evolve.memory_cost
    decision = decide(
        [Evaluated(name, surface, cost, replay.compare(cases, answers))], max_regression=CONFIG.evolve.max_regression
    )
    row = next(r for r in decision.ranking if r.name == name)
    assert (decision.chosen == name) == (name == "verbal reflections")
    assert row.why.startswith(says) and (decision.chosen == name or decision.ranking[0].name == NO_OP)
