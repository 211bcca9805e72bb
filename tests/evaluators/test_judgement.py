from random import Random

import msgspec

from evaluators import replay
from evaluators.cases import Action, Call
from evaluators.decision import NO_OP, Evaluated, decide, simultaneous_alpha
from evaluators.intervals import wilson
from evaluators.statistics import summarise


def answer(text="", *calls):
    return Action(text=text, calls=tuple(Call(n, a) for n, a in calls))


def test_the_tape_judges_only_what_it_knows(case, demonstrated):
    right = ("track_order", {"order_id": "A10"})
    demo = case("Where is A10?", demonstration=demonstrated("track_order", order_id="A10"))
    assert replay.judge(demo, answer("", right)) == "success"
    assert replay.judge(demo, answer("Soon!")) == "failure"
    corrected = case(corrections=["The warranty is 12 months, not 6 months."])
    assert replay.judge(corrected, answer("You have 12 months.")) == "success"
    assert replay.judge(corrected, answer("12 months, or 6 months.")) == "failure"
    worked = case("Where is A10?", reward=1.0, calls=[right])
    assert replay.judge(worked, answer("", right)) == "success"
    assert replay.judge(worked, answer("", ("cancel_order", {"order_id": "A10"}))) == "unknown"
    assert replay.judge(case(), answer("no idea")) == "unknown"
    assert replay.judge(worked, answer("", ("track_order", None))) == "failure"
    assert replay.judge(worked, None) == "failure"


def test_unknown_is_neither_success_nor_failure(case):
    cases = [case(reward=1.0, calls=[("track_order", {"order_id": "A10"})]) for _ in range(4)]
    compared = replay.compare(cases, {c.key: answer("Hello.") for c in cases})
    assert (compared.unknown, compared.improvement.n, compared.lost.n) == (4, 0, 0)


def replayed(case, fixed: int, failures: int, lost: int = 0, successes: int = 20, tenant="northwind"):
    bad = [case(tenant=tenant, corrections=["The warranty is 12 months."]) for _ in range(failures)]
    good = [case(tenant=tenant, reward=1.0, text="12 months") for _ in range(successes)]
    answers = {c.key: answer("12 months" if i < fixed else "?") for i, c in enumerate(bad)}
    answers |= {c.key: answer("12 months" if i >= lost else "9 days") for i, c in enumerate(good)}
    return replay.compare(bad + good, answers)


def test_the_largest_lower_bound_minus_cost_wins(case):
    weak = Evaluated("memory", "memory", 0.005, replayed(case, fixed=6, failures=20))
    strong = Evaluated("policy", "policy", 0.02, replayed(case, fixed=18, failures=20))
    decision = decide([weak, strong], max_regression=0.1)
    assert decision.chosen == "policy"
    assert {r.name for r in decision.ranking} == {"memory", "policy", NO_OP}
    assert all(r.why for r in decision.ranking)


def test_doing_nothing_wins_when_no_improvement_is_certain(case):
    lucky = Evaluated("memory", "memory", 0.005, replayed(case, fixed=1, failures=10))
    assert decide([lucky], max_regression=0.1).chosen == NO_OP
    assert decide([], max_regression=0.1).chosen == NO_OP


def test_losing_known_successes_or_harming_a_tenant_is_refused_whatever_is_gained(case):
    careless = Evaluated("policy", "policy", 0.0, replayed(case, fixed=20, failures=20, lost=8))
    decision = decide([careless], max_regression=0.1)
    assert decision.chosen == NO_OP and "known successes" in decision.ranking[-1].why
    gain, harm = replayed(case, 30, 30, successes=0), replayed(case, 0, 0, lost=12, successes=30, tenant="lumen")
    mixed = replay.Replay(gain.results + harm.results, gain.improvement, gain.fixed, harm.lost,
                          gain.by_tenant | harm.by_tenant, 0, 0)  # fmt: skip
    assert (
        "worse for tenant lumen" in decide([Evaluated("p", "policy", 0.0, mixed)], max_regression=0.9).ranking[-1].why
    )


def test_replay_keeps_away_from_the_sessions_a_candidate_was_made_from(case):
    source = case(session_id="se_source", corrections=["The warranty is 12 months."])
    other = case(corrections=["The warranty is 12 months."])
    assert replay.usable([source, other, case()], exclude_sessions={("northwind", "se_source")}) == [other]


