from __future__ import annotations

from registry.tenant_policy import Budget, TenantPolicy
from services.proxy.budgets import Budgets, Estimate, Refused, Reservation

NOON = 20_000 * 86_400 + 43_200.0


class Clock:
    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> float:
        return self.now


def budgets(clock: Clock, keys: dict[str, Budget] | None = None, **budget: object) -> Budgets:
    policy = TenantPolicy(budget=Budget(**budget), key_budgets=keys or {})  # type: ignore[arg-type]
    return Budgets(lambda: {"a": policy}, clock)


def test_requests_over_the_minutes_limit_wait_until_the_oldest_is_a_minute_old() -> None:
    clock = Clock()
    rules = budgets(clock, requests_per_minute=2)
    assert isinstance(rules.reserve("a", "k"), Reservation)
    clock.now += 20
    assert isinstance(rules.reserve("a", "k2"), Reservation)
    refused = rules.reserve("a", "k")
    assert isinstance(refused, Refused)
    assert (refused.retry_after_s, refused.limit, refused.of) == (40, "requests_per_minute", "tenant")
    clock.now += 40
    assert isinstance(rules.reserve("a", "k"), Reservation)


def test_reservations_count_at_once_and_what_was_used_takes_their_place() -> None:
    clock = Clock()
    rules = budgets(clock, tokens_per_day=1000)
    first = rules.reserve("a", "k", Estimate(tokens=800))
    assert isinstance(first, Reservation)
    assert isinstance(rules.reserve("a", "k", Estimate(tokens=300)), Refused)
    rules.settle(first, tokens=100)
    rules.settle(first, tokens=900)
    assert rules.used("a") == (100, 0.0)
    assert isinstance(rules.reserve("a", "k", Estimate(tokens=300)), Reservation)


def test_a_refusal_changes_nothing_and_says_when_the_day_ends() -> None:
    clock = Clock()
    rules = budgets(clock, {"k": Budget(cost_usd_per_day=1.0)}, requests_per_minute=1)
    refused = rules.reserve("a", "k", Estimate(cost_usd=2.0))
    assert isinstance(refused, Refused)
    assert (refused.of, refused.retry_after_s) == ("key", 43_200)
    assert rules.used("a") == (0, 0.0)
    assert isinstance(rules.reserve("a", "other"), Reservation)


def test_a_new_day_begins_at_nothing_and_yesterdays_reservation_does_not_touch_it() -> None:
    clock = Clock()
    rules = budgets(clock, tokens_per_day=1000)
    held = rules.reserve("a", "k", Estimate(tokens=1000))
    assert isinstance(held, Reservation)
    clock.now += 86_400
    assert isinstance(rules.reserve("a", "k", Estimate(tokens=1000)), Reservation)
    rules.settle(held, tokens=5)
    assert rules.used("a")[0] == 1000


def test_what_nobody_counted_stays_as_it_was_reserved() -> None:
    rules = budgets(Clock(), tokens_per_day=1000)
    held = rules.reserve("a", "k", Estimate(tokens=700))
    assert isinstance(held, Reservation)
    rules.settle(held, tokens=None)
    assert rules.used("a") == (700, 0.0)


def test_use_of_today_is_recovered_from_the_log_and_older_use_is_not() -> None:
    rules = budgets(Clock(), tokens_per_day=1000)
    rules.recover("a", "k", 950, at=NOON - 10)
    rules.recover("a", "k", 950, at=NOON - 86_400)
    assert rules.used("a", "k") == (950, 0.0)
    assert isinstance(rules.reserve("a", "k", Estimate(tokens=100)), Refused)


def test_a_tenant_without_a_budget_is_never_refused_and_tenants_do_not_share() -> None:
    rules = budgets(Clock(), requests_per_minute=1)
    assert all(isinstance(rules.reserve("b", "k"), Reservation) for _ in range(100))
    assert isinstance(rules.reserve("a", "k"), Reservation)
