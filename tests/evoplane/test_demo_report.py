from __future__ import annotations

from evoplane.demo.report import BadCandidate, measure_lift, shortcomings

GOOD = BadCandidate(rolled_back=True, sessions_touched=9, seconds_to_all_back=0.1)
CLEAN = {"ok": True, "events": 10, "problems": []}
POLICY = measure_lift([False] * 60 + [True] * 20, [True] * 60 + [True] * 20)
MEMORY = measure_lift([False] * 20 + [True] * 60, [True] * 80)


def test_a_demo_that_met_every_bar_has_no_shortcoming() -> None:
    assert shortcomings({"policy": POLICY, "memory": MEMORY}, GOOD, CLEAN) == []


def test_a_missing_surface_is_a_shortcoming() -> None:
    assert shortcomings({"policy": POLICY}, GOOD, CLEAN) == ["no memory change was promoted"]


def test_a_lift_that_may_be_chance_is_a_shortcoming() -> None:
    chance = measure_lift([False, True] * 10, [True, False] * 9 + [True, True])
    assert any("no certain lift" in s for s in shortcomings({"policy": POLICY, "memory": chance}, GOOD, CLEAN))


def test_a_policy_below_60_percent_is_a_shortcoming() -> None:
    weak = measure_lift([False] * 80, [True] * 40 + [False] * 40)
    assert any("not 0.6" in s for s in shortcomings({"policy": weak, "memory": MEMORY}, GOOD, CLEAN))


def test_a_slow_or_missing_rollback_is_a_shortcoming() -> None:
    lifts = {"policy": POLICY, "memory": MEMORY}
    slow = BadCandidate(rolled_back=True, sessions_touched=9, seconds_to_all_back=1.5)
    stuck = BadCandidate(rolled_back=False, sessions_touched=9, seconds_to_all_back=0.0)
    assert any("1.50 s" in s for s in shortcomings(lifts, slow, CLEAN))
    assert any("not rolled back" in s for s in shortcomings(lifts, stuck, CLEAN))


def test_an_altered_record_is_a_shortcoming() -> None:
    altered = {"ok": False, "events": 10, "problems": ["record 3 was altered"]}
    assert any("fail verification" in s for s in shortcomings({"policy": POLICY, "memory": MEMORY}, GOOD, altered))
