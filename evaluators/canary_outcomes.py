"""From recorded decisions to what a canary's test is told: one outcome a session, each session once."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from statistics import quantiles

from evaluators.canary import Arm, Outcome, Scale
from evaluators.cases import Case

_LIMIT_QUANTILE = 19
"""Of 20: the 95th percentile of earlier sessions ..."""
_LIMIT_FACTOR = 3.0
"""... times this is where latency and cost are cut off."""
_MIN_HISTORY = 20


class Arrivals:
    """The sessions of both arms in the order in which they became known.

    A session counts once, when it is judged or fails; what it is counted as never changes later, nor does its place:
    a sequence that is tested again and again must only grow.
    """

    def __init__(self, version: str, since: str, breaches: Collection[str] = ()) -> None:
        """`breaches` are names of signals that end a canary at once."""
        self._version = version
        self._since = since
        self._breaches = frozenset(breaches)
        self._told: set[tuple[str, str]] = set()
        self._breached: set[tuple[str, str]] = set()

    def new(self, cases: Iterable[Case], tenants: Collection[str] | None = None) -> list[Outcome]:
        """What became known since the last call; `tenants` are those whose sessions may be compared (None: all)."""
        # by tenant as well: clients name sessions, and those of two tenants may choose the same name
        sessions: dict[tuple[str, str], list[Case]] = {}
        for case in cases:
            counts = case.purpose == "serve" and case.at >= self._since and case.role in ("champion", "canary")
            if counts and (tenants is None or case.tenant in tenants):
                sessions.setdefault((case.tenant, case.session_id), []).append(case)
        out: list[tuple[str, tuple[str, str], Outcome]] = []
        for id, members in sessions.items():
            first = members[0]
            if first.role == "canary" and first.agent_version != self._version:
                continue
            known = [c for c in members if c.role == first.role and (c.success is not None or c.status != "ok")]
            breach = next((b for c in members if c.role == "canary" and (b := breach_of(c, self._breaches))), "")
            if id not in self._told and known:
                self._told.add(id)
                out.append((known[0].judged_at or known[0].at, id, outcome_of(members, known[0], breach)))
            elif breach and id not in self._told | self._breached:
                out.append((first.at, id, Outcome("canary", None, tenant=first.tenant, breach=breach)))
            if breach:
                self._breached.add(id)
        return [outcome for _, _, outcome in sorted(out, key=lambda known: known[:2])]


def outcome_of(session: Sequence[Case], judged: Case, breach: str = "") -> Outcome:
    """A session as an outcome: the judged decision's reward, and what happened in all of it so far."""
    arm: Arm = "canary" if judged.role == "canary" else "champion"
    calls = [step for case in session for step in case.steps if step.kind == "tool_call"]
    used = any(case.action.calls or case.action.malformed for case in session)
    failed = any(step.failed for step in calls) or any(case.action.malformed for case in session)
    guardrails = [step for case in session for step in case.steps if step.kind == "guardrail"]
    return Outcome(
        arm,
        float(bool(judged.success)) if judged.success is not None else 0.0,
        error=any(case.status != "ok" for case in session),
        tenant=judged.tenant,
        corrected=any(case.corrections for case in session),
        tool_failed=failed if used or calls else None,
        guardrail_hit=any(step.failed for step in guardrails),
        latency_ms=sum(case.latency_ms for case in session) / len(session),
        cost=float(sum(case.input_tokens + case.output_tokens for case in session)),
        breach=breach,
    )


def breach_of(case: Case, names: Collection[str]) -> str:
    """A signal, or an irreversible thing a guardrail let through, that is named as a breach of safety; in words."""
    for signal in case.signals:
        if signal.name in names and (signal.value is None or signal.value < 0.5):
            return f"signal {signal.name} on {case.event_id}"
    for step in case.steps:
        if step.kind == "guardrail" and step.name in names and step.failed:
            return f"guardrail {step.name} on {case.event_id}"
    return ""


def scales(history: Sequence[Case], latency_tolerance: float, cost_tolerance: float) -> dict[str, Scale]:
    """Where latency and cost are cut off, from sessions before the canary; empty with too few of them."""
    if len(history) < _MIN_HISTORY:
        return {}
    latency = quantiles([c.latency_ms for c in history], n=20)[_LIMIT_QUANTILE - 1] * _LIMIT_FACTOR
    cost = quantiles([float(c.input_tokens + c.output_tokens) for c in history], n=20)[_LIMIT_QUANTILE - 1]
    found = {
        "latency": Scale(latency, latency_tolerance),
        "cost": Scale(cost * _LIMIT_FACTOR, cost_tolerance),
    }
    return {name: scale for name, scale in found.items() if scale.limit > 0}
