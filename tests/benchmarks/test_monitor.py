"""The benchmark's own parts: the simulated model reads the request and nothing else; figures say what happened."""

from __future__ import annotations

import json
import random

import pytest

from benchmarks.monitor.language import Meaning, understood
from benchmarks.monitor.life import Ended
from benchmarks.monitor.model import Abilities, Model
from benchmarks.monitor.run import figures, write
from benchmarks.monitor.scenarios import SCENARIOS
from examples.support.scenario import requests
from examples.support.shop import TOOLS
from registry.manifest import Guardrail, Manifest, MemoryItem, Policy, Skill, ToolOverlay
from services.router.overlays import apply_overlays

POLICY = Policy(base="m", served_name="m")


PLAIN = Manifest(policy=POLICY)


def asked(text: str, manifest: Manifest = PLAIN, tools=TOOLS) -> dict:
    said = [{"role": "system", "content": "You are the support agent of Lumen."}, {"role": "user", "content": text}]
    request = {"model": "m", "tools": list(tools), "seed": 1, "messages": said}
    return apply_overlays(request, manifest, "lumen")[0]


def calls(message: dict) -> list[tuple[str, dict]]:
    return [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in message.get("tool_calls") or []]


def answers(request: dict, n: int = 40, **given) -> list[dict]:
    return [Model({"": Abilities(1.0)}, seed=seed, **given).answer(request) for seed in range(n)]


def test_every_customer_is_understood():
    for request in [*requests("train", 200, 1), *requests("heldout", 100, 2)]:
        meaning = understood(request.text)
        assert (meaning.tool, meaning.topic) == (request.tool or "", request.topic or "")
        assert not request.tool or dict(request.arguments)["order_id"] == meaning.order
    assert understood("Sing me a song") == Meaning()


def test_it_knows_a_fact_only_if_the_prompt_says_so():
    item = MemoryItem(id="1", tenant="lumen", topic="warranty", text="The warranty is 24 months.", trust="vetted")
    known = Manifest(policy=POLICY, memory=(item,))
    question = "How long is the warranty?"
    assert all("24 months" in a["content"] for a in answers(asked(question, known)))
    assert not any("24 months" in a["content"] for a in answers(asked(question)))


def test_it_routes_by_what_the_tools_say_of_themselves_and_hints_change_that():
    wrong = [{**t, "function": {**t["function"], "description": {
        "cancel_order": "stop an order, or take goods back and return them", "start_return": "handle an item",
    }.get(t["function"]["name"], t["function"]["description"])}} for t in TOOLS]  # fmt: skip
    text = "Return A1234 please, it came damaged."
    assert {calls(a)[0][0] for a in answers(asked(text, tools=wrong))} == {"cancel_order"}
    hints = (
        ToolOverlay(name="start_return", hint="Use this for requests about return, damaged, not cancel_order."),
        ToolOverlay(name="cancel_order", hint="Not for requests about return, damaged: use start_return."),
    )
    hinted = Manifest(policy=POLICY, tools=hints)
    assert {calls(a)[0][0] for a in answers(asked(text, hinted, wrong))} == {"start_return"}


def test_it_keeps_to_a_pattern_it_is_shown():
    shown = Manifest(policy=POLICY, tools=(
        ToolOverlay(name="cancel_order", arguments={"order_id": {"pattern": "^ORD\\-[A-Z]\\d{4}$"}}),))  # fmt: skip
    given = [calls(a)[0][1]["order_id"] for a in answers(asked("Cancel my order A1234.", shown))]
    assert given.count("ORD-A1234") > 30 and "A1234" in {calls(a)[0][1]["order_id"] for a in answers(asked(
        "Cancel my order A1234."))}  # fmt: skip


def test_it_follows_steps_it_is_shown():
    steps = ("Call track_order with the order number.", "Call cancel_order with the order number.")
    shown = Manifest(policy=POLICY, skills=(Skill(id="s", name="cancel", when="cancel order", steps=steps),))
    done = [[n for n, _ in calls(a)] for a in answers(asked("Cancel my order A1234.", shown))]
    assert done.count(["track_order", "cancel_order"]) > 30
    assert all(
        n == ["cancel_order"] for n in [[n for n, _ in calls(a)] for a in answers(asked("Cancel my order A1234."))]
    )


def test_it_does_not_do_what_the_prompt_forbids():
    rule = Guardrail(id="g", text="Never cancel an order without the approval of a supervisor.")
    told = answers(asked("Cancel my order A1234.", Manifest(policy=POLICY, guardrails=(rule,))))
    assert sum("not allowed" in (a["content"] or "") for a in told) > 30


def ended(scenario: str, right: str, chosen: str, seed: int = 0) -> Ended:
    return Ended(scenario, seed, right, chosen, "", "", (), ())


def test_figures_count_what_was_chosen(tmp_path):
    lives = [ended(s.name, s.right, s.right) for s in SCENARIOS] + [ended("noise only", "no-op", "memory")]
    found = figures(lives)
    assert found["right_surface_share"] == pytest.approx(10 / 11, abs=1e-3) and found["quiet_share"] == 0.667
    assert found["confusion"]["noise only"]["memory"] == 1 and len(found["misses"]) == 1
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- confusion: evoplane bench monitor --write -->\nold\n<!-- /confusion -->\nb\n")
    write(found, page)
    assert (
        "old" not in page.read_text() and "| noise only | 1 |" in page.read_text() and page.read_text().endswith("b\n")
    )
    with pytest.raises(ValueError, match="no place"):
        write(found, tmp_path / "page.md") if page.write_text("nothing") else None


def test_every_scenario_counts_alike_in_the_share_that_is_right():
    lives = [ended(s.name, s.right, "memory") for s in SCENARIOS]
    more = [ended("noise only", "no-op", "no-op", seed) for seed in range(1, 40)]
    found = figures([*lives, *more])
    assert (found["right_surface_share"], found["lives"]) == (0.1, 10)
    assert (found["quiet_share"], found["quiet_lives"]) == (round(39 / 41, 3), 41)


def test_worlds_differ_by_seed_and_repeat_by_seed():
    for scenario in SCENARIOS:
        twice = [scenario.world(random.Random(f"{scenario.name}/3")) for _ in range(2)]
        assert twice[0].phases == twice[1].phases and twice[0].rule == twice[1].rule
