from __future__ import annotations

from pathlib import Path

from registry import tenant_policy
from registry.tenant_policy import Budget, TenantPolicy
from services.proxy.budgets import Budgets, Estimate, Refused, Reservation
from tests.gateway.conftest import Running, running, serve, upstream, user

__all__ = ["running", "upstream"]  # fixtures

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


def test_use_of_today_survives_a_restart_and_yesterdays_does_not(tmp_path: Path) -> None:
    clock, file = Clock(), tmp_path / "budgets.json"
    rules = budgets(clock, tokens_per_day=1000)
    rules.restore(file)
    rules.reserve("a", "k", Estimate(tokens=950))
    rules.save(file)
    after = budgets(clock, tokens_per_day=1000)
    after.restore(file)
    assert after.used("a", "k") == (950, 0.0)
    assert isinstance(after.reserve("a", "k", Estimate(tokens=100)), Refused)
    clock.now += 86_400
    tomorrow = budgets(clock, tokens_per_day=1000)
    tomorrow.restore(file)
    assert tomorrow.used("a") == (0, 0.0)
    file.write_text("{torn")
    tomorrow.restore(file)


async def test_over_its_budget_a_client_is_told_in_its_own_dialect_when_to_try_again(running: Running) -> None:
    policy = TenantPolicy(budget=Budget(requests_per_minute=1))
    tenant_policy.put(running.connection, "northwind", policy, "test")
    await running.wait_for_control()
    assert (await running.chat([user("hi")])).status == 200
    refused = await running.chat([user("hi")])
    assert refused.status == 429
    assert 0 < int(refused.headers["retry-after"]) <= 60
    assert (await refused.json())["error"]["code"] == "rate_limit_exceeded"
    body = {"model": "smollm2-135m", "max_tokens": 5, "messages": [user("hi")]}
    async with running.http.post(f"{running.url}/v1/messages", json=body, headers=running.headers()) as response:
        assert response.status == 429
        assert (await response.json())["error"]["type"] == "rate_limit_error"
    assert (await running.chat([user("hi")], key="lumen")).status == 200


async def test_what_an_answer_used_is_counted_and_survives_a_restart(running: Running) -> None:
    tenant_policy.put(running.connection, "northwind", TenantPolicy(budget=Budget(tokens_per_day=1030)), "test")
    await running.wait_for_control()
    for _ in range(2):
        assert (await running.chat([user("hi")], max_tokens=900)).status == 200
    await running.stop()
    running.url, *running.server = await serve(running.settings)
    assert (await running.chat([user("hi")], max_tokens=950)).status == 200
    assert (await running.chat([user("hi")], max_tokens=1020)).status == 429


def test_a_tenant_without_a_budget_is_never_refused_and_tenants_do_not_share() -> None:
    rules = budgets(Clock(), requests_per_minute=1)
    assert all(isinstance(rules.reserve("b", "k"), Reservation) for _ in range(100))
    assert isinstance(rules.reserve("a", "k"), Reservation)