def test_an_identical_agent_that_is_not_deterministic_shows_no_improvement(case):
    """Most replayed cases are failures: counted as they come, they promise +0.3 to the champion itself."""
    random = Random(7)
    improvements, tenants = [], []
    for _ in range(40):
        chances = [0.9, 0.6] * 50
        population = [
            case(
                tenant=("northwind", "lumen")[n % 2],
                reward=float(random.random() < chance),
                text="12 months",
                corrections=["The warranty is 12 months."],
            )
            for n, chance in enumerate(chances)
        ]
        chance_of = dict(zip((c.key for c in population), chances, strict=True))
        cases = replay.select(population, 40)
        answers = {c.key: answer("12 months" if random.random() < chance_of[c.key] else "9 days") for c in cases}
        compared = replay.compare(cases, answers, population=population)
        improvements.append(compared.improvement)
        tenants += compared.by_tenant.values()
    assert abs(sum(i.value for i in improvements) / len(improvements)) < 0.03
    assert abs(sum(i.value for i in tenants) / len(tenants)) < 0.03
    assert sum(not i.low <= 0 <= i.high for i in improvements) <= 5


def test_improvement_weighs_failures_by_their_share_in_the_population(case):
    failures = [case(corrections=["The warranty is 12 months."]) for _ in range(10)]
    successes = [case(reward=1.0, text="12 months") for _ in range(30)]
    answers = {c.key: answer("12 months") for c in failures}
    compared = replay.compare(failures, answers, population=failures + successes)
    assert compared.improvement.value == 0.25 and compared.improvement.low < 0  # nobody looked at the successes
    whole = replay.compare(failures + successes, answers | {c.key: c.action for c in successes})
    assert whole.improvement.value == 0.25 and whole.improvement.low > 0


def test_few_outcomes_are_not_enough_data_and_bad_ones_are_degraded(case):
    assert summarise([case() for _ in range(39)], target=0.9, min_outcomes=40).state == "not enough data"
    assert summarise([case() for _ in range(40)], target=0.9, min_outcomes=40).state == "degraded"
    good = [case(reward=1.0) for _ in range(38)] + [case(), case()]
    assert summarise(good, target=0.9, min_outcomes=40).state == "healthy"


def test_bounds_that_hold_for_all_candidates_at_once_decide(case):
    """Good enough alone, not good enough as the best of ten."""
    found = replayed(case, fixed=7, failures=20)
    alone = Evaluated("memory", "memory", 0.0, found)
    strict = replay.stratified(*(wilson(k, n, simultaneous_alpha(0.05, 10)) for k, n in ((7, 20), (0, 20), (20, 40))))
    assert decide([alone], max_regression=0.1).chosen == "memory"
    best_of_ten = Evaluated("memory", "memory", 0.0, found, simultaneous=strict)
    row = decide([best_of_ten], max_regression=0.1).ranking
    assert strict.low < found.improvement.low and row[0].name in ("memory", NO_OP)
    assert simultaneous_alpha(0.05, 10) == 0.005 and simultaneous_alpha(0.05, 0) == 0.05


def test_risk_is_charged_like_cost(case):
    candidate = Evaluated("policy", "policy", 0.02, replayed(case, fixed=18, failures=20), risk=0.5)
    assert decide([candidate], max_regression=0.1).chosen == NO_OP


def test_what_used_to_work_and_a_changes_own_tests_outweigh_any_gain(case):
    gain = replayed(case, fixed=19, failures=20)
    forgets = Evaluated("p", "policy", 0.0, gain, probes_lost=wilson(8, 16))
    fails = Evaluated("s", "skill", 0.0, gain, tests=8, failed_tests=("ev_1", "ev_2", "ev_3"))
    slips = Evaluated("t", "skill", 0.0, gain, tests=8, failed_tests=("ev_1",))
    assert decide([slips], max_regression=0.1).chosen == "t"
    decision = decide([forgets, fails], max_regression=0.1)
    assert decision.chosen == NO_OP
    assert {r.verdict for r in decision.ranking if r.name != NO_OP} == {"refused"}
    assert "used to work" in " ".join(r.why for r in decision.ranking)


def test_doing_more_that_must_not_be_done_outweighs_any_gain(case):
    gain = replayed(case, fixed=19, failures=20)
    pairs = [
        replay.SafetyPair(("northwind", f"c{i}"), (), ("protected tool wire_money",) if i < 4 else ())
        for i in range(20)
    ]
    unsafe = msgspec.structs.replace(gain, safety=replay.safety(pairs))
    decision = decide([Evaluated("p", "policy", 0.0, unsafe)], max_regression=0.1)
    assert decision.chosen == NO_OP and "wire_money" in decision.ranking[-1].why


def test_doubts_are_told_with_the_no_op():
    decision = decide([], max_regression=0.1, doubts=["rewards of gpt are not believed"])
    assert decision.ranking[0].why.endswith("rewards of gpt are not believed")
