import random

from evaluators.canary import Outcome, judge_canary, paired_differences

RULES = {"alpha": 0.05, "harm_margin": 0.2, "min_sessions": 24}


def run(champion: float, canary: float, seed: int, sessions: int = 160) -> str:
    """The first final verdict of a rollout whose weight rises from 0.2 to 0.5, looked at after every 4 sessions."""
    rng = random.Random(seed)
    outcomes: list[Outcome] = []
    for n in range(sessions):
        arm = "canary" if rng.random() < (0.2 if n < 60 else 0.5) else "champion"
        outcomes.append(Outcome(arm, rng.random() < (canary if arm == "canary" else champion)))
        if n % 4 == 3 and (verdict := judge_canary(outcomes, **RULES)).state != "continue":
            return verdict.state
    return "continue"


def test_equal_canaries_are_aborted_in_at_most_five_percent_of_rollouts():
    states = [run(0.7, 0.7, seed) for seed in range(200)]
    assert states.count("abort") <= 10


def test_a_broken_canary_is_always_aborted_and_a_better_one_never():
    assert {run(0.85, 0.05, seed) for seed in range(30)} == {"abort"}
    assert "abort" not in {run(0.3, 0.85, seed) for seed in range(30)}


def test_a_canary_worse_by_the_margin_passes_in_at_most_five_percent_of_rollouts():
    states = [run(0.8, 0.6, 1000 + seed) for seed in range(100)]
    assert states.count("pass") <= 5


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
