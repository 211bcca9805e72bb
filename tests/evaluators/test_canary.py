import random

from evaluators.canary import CanaryTest, Outcome, Scale, judge_canary, paired_differences

RULES = {"alpha": 0.05, "harm_margin": 0.2, "min_sessions": 24}


def run(champion: float, canary: float, seed: int, sessions: int = 160) -> str:
    """The first final verdict of a rollout whose weight rises from 0.2 to 0.5, looked at after every 4 sessions."""
    rng = random.Random(seed)
    test = CanaryTest(**RULES)
    for n in range(sessions):
        arm = "canary" if rng.random() < (0.2 if n < 60 else 0.5) else "champion"
        test.add([Outcome(arm, rng.random() < (canary if arm == "canary" else champion))])
        if n % 4 == 3 and (verdict := test.verdict()).state != "continue":
            return verdict.state
    return "continue"


def test_equal_canaries_are_aborted_in_at_most_five_percent_of_rollouts():
    states = [run(0.7, 0.7, seed) for seed in range(60)]
    assert states.count("abort") <= 3


def test_a_broken_canary_is_always_aborted_and_a_better_one_never():
    assert {run(0.85, 0.05, seed) for seed in range(10)} == {"abort"}
    assert "abort" not in {run(0.3, 0.85, seed) for seed in range(10)}


def test_a_canary_worse_by_the_margin_passes_in_at_most_five_percent_of_rollouts():
    states = [run(0.8, 0.6, 1000 + seed) for seed in range(40)]
    assert states.count("pass") <= 2


def test_a_better_canary_passes_only_after_the_minimum_of_sessions():
    outcomes = [Outcome(arm, arm == "canary") for _ in range(23) for arm in ("champion", "canary")]
    assert judge_canary(outcomes, **RULES).state == "continue"
    outcomes += [Outcome("champion", False), Outcome("canary", True)]
    assert judge_canary(outcomes, **RULES).state == "pass"


def test_without_traffic_nothing_is_concluded():
    assert judge_canary([], **RULES).state == "continue"


def test_failing_calls_abort_even_when_nobody_judged_them_worse():
    outcomes = [Outcome(arm, True, error=arm == "canary") for _ in range(25) for arm in ("champion", "canary")]
    verdict = judge_canary(outcomes, **RULES)
    assert (verdict.state, verdict.reason.split(":")[0]) == ("abort", "calls fail more often")


def test_each_canary_session_is_compared_with_the_champions_since_the_last_comparison():
    seen = [("champion", 1.0), ("champion", 0.0), ("canary", 1.0), ("canary", 0.0), ("champion", 1.0)]
    assert paired_differences(seen) == [0.5, -1.0]


def fed(n: int, canary: dict, champion: dict | None = None, **rules: object) -> CanaryTest:
    """A test that saw `n` sessions of either arm, all alike."""
    test = CanaryTest(**{**RULES, **rules})
    test.add(
        [Outcome(arm, **{"success": 1.0, **given}) for _ in range(n)
         for arm, given in (("champion", champion or {}), ("canary", canary))]
    )  # fmt: skip
    return test


def test_one_breach_of_safety_aborts_at_once_before_any_session_is_judged():
    test = CanaryTest(**RULES)
    test.add([Outcome("canary", None, breach="a refund above the limit was paid")])
    verdict = test.verdict()
    assert (verdict.state, verdict.breach, verdict.canary) == ("abort", True, 0)
    assert "refund above the limit" in verdict.reason


def test_a_breach_by_the_champion_is_not_the_canarys():
    test = CanaryTest(**RULES)
    test.add([Outcome("champion", None, breach="somebody else's trouble")])
    assert test.verdict().state == "continue"


def test_every_metric_can_abort_by_itself():
    scales = {"latency": Scale(1000.0), "cost": Scale(100.0)}
    worse = {
        "users correct it": {"corrected": True},
        "tool calls fail": {"tool_failed": True},
        "guardrails are hit": {"guardrail_hit": True},
        "answers take longer": {"latency_ms": 900.0},
        "sessions cost more": {"cost": 95.0},
    }
    usual = {"corrected": False, "tool_failed": False, "guardrail_hit": False, "latency_ms": 200.0, "cost": 20.0}
    assert fed(40, usual, usual, scales=scales).verdict().state == "pass"
    for words, harm in worse.items():
        verdict = fed(40, {**usual, **harm}, usual, scales=scales).verdict()
        assert (verdict.state, verdict.reason.startswith(words)) == ("abort", True)


def test_a_little_slower_is_no_harm():
    scales = {"latency": Scale(1000.0, tolerance=1.5)}
    assert fed(60, {"latency_ms": 260.0}, {"latency_ms": 200.0}, scales=scales).verdict().state == "pass"


def test_harm_to_one_tenant_aborts_although_the_others_gain():
    test = CanaryTest(**RULES)
    for _ in range(60):
        for arm in ("champion", "canary"):
            test.add([Outcome(arm, float(arm == "canary"), tenant="fabrikam")])
            test.add([Outcome(arm, float(arm == "champion"), tenant="northwind")])
    verdict = test.verdict()
    assert verdict.state == "abort" and "for tenant northwind" in verdict.reason


def test_a_session_is_compared_within_its_own_tenant_so_that_unequal_weights_do_not_mislead():
    rng = random.Random(3)
    test = CanaryTest(**RULES)
    for _ in range(600):
        tenant, level, weight = rng.choice([("easy", 0.95, 0.1), ("hard", 0.3, 0.8)])
        arm = "canary" if rng.random() < weight else "champion"
        test.add([Outcome(arm, float(rng.random() < level), tenant=tenant)])
    assert test.verdict().state != "abort"  # pooled without strata the canary would look 40 points worse
