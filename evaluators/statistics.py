"""What an agent's recent work looks like, every figure with its interval and how many stand behind it.

*Not enough data* is a state of its own: below `min_outcomes` judged trajectories nothing is concluded, and what nobody
could measure (a price that is not configured, usage an upstream did not report) is unknown, never 0. A trajectory is
what was drawn at random; decisions within one are not independent (`evaluators.clustered`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import Literal

import msgspec

from evaluators import clustered
from evaluators.canary import judge_canary
from evaluators.canary_outcomes import Arrivals
from evaluators.cases import Case, Key
from evaluators.intervals import Interval, mean_interval, wilson
from evoplane.settings import Price

State = Literal["healthy", "degraded", "not enough data"]

PriceOf = Callable[[Case], Price | None]
"""The price of the model that answered, None when it is not configured."""

_QUANTILES = (0.5, 0.9, 0.99)
_MIX = 10
"""Kinds of request shown by name; the others are one."""


class Cost(msgspec.Struct, frozen=True):
    """Money per success; `why` says why it is unknown."""

    per_success: Interval | None
    why: str = ""


class Statistics(msgspec.Struct, frozen=True, kw_only=True):
    state: State
    reason: str
    judged: int
    """Trajectories with a reward."""
    seen: int
    """All trajectories, judged or not."""
    success: Interval
    """Share of judged trajectories that succeeded."""
    reward: Interval
    """Their mean reward."""
    by_tenant: dict[str, Interval]
    by_version: dict[str, Interval]
    by_action: dict[str, Interval]
    """By what the agent did: a tool's name, or `answer`. Per decision."""
    process: Interval
    """Mean of what was said about single steps."""
    corrections: Interval
    tool_calls: Interval
    """Decisions that call a tool."""
    tool_failures: Interval
    """Executed calls that failed."""
    failures_by_tool: dict[str, Interval]
    """`tool · error class`: its share of that tool's executed calls."""
    malformed: Interval
    guardrails: Interval
    """Decisions a guardrail stopped or changed."""
    errors: Interval
    """Model calls that failed."""
    repeated: Interval
    """Requests that repeat an earlier one of the same session."""
    abandoned: Interval
    """Ended trajectories that fell silent without a word about how they went."""
    latency_ms: Interval
    latency_quantiles: dict[str, Interval]
    latency_per_success_ms: Interval
    input_tokens: Interval
    output_tokens: Interval
    cost: Cost
    mix: dict[str, Interval]
    """Shares of the kinds of request, by tenant."""
    canary: dict[str, Interval]
    """Canary minus champion by metric, while there is one; anytime-valid."""


def summarise(
    cases: Sequence[Case],
    *,
    target: float,
    min_outcomes: int,
    alpha: float = 0.05,
    price_of: PriceOf = lambda _: None,
    ended: Mapping[Key, str | None] | None = None,
    canary: Sequence[Case] = (),
    alarms: Sequence[str] | None = None,
) -> Statistics:
    """Statistics of a window of decisions, judged or not.

    Args:
        cases: what one agent did, of whichever tenants and versions.
        target: success below it, with confidence, is degraded.
        price_of: the price of the model that answered a case.
        ended: why trajectories were closed, by (tenant, id); None while one is open.
        canary: the canary's decisions meanwhile.
        alarms: what the triggers say (`evaluators.triggers`). They decide the state; without them it is this one
            window's interval, which does not hold if one looks again and again.
    """
    outcomes = by_trajectory(cases)
    rewards = [_reward(members) for members in outcomes.values()]
    judged = [c for c in cases if c.success is not None]
    success = _success(outcomes, alpha)
    state, reason = _state(success, target, min_outcomes, alarms)
    answered = [c for c in cases if c.status == "ok"]
    tool_failures, failures_by_tool = _tools(cases, alpha)
    return Statistics(
        state=state,
        reason=reason,
        judged=len(outcomes),
        seen=len({c.trajectory for c in cases}),
        success=success,
        reward=mean_interval(rewards, alpha, least=0.0, most=1.0),
        by_tenant=_success_by(judged, lambda c: c.tenant, alpha),
        by_version=_success_by(judged, lambda c: c.agent_version, alpha),
        by_action=_rates_by(judged, lambda c: c.action.kind, lambda c: bool(c.success), alpha),
        process=_process(cases, alpha),
        corrections=_rate(cases, lambda c: bool(c.corrections), alpha),
        tool_calls=_rate(cases, lambda c: bool(c.action.calls), alpha),
        malformed=_rate(cases, lambda c: c.action.malformed, alpha),
        guardrails=_rate(cases, _stopped, alpha),
        errors=_rate(cases, lambda c: c.status != "ok", alpha),
        repeated=_repeated(cases, alpha),
        abandoned=_abandoned(cases, ended or {}, alpha),
        latency_ms=clustered.mean([c.latency_ms for c in answered], [c.trajectory for c in answered], alpha),
        latency_quantiles={
            f"p{100 * q:.0f}": clustered.quantile([c.latency_ms for c in answered], q, alpha) for q in _QUANTILES
        },
        latency_per_success_ms=_per_success(outcomes, lambda c: c.latency_ms + c.later_ms, alpha),
        input_tokens=_tokens(answered, lambda c: c.input_tokens, alpha),
        output_tokens=_tokens(answered, lambda c: c.output_tokens, alpha),
        cost=_cost(outcomes, price_of, alpha),
        mix=_mix(cases, alpha),
        canary=_canary_deltas(cases, canary, alpha),
        tool_failures=tool_failures,
        failures_by_tool=failures_by_tool,
    )


