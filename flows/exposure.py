"""Letting live traffic meet a candidate: the shadow stage, the canary stage, and the watch afterwards.

Each stage looks at recorded sessions only and ends in one of these ways: pass, abort, inconclusive (too little
traffic in time, or somebody changed the route meanwhile), and for the watch superseded (another champion serves).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec

from dashboards.reading import CaseReader, served
from evaluators import replay
from evaluators.canary import CanaryTest, CanaryVerdict, Outcome, judge_canary
from evaluators.canary_outcomes import Arrivals, breach_of, scales
from evaluators.cases import Case
from evaluators.intervals import Interval, wilson
from evoplane.settings import Settings
from registry import canaries, candidates, control, pointers, tenant_policy, tenants
from services.proxy.store import open_reader

_POLL_S = 1.5
"""A look costs 0.2 CPU-seconds (the log, the confidence sequence); sessions are judged about once a second."""
_BASELINE = 200
"""Champion sessions before a promotion that the watch compares with, at most."""

End = Literal["pass", "abort", "inconclusive", "superseded"]
OnProgress = Callable[[float], None]


class StageResult(msgspec.Struct, frozen=True, kw_only=True):
    end: End
    reason: str
    candidate: int
    """Sessions of the candidate the result rests on."""
    champion: int
    difference: Interval | None = None
    """p(candidate) - p(champion)."""
    metrics: dict[str, Interval] = {}
    """Every metric's difference, where the stage compares more than one."""
    detail: dict[str, Any] = {}
    """What else the evidence says."""
    decided_at: str = ""


def shadow(config: Settings, agent: str, version: str, on_progress: OnProgress) -> StageResult:
    """Mirror sessions to the candidate until enough of them are judged beside the champion's answers.

    Safety only: the stage aborts when the candidate's calls fail more often than they may by chance
    (lower bound of its error rate above the champion's upper bound). How good its answers are is reported.
    """
    connection = control.connect(config.control_db)
    started = control.now()
    candidates.move(connection, agent, version, "shadow")
    limits = config.delivery
    champion = pointers.start_shadow(
        connection, agent, version, limits.shadow_share, requests=limits.shadow_max_requests,
        tokens=limits.shadow_max_tokens,
    ).champion  # fmt: skip
    reader = CaseReader(open_reader(config), agent)
    need = limits.shadow_sessions
    deadline = time.monotonic() + config.delivery.stage_timeout_s
    try:
        while True:
            cases = reader.read(since=started)
            mirrored = [c for c in cases if c.role == "shadow" and c.agent_version == version]
            on_progress(100 * len(mirrored) / need)
            if len(mirrored) >= need:
                return _shadow_result(cases, mirrored, config.delivery.alpha)
            route = pointers.read_route(connection, agent)
            if (route.shadow, route.champion) != (version, champion):
                return _result("inconclusive", _withdrawn(route, champion), len(mirrored), 0)
            spent = sum(c.input_tokens + c.output_tokens for c in mirrored)
            if spent >= limits.shadow_max_tokens or len(mirrored) >= limits.shadow_max_requests:
                reason = f"{len(mirrored)} of {need} mirrored sessions, and its budget is spent ({spent} tokens)"
                return _result("inconclusive", reason, len(mirrored), 0)
            if time.monotonic() > deadline:
                reason = f"{len(mirrored)} of {need} mirrored sessions in {config.delivery.stage_timeout_s:.0f} s"
                return _result("inconclusive", reason, len(mirrored), 0)
            time.sleep(_POLL_S)
    finally:
        pointers.clear_shadow(connection, agent, only=version)


