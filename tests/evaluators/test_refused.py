"""What the decision says when a candidate was better, and only a gate or constraint refused it."""

from __future__ import annotations

from evaluators.decision import NO_OP, Evaluated, Ranked, decide
from evaluators.intervals import Interval
from evaluators.replay import Replay

NOTHING = Interval(value=0.0, low=0.0, high=0.0, n=0)


def candidate(name: str, low: float) -> Evaluated:
    gain = Interval(value=low + 0.1, low=low, high=low + 0.2, n=90)
    replay = Replay(results=(), improvement=gain, fixed=gain, lost=NOTHING, by_tenant={}, unknown=0, unanswered=0)
    return Evaluated(name, "memory", 0.0, replay)


def first(*candidates: Evaluated, doubts: tuple[str, ...] = ()) -> Ranked:
    gates = {"short-diff": lambda _: "90 of 300 judged cases"}
    return decide(candidates, max_regression=0.1, gates=gates, doubts=doubts).ranking[0]


def test_a_candidate_that_only_a_gate_refused_is_named_with_its_score_and_the_reason() -> None:
    told = first(candidate("memory-1", 0.105), candidate("memory-2", -0.2), doubts=("rewards are not believed",))
    assert told.name == NO_OP
    assert told.why == (
        "memory-1 (+0.105) was refused: gate short-diff: 90 of 300 judged cases; rewards are not believed"
    )


def test_the_best_refused_come_first_and_no_more_than_three_are_told() -> None:
    why = first(*(candidate(f"memory-{n}", n / 10) for n in range(1, 6))).why
    assert [part.split()[0] for part in why.split("; ")] == ["memory-5", "memory-4", "memory-3"]


def test_nothing_is_certain_to_be_better_where_nothing_was() -> None:
    assert first(candidate("memory-1", -0.2)).why == "nothing is certain to be better"
