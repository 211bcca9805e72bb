"""What an agent's recent judged work looks like, every figure with its interval.

*Not enough data* is a state of its own: below `min_outcomes` judged decisions nothing is concluded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from evaluators.cases import Case
from evaluators.intervals import Interval, mean_interval, wilson

State = Literal["healthy", "degraded", "not enough data"]


class Statistics(msgspec.Struct, frozen=True, kw_only=True):
    state: State
    reason: str
    judged: int
    success: Interval
    by_tenant: dict[str, Interval]
    by_version: dict[str, Interval]
    by_action: dict[str, Interval]
    """By what the agent did: a tool's name, or `answer`."""
    corrections: Interval
    tool_calls: Interval
    malformed: Interval
    errors: Interval
    latency_ms: Interval
    input_tokens: Interval
    output_tokens: Interval


def summarise(cases: Sequence[Case], *, target: float, min_outcomes: int, alpha: float = 0.05) -> Statistics:
    """Statistics of the judged cases. Degraded means: success is below `target` with confidence."""
    judged = [c for c in cases if c.success is not None]
    success = _rate(judged, lambda c: bool(c.success), alpha)
    state: State = "healthy"
    reason = f"success {success} reaches {target:.2f}, or may"
    if len(judged) < min_outcomes:
        state, reason = "not enough data", f"{len(judged)} of {min_outcomes} judged decisions"
    elif success.high < target:
        state, reason = "degraded", f"success {success} is below {target:.2f}"
    return Statistics(
        state=state,
        reason=reason,
        judged=len(judged),
        success=success,
        by_tenant=_grouped(judged, lambda c: c.tenant, alpha),
        by_version=_grouped(judged, lambda c: c.agent_version, alpha),
        by_action=_grouped(judged, lambda c: c.action.kind, alpha),
        corrections=_rate(judged, lambda c: bool(c.corrections), alpha),
        tool_calls=_rate(judged, lambda c: bool(c.action.calls), alpha),
        malformed=_rate(judged, lambda c: c.action.malformed, alpha),
        errors=_rate(judged, lambda c: c.status != "ok", alpha),
        latency_ms=mean_interval([c.latency_ms for c in judged], alpha),
        input_tokens=mean_interval([float(c.input_tokens) for c in judged], alpha),
        output_tokens=mean_interval([float(c.output_tokens) for c in judged], alpha),
    )


def table(statistics: Statistics) -> list[dict[str, str]]:
    """The statistics as rows a person reads."""
    rows = [
        ("success", statistics.success),
        *((f"success · tenant {name}", i) for name, i in statistics.by_tenant.items()),
        *((f"success · version {name}", i) for name, i in statistics.by_version.items()),
        *((f"success · did {name}", i) for name, i in statistics.by_action.items()),
        ("user corrections", statistics.corrections),
        ("tool calls", statistics.tool_calls),
        ("malformed calls", statistics.malformed),
        ("failed calls", statistics.errors),
        ("latency, ms", statistics.latency_ms),
        ("prompt tokens", statistics.input_tokens),
        ("completion tokens", statistics.output_tokens),
    ]
    return [
        {"statistic": name, "value": f"{i.value:.3g}", "low": f"{i.low:.3g}", "high": f"{i.high:.3g}", "n": str(i.n)}
        for name, i in rows
    ]


def _rate(cases: Sequence[Case], holds: Callable[[Case], bool], alpha: float) -> Interval:
    return wilson(sum(map(holds, cases)), len(cases), alpha)


def _grouped(cases: Sequence[Case], group: Callable[[Case], str], alpha: float) -> dict[str, Interval]:
    groups: dict[str, list[Case]] = defaultdict(list)
    for case in cases:
        groups[group(case)].append(case)
    return {name: _rate(members, lambda c: bool(c.success), alpha) for name, members in sorted(groups.items())}