def canary(config: Settings, agent: str, version: str, on_progress: OnProgress) -> StageResult:
    """Expose the candidate to a rising share of sessions until the sequential test has an answer.

    On abort the canary is out before this returns; on pass too, since nobody watches it any more. Without traffic it
    is paused: nobody gets it, and nothing is concluded. A breach of safety ends it at once.
    """
    connection = control.connect(config.control_db)
    delivery = config.delivery
    weights = list(delivery.canary_weights)
    allowed = tuple(delivery.canary_tenants) or None
    started = control.now()
    reader = CaseReader(open_reader(config), agent)
    history = served(reader.read(limit=config.monitor.window))
    test = CanaryTest(
        alpha=delivery.alpha,
        harm_margin=delivery.harm_margin,
        min_sessions=delivery.canary_min_sessions,
        scales=scales(history, delivery.latency_tolerance, delivery.cost_tolerance),
    )
    arrivals = Arrivals(version, started, delivery.breach_signals)
    candidates.move(connection, agent, version, "canary")
    champion = pointers.start_canary(
        connection, agent, version, weights[0], allowed, weights=_own_weights(delivery.canary_tenant_weights, 0)
    ).champion
    step, steps_at = 0, 0
    last_growth = time.monotonic()
    seen = -1
    while True:
        test.add(arrivals.new(reader.read(since=started), compared(config, allowed)))
        verdict = test.verdict()
        route = pointers.read_route(connection, agent)
        if (route.canary, route.champion) != (version, champion):
            return _out(config, agent, version, "withdrawn", _withdrawn(route, champion), verdict)
        if verdict.state == "abort":
            return _out(config, agent, version, "aborted", verdict.reason, verdict)
        if verdict.state == "pass":
            return _out(config, agent, version, "passed", verdict.reason, verdict)
        if verdict.canary > seen:
            seen, last_growth = verdict.canary, time.monotonic()
        if time.monotonic() - last_growth > delivery.stage_timeout_s:
            reason = f"no new judged canary session in {delivery.stage_timeout_s:.0f} s ({verdict.reason})"
            return _out(config, agent, version, "paused", reason, verdict)
        if step + 1 < len(weights) and verdict.canary - steps_at >= delivery.canary_step_sessions:
            step, steps_at = step + 1, verdict.canary
            _step(config, agent, version, weights[step], allowed, step)
        on_progress(100 * min(1.0, verdict.canary / max(1, delivery.canary_min_sessions)))
        time.sleep(_POLL_S)


def compared(config: Settings, allowed: tuple[str, ...] | None) -> list[str]:
    """Tenants whose sessions a canary may touch: its own list less those that opted out; others' say nothing of it."""
    connection = control.connect(config.control_db)
    policies = tenant_policy.all_policies(connection)
    return [
        tenant.id
        for tenant in tenants.list_tenants(connection)
        if (allowed is None or tenant.id in allowed)
        and policies.get(tenant.id, tenant_policy.DEFAULT).exposure == "canary"
    ]


def _step(
    config: Settings, agent: str, version: str, weight: float, allowed: tuple[str, ...] | None, step: int
) -> None:
    """The next weight, unless somebody took the canary out meanwhile."""
    connection = control.connect(config.control_db)
    with control.transaction(connection):
        if pointers.read_route(connection, agent).canary == version:
            own = _own_weights(config.delivery.canary_tenant_weights, step)
            pointers.start_canary(connection, agent, version, weight, allowed, weights=own)


def _own_weights(given: dict[str, list[float]], step: int) -> dict[str, float]:
    """Single tenants' weights at a step; whose steps are fewer stay at the last."""
    return {tenant: steps[min(step, len(steps) - 1)] for tenant, steps in given.items() if steps}


def _out(
    config: Settings, agent: str, version: str, end: canaries.End, reason: str, verdict: CanaryVerdict
) -> StageResult:
    """Take the canary out first, then say how it ended."""
    pointers.clear_canary(control.connect(config.control_db), agent, why=f"{end}: {reason}", only=version, end=end)
    ends: dict[str, End] = {"aborted": "abort", "passed": "pass"}
    result = _canary_result(ends.get(end, "inconclusive"), verdict)
    return msgspec.structs.replace(result, reason=reason)


