"""From recorded sessions to what the canary's test is told."""

from __future__ import annotations

from typing import Any

from evaluators.canary_outcomes import Arrivals, scales
from evaluators.rewards.signals import Signal
from evaluators.steps import Step
from tests.evaluators.conftest import make_case

SINCE = "2026-01-01T00:00:00Z"
BREACHES = ("data_leak",)


def step(name: str, kind: str = "tool_call", status: str = "ok") -> Step:
    return Step(kind=kind, name=name, arguments={}, status=status, error_class="", text="", event_id="ev_s")


def canary(**given: Any) -> Any:
    return make_case(role="canary", agent_version="2", at="2026-02-01T00:00:00Z", **given)


def test_a_session_counts_when_it_is_judged_and_what_it_counts_as_never_changes() -> None:
    arrivals = Arrivals("2", SINCE)
    assert arrivals.new([canary(session_id="s", reward=None)]) == []
    (outcome,) = arrivals.new([canary(session_id="s", reward=1.0)])
    assert outcome.success == 1.0
    assert arrivals.new([canary(session_id="s", reward=0.0)]) == []


def test_all_of_a_session_is_looked_at() -> None:
    session = [
        canary(session_id="s", reward=1.0, steps=(step("pay", status="error"),), calls=(("pay", {}),)),
        canary(session_id="s", reward=1.0, corrections=("no",), latency_ms=300.0),
        canary(session_id="s", reward=1.0, steps=(step("tone", "guardrail", "denied"),)),
    ]
    (outcome,) = Arrivals("2", SINCE).new(session)
    assert (outcome.tool_failed, outcome.corrected, outcome.guardrail_hit) == (True, True, True)
    assert outcome.cost == 24.0 and outcome.latency_ms is not None and 166 < outcome.latency_ms < 167


def test_a_breach_is_told_at_once_although_nobody_has_judged_the_session() -> None:
    signal = Signal(id="an_1", name="data_leak", value=0.0, source="code", at=SINCE, written=SINCE)
    arrivals = Arrivals("2", SINCE, BREACHES)
    (outcome,) = arrivals.new([canary(session_id="s", reward=None, signals=(signal,))])
    assert outcome.breach.startswith("signal data_leak") and outcome.success is None
    blocked = canary(session_id="t", reward=None, steps=(step("data_leak", "guardrail", "denied"),))
    (outcome,) = arrivals.new([blocked])
    assert outcome.breach.startswith("guardrail data_leak")


def test_tenants_that_the_canary_may_not_touch_are_not_compared_with() -> None:
    arrivals = Arrivals("2", SINCE)
    theirs = make_case(tenant="lumen", at="2026-02-01T00:00:00Z", reward=1.0)
    assert arrivals.new([theirs, canary(reward=1.0)], ["northwind"])[0].tenant == "northwind"


def test_latency_and_cost_are_cut_off_by_what_was_usual_before_and_not_compared_without_a_history() -> None:
    usual = [make_case(latency_ms=100.0) for _ in range(40)]
    found = scales(usual, 1.5, 2.0)
    assert (found["latency"].limit, found["latency"].tolerance, found["cost"].tolerance) == (300.0, 1.5, 2.0)
    assert scales(usual[:5], 1.5, 2.0) == {}


def test_sessions_of_two_tenants_that_chose_the_same_name_are_two() -> None:
    told = [
        canary(session_id="s", tenant="lumen", reward=0.0),
        make_case(session_id="s", tenant="northwind", at="2026-02-01T00:00:00Z", reward=1.0),
    ]
    outcomes = Arrivals("2", SINCE).new(told)
    assert sorted((o.arm, o.tenant, o.success) for o in outcomes) == [
        ("canary", "lumen", 0.0),
        ("champion", "northwind", 1.0),
    ]