def by_trajectory(cases: Sequence[Case]) -> dict[Key, list[Case]]:
    """The judged trajectories, each with all its decisions, in the order in which they were judged."""
    found = _trajectories(cases)
    judged = [(max(c.judged_at for c in m), id, m) for id, m in found.items() if any(c.reward is not None for c in m)]
    return {id: members for _, id, members in sorted(judged, key=lambda row: row[:2])}


def outcome(members: Sequence[Case]) -> float:
    """A judged trajectory's success in [0, 1]: the share of its judged decisions that succeeded."""
    told = [bool(c.success) for c in members if c.success is not None]
    return sum(told) / len(told)


def table(statistics: Statistics) -> list[dict[str, str]]:
    """The statistics as rows a person reads; `unknown` where nothing was measured."""
    s = statistics
    rows: list[tuple[str, Interval | None]] = [
        ("success", s.success),
        *((f"success · tenant {name}", i) for name, i in s.by_tenant.items()),
        *((f"success · version {name}", i) for name, i in s.by_version.items()),
        *((f"success · did {name}", i) for name, i in s.by_action.items()),
        ("reward", s.reward),
        ("process reward", s.process),
        ("user corrections", s.corrections),
        ("repeated requests", s.repeated),
        ("abandoned", s.abandoned),
        ("tool calls", s.tool_calls),
        ("failed tool calls", s.tool_failures),
        *((f"failed · {name}", i) for name, i in s.failures_by_tool.items()),
        ("malformed calls", s.malformed),
        ("guardrail hits", s.guardrails),
        ("failed model calls", s.errors),
        ("latency, ms", s.latency_ms),
        *((f"latency, ms, {name}", i) for name, i in s.latency_quantiles.items()),
        ("latency per success, ms", s.latency_per_success_ms),
        ("prompt tokens", s.input_tokens),
        ("completion tokens", s.output_tokens),
        ("cost per success", s.cost.per_success),
        *((f"share of {name}", i) for name, i in s.mix.items()),
        *((f"canary − champion, {name}", i) for name, i in s.canary.items()),
    ]
    return [_row(name, i) for name, i in rows]


def _row(name: str, i: Interval | None) -> dict[str, str]:
    if i is None or not i.n:
        return {"statistic": name, "value": "unknown", "low": "-", "high": "-", "n": "0"}
    low, high = (f"{x:.3g}" if isfinite(x) else "-" for x in (i.low, i.high))
    return {"statistic": name, "value": f"{i.value:.3g}", "low": low, "high": high, "n": str(i.n)}


def _state(success: Interval, target: float, min_outcomes: int, alarms: Sequence[str] | None) -> tuple[State, str]:
    if success.n < min_outcomes:
        return "not enough data", f"{success.n} of {min_outcomes} judged trajectories"
    if alarms:
        return "degraded", "; ".join(alarms)
    if alarms is None and success.high < target:
        return "degraded", f"success {success} is below {target:.2f}"
    return "healthy", f"success {success} reaches {target:.2f}, or may"


def _success(outcomes: Mapping[Key, list[Case]], alpha: float) -> Interval:
    """Wilson's interval over trajectories; a trajectory of mixed decisions counts as its share of successes."""
    values = [outcome(members) for members in outcomes.values()]
    if all(v in (0.0, 1.0) for v in values):
        return wilson(round(sum(values)), len(values), alpha)
    return mean_interval(values, alpha, least=0.0, most=1.0)


def _success_by(judged: Sequence[Case], group: Callable[[Case], str], alpha: float) -> dict[str, Interval]:
    return {name: _success(by_trajectory(members), alpha) for name, members in _groups(judged, group).items()}


def _rates_by(
    cases: Sequence[Case], group: Callable[[Case], str], holds: Callable[[Case], bool], alpha: float
) -> dict[str, Interval]:
    return {name: _rate(members, holds, alpha) for name, members in _groups(cases, group).items()}


def _trajectories(cases: Sequence[Case]) -> dict[Key, list[Case]]:
    found: dict[Key, list[Case]] = defaultdict(list)
    for case in cases:
        found[case.trajectory].append(case)
    return found


def _groups(cases: Sequence[Case], group: Callable[[Case], str]) -> dict[str, list[Case]]:
    groups: dict[str, list[Case]] = defaultdict(list)
    for case in cases:
        groups[group(case)].append(case)
    return dict(sorted(groups.items()))


def _rate(cases: Sequence[Case], holds: Callable[[Case], bool], alpha: float) -> Interval:
    return clustered.rate([holds(c) for c in cases], [c.trajectory for c in cases], alpha)