def watch(
    config: Settings, agent: str, version: str, previous: str, since: str, on_progress: OnProgress
) -> StageResult:
    """Compare what the promoted version does with what the champion before it did, session by session.

    Without judged sessions of the champion before there is nothing to compare with: inconclusive.
    """
    connection = control.connect(config.control_db)
    reader = CaseReader(open_reader(config), agent)
    before = [
        c for c in served(reader.read(limit=config.monitor.window), previous) if c.success is not None and c.at < since
    ]
    before = before[-_BASELINE:]
    if not before:
        return _result("inconclusive", f"no judged session of version {previous} to compare with", 0, 0)
    need = config.delivery.watch_sessions
    block = max(1, len(before) // max(1, need))
    deadline = time.monotonic() + config.delivery.stage_timeout_s
    while True:
        now = [c for c in served(reader.read(since=since), version) if c.success is not None and c.at >= since]
        now.sort(key=lambda c: (c.judged_at, c.event_id))
        verdict = judge_canary(
            interleave(before, now, block, config.delivery.breach_signals),
            alpha=config.delivery.alpha,
            harm_margin=config.delivery.harm_margin,
            min_sessions=need,
        )
        on_progress(100 * len(now) / need)
        champion = pointers.read_route(connection, agent).champion
        if champion != version:
            reason = f"version {champion} is champion now"
            return msgspec.structs.replace(_canary_result("superseded", verdict), reason=reason)
        if verdict.state == "abort":
            return _canary_result("abort", verdict)
        if len(now) >= need:
            return _canary_result("pass", verdict)
        if time.monotonic() > deadline:
            reason = f"{len(now)} of {need} judged sessions in {config.delivery.stage_timeout_s:.0f} s"
            return msgspec.structs.replace(_canary_result("inconclusive", verdict), reason=reason)
        time.sleep(_POLL_S)


def interleave(before: Sequence[Case], now: Sequence[Case], block: int, breaches: Sequence[str] = ()) -> list[Outcome]:
    """`block` earlier champion outcomes before each new one, so that each is compared with its share.

    What a new session is compared with never changes with later ones: the sequence that is tested must only
    grow, or looking at it repeatedly would cost error probability after all.
    """
    out: list[Outcome] = []
    for position, case in enumerate(now):
        share = before[position * block : (position + 1) * block]
        out += [Outcome("champion", bool(c.success), error=c.status != "ok") for c in share]
        breach = breach_of(case, breaches)
        out.append(Outcome("canary", bool(case.success), error=case.status != "ok", breach=breach))
    return out


def _shadow_result(cases: Sequence[Case], mirrored: Sequence[Case], alpha: float) -> StageResult:
    live = {c.key: c for c in cases}
    asked = [(live.get((c.tenant, c.parent_event_id or "")), c) for c in mirrored]
    pairs = [(a, b) for a, b in asked if a is not None]
    judged = [(a, b) for a, b in pairs if a.success is not None]
    compared = replay.compare([a for a, _ in judged], {a.key: b.action for a, b in judged}, alpha)
    failed = wilson(sum(c.status != "ok" for c in mirrored), len(mirrored), alpha)
    usual = wilson(sum(a.status != "ok" for a, _ in pairs), len(pairs), alpha)
    quality = f"beside the champion {compared.improvement}" if compared.improvement.n else "no pair was judged"
    if failed.low > usual.high:
        return _result("abort", f"calls fail: {failed}, the champion's {usual}", len(mirrored), len(pairs))
    end = _result("pass", f"calls that failed {failed}; {quality}", len(mirrored), len(pairs))
    return msgspec.structs.replace(end, difference=compared.improvement)


def _withdrawn(route: pointers.Route, champion: str) -> str:
    if route.champion != champion:
        return f"withdrawn: version {route.champion} is champion now, not {champion}"
    return "withdrawn: somebody took it out"


def _canary_result(end: End, verdict: CanaryVerdict) -> StageResult:
    return msgspec.structs.replace(
        _result(end, verdict.reason, verdict.canary, verdict.champion),
        difference=verdict.success,
        metrics=verdict.metrics,
        detail={"tenants": msgspec.to_builtins(verdict.tenants)} if verdict.tenants else {},
    )


def _result(end: End, reason: str, candidate: int, champion: int) -> StageResult:
    return StageResult(end=end, reason=reason, candidate=candidate, champion=champion, decided_at=control.now())
