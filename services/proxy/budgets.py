"""Budgets: how much a tenant and each of its keys may use. Reserved before a request, settled after it.

Requests are limited by a sliding minute, tokens and cost by the UTC day. What is reserved counts at once, so
that many requests at the same time can't overrun a budget together; what was really used replaces it when the
answer has ended. In memory, one gateway; the day's sums are written down every few seconds and at the end, so that
a restart forgets no more than those seconds.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from msgspec import UNSET

from atdp.records import EventDraft, Metadata, Usage
from evoplane import files
from registry.tenant_policy import DEFAULT, Budget, TenantPolicy

_log = logging.getLogger(__name__)

_MINUTE_S = 60.0
_DAY_S = 86_400.0
_NO_BUDGET = Budget()
_LIMITS = ("max_completion_tokens", "max_output_tokens", "max_tokens")
_ASSUMED_TOKENS = 1_000
"""Reserved for an answer whose request does not say how long it may get."""


@dataclass(frozen=True)
class Estimate:
    """What a request may use at most, as far as it says."""

    tokens: int = _ASSUMED_TOKENS
    cost_usd: float = 0.0


def estimate(request: Any, size: int) -> Estimate:
    """What a request of `size` bytes may use: four bytes a token, and the longest answer it allows."""
    asked = request if isinstance(request, dict) else {}
    longest = _ASSUMED_TOKENS
    for name in _LIMITS:
        limit = asked.get(name)
        if isinstance(limit, int) and limit > 0:
            longest = limit
            break
    return Estimate(tokens=size // 4 + longest)


def used(call: EventDraft) -> tuple[int | None, float | None]:
    """(tokens, cost) of a model call, None where nobody counted; a call that failed without a count used nothing."""
    usage = call.m.usage if isinstance(call.m, Metadata) else UNSET
    cost = call.m.cost_usd if isinstance(call.m, Metadata) else UNSET
    tokens: int | None = None
    if isinstance(usage, Usage):
        tokens = sum(n for n in (usage.input_tokens, usage.output_tokens) if isinstance(n, int))
    elif call.y.status in ("error", "timeout", "denied"):
        tokens = 0
    return tokens, cost if isinstance(cost, float) else None


@dataclass(frozen=True)
class Refused:
    """Over a budget."""

    retry_after_s: int
    """Whole seconds, at least 1, as `retry-after` takes them."""
    limit: Literal["requests_per_minute", "tokens_per_day", "cost_usd_per_day"]
    of: str
    """Whose budget: `tenant` or `key`."""


@dataclass(eq=False)
class Reservation:
    """What was set aside for one request; settle it exactly once, whatever became of the request."""

    accounts: tuple[_Account, ...]
    tokens: int
    cost_usd: float
    day: int
    settled: bool = False


@dataclass(eq=False)
class _Account:
    requests: deque[float] = field(default_factory=deque)
    """When requests of the last minute were made."""
    day: int = -1
    tokens: int = 0
    cost_usd: float = 0.0

    def turn(self, day: int) -> None:
        """Begin the day if it is a new one."""
        if day != self.day:
            self.day, self.tokens, self.cost_usd = day, 0, 0.0


class Budgets:
    """Everybody's use. For one thread."""

    def __init__(
        self, policies: Callable[[], Mapping[str, TenantPolicy]], clock: Callable[[], float] = time.time
    ) -> None:
        """`policies` gives the tenants' policies of this moment; `clock` seconds since 1970."""
        self._policies = policies
        self._clock = clock
        self._accounts: dict[tuple[str, str], _Account] = {}

    def reserve(self, tenant: str, key: str, estimate: Estimate = Estimate()) -> Reservation | Refused:
        """Set aside what a request may use, or say when to try again; a refusal changes nothing."""
        now = self._clock()
        policy = self._policies().get(tenant, DEFAULT)
        day = int(now // _DAY_S)
        accounts: list[_Account] = []
        for of, name, budget in (
            ("tenant", "", policy.budget),
            ("key", key, policy.key_budgets.get(key, _NO_BUDGET)),
        ):
            account = self._account(tenant, name, day)
            refused = _over(account, budget, estimate, now, of)
            if refused is not None:
                return refused
            accounts.append(account)
        for account in accounts:
            account.requests.append(now)
            account.tokens += estimate.tokens
            account.cost_usd += estimate.cost_usd
        return Reservation(tuple(accounts), estimate.tokens, estimate.cost_usd, day)

    def settle(self, reservation: Reservation, tokens: int | None, cost_usd: float | None = None) -> None:
        """Put what was used in the place of what was reserved; None keeps what was reserved (nobody counted)."""
        if reservation.settled:
            return
        reservation.settled = True
        for account in reservation.accounts:
            # yesterday's reservation says nothing about today
            if account.day == reservation.day:
                account.tokens += (reservation.tokens if tokens is None else tokens) - reservation.tokens
                account.cost_usd += (reservation.cost_usd if cost_usd is None else cost_usd) - reservation.cost_usd

    def save(self, path: Path) -> None:
        """Write today's sums down; whole or not at all."""
        day = int(self._clock() // _DAY_S)
        sums = [
            [tenant, key, account.tokens, account.cost_usd]
            for (tenant, key), account in self._accounts.items()
            if account.day == day and (account.tokens or account.cost_usd)
        ]
        files.write_whole(path, json.dumps({"day": day, "sums": sums}).encode())

    def restore(self, path: Path) -> None:
        """Go on from what was written down, if it is of today."""
        day = int(self._clock() // _DAY_S)
        try:
            saved = json.loads(path.read_text())
            sums = saved["sums"] if saved["day"] == day else []
            for tenant, key, tokens, cost_usd in sums:
                account = self._account(tenant, key, day)
                account.tokens += tokens
                account.cost_usd += cost_usd
        except FileNotFoundError:
            return
        except (ValueError, KeyError, TypeError) as error:
            _log.warning("%s can't be read (%s): today's use is counted from now", path, error)

    def used(self, tenant: str, key: str = "") -> tuple[int, float]:
        """Tokens and cost of today, reservations included, of a tenant or of one of its keys."""
        account = self._account(tenant, key, int(self._clock() // _DAY_S))
        return account.tokens, account.cost_usd

    def _account(self, tenant: str, key: str, day: int) -> _Account:
        account = self._accounts.setdefault((tenant, key), _Account())
        account.turn(day)
        return account


def _over(account: _Account, budget: Budget, estimate: Estimate, now: float, of: str) -> Refused | None:
    while account.requests and account.requests[0] <= now - _MINUTE_S:
        account.requests.popleft()
    limit = budget.requests_per_minute
    if limit is not None and len(account.requests) >= limit:
        return Refused(max(1, math.ceil(account.requests[-limit] + _MINUTE_S - now)), "requests_per_minute", of)
    tomorrow = max(1, math.ceil(_DAY_S - now % _DAY_S))
    if budget.tokens_per_day is not None and account.tokens + estimate.tokens > budget.tokens_per_day:
        return Refused(tomorrow, "tokens_per_day", of)
    if budget.cost_usd_per_day is not None and account.cost_usd + estimate.cost_usd > budget.cost_usd_per_day:
        return Refused(tomorrow, "cost_usd_per_day", of)
    return None