def _reward(members: Sequence[Case]) -> float:
    told = [c.reward for c in members if c.reward is not None]
    return sum(told) / len(told)


def _process(cases: Sequence[Case], alpha: float) -> Interval:
    """Over trajectories: the mean of the signals in each that speak of a step, whether the rule counts them or not."""
    means = []
    for members in _trajectories(cases).values():
        signals = {s.id: s for c in members for s in c.signals if s.events and s.in_force}
        told = [s.value for s in signals.values() if s.value is not None]
        if told:
            means.append(sum(told) / len(told))
    return mean_interval(means, alpha, least=0.0, most=1.0)


def _tools(cases: Sequence[Case], alpha: float) -> tuple[Interval, dict[str, Interval]]:
    calls = [(c.trajectory, s) for c in cases for s in c.steps if s.kind == "tool_call"]
    failed = clustered.rate([s.failed for _, s in calls], [t for t, _ in calls], alpha)
    by_tool: dict[str, Interval] = {}
    for name, error in sorted({(s.name, s.error_class) for _, s in calls if s.failed}):
        mine = [(t, s) for t, s in calls if s.name == name]
        hits = [s.failed and s.error_class == error for _, s in mine]
        by_tool[f"{name} · {error or 'unnamed'}"] = clustered.rate(hits, [t for t, _ in mine], alpha)
    return failed, by_tool


def _stopped(case: Case) -> bool:
    return case.status == "denied" or any(s.kind == "guardrail" and s.failed for s in case.steps)


def _repeated(cases: Sequence[Case], alpha: float) -> Interval:
    """Over requests that had an earlier one in their session."""
    asked: dict[Key, set[str]] = {}
    again: list[bool] = []
    sessions: list[Key] = []
    for case in sorted(cases, key=lambda c: (c.at, c.event_id)):
        request = " ".join(case.request.lower().split()).rstrip("?.! ")
        if case.session in asked:
            again.append(request in asked[case.session])
            sessions.append(case.session)
        asked.setdefault(case.session, set()).add(request)
    return clustered.rate(again, sessions, alpha)


def _abandoned(cases: Sequence[Case], ended: Mapping[Key, str | None], alpha: float) -> Interval:
    told = {c.trajectory for c in cases if c.reward is not None}
    over = [id for id in {c.trajectory for c in cases} if ended.get(id)]
    return wilson(sum(ended[id] == "idle" and id not in told for id in over), len(over), alpha)


def _tokens(cases: Sequence[Case], counted: Callable[[Case], int], alpha: float) -> Interval:
    """Over calls whose usage is known: no model call uses no tokens."""
    known = [c for c in cases if counted(c)]
    return clustered.mean([counted(c) for c in known], [c.trajectory for c in known], alpha)


def _per_success(outcomes: Mapping[Key, list[Case]], spent: Callable[[Case], float], alpha: float) -> Interval:
    above = [sum(map(spent, members)) for members in outcomes.values()]
    return clustered.ratio(above, [outcome(members) for members in outcomes.values()], alpha)


def _cost(outcomes: Mapping[Key, list[Case]], price_of: PriceOf, alpha: float) -> Cost:
    members = [c for group in outcomes.values() for c in group]
    if not members:
        return Cost(None, "no judged trajectory")
    if any(price_of(c) is None for c in members):
        return Cost(None, "the price of a model that answered is not in [prices]")
    if any((c.status == "ok" and not c.input_tokens) or c.later_tokens is None for c in members):
        return Cost(None, "an upstream did not report its usage")

    def spent(case: Case) -> float:
        price = price_of(case)
        assert price is not None and case.later_tokens is not None
        read, written = case.input_tokens + case.later_tokens[0], case.output_tokens + case.later_tokens[1]
        return (read * price.input_per_million + written * price.output_per_million) / 1e6

    return Cost(_per_success(outcomes, spent, alpha))


def _mix(cases: Sequence[Case], alpha: float) -> dict[str, Interval]:
    first = {c.trajectory: c for c in sorted(cases, key=lambda c: c.at, reverse=True)}.values()
    kinds = _groups(list(first), lambda c: f"{c.tenant}: {c.task_key[:60]}")
    ranked = sorted(kinds, key=lambda name: (-len(kinds[name]), name))
    shares = {name: wilson(len(kinds[name]), len(first), alpha) for name in ranked[:_MIX]}
    if rest := sum(len(kinds[name]) for name in ranked[_MIX:]):
        shares["other requests"] = wilson(rest, len(first), alpha)
    return shares


def _canary_deltas(champion: Sequence[Case], canary: Sequence[Case], alpha: float) -> dict[str, Interval]:
    """By metric, with the canary's own test (`evaluators.canary`): sessions of both since the canary began."""
    if not canary:
        return {}
    since, version = min(c.at for c in canary), canary[-1].agent_version
    known = Arrivals(version, since).new([*champion, *canary])
    if not any(o.arm == "canary" for o in known):
        return {}
    return judge_canary(known, alpha=alpha, harm_margin=1.0, min_sessions=1).metrics
