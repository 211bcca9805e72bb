"""What the page of an agent shows: what serves and how it came to be, the canary, its quality, its failures."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from dashboards.console import narrow
from dashboards.console.charts import Node, Point, interval_line, version_graph
from dashboards.reading import CaseReader, served
from evaluators import corrections, diagnosis
from evaluators.canary import CanaryTest, CanaryVerdict
from evaluators.canary_outcomes import Arrivals, scales
from evaluators.cases import Case
from evaluators.diagnosis import Diagnosis
from evaluators.intervals import Interval, wilson
from evoplane.settings import Settings
from registry import approvals, audit, canaries, candidates, control, decisions, pointers, tenant_policy, tenants
from registry.approvals import Approval
from registry.manifest import AgentVersion
from registry.tenants import RegistryError
from services.proxy.reader import StoreReader

_BUCKETS = 24
_CANARY_POINTS = 60
_FRESH_S = 15.0
"""What is computed from many trajectories is computed again after this long."""


class Version(NamedTuple):
    """A version with all that is known of why it is there."""

    version: AgentVersion
    pointers: tuple[str, ...]
    """Which of the route's pointers name it."""
    state: str
    state_since: str
    state_why: str
    approval: Approval | None

    @property
    def kind(self) -> str:
        return self.pointers[0] if self.pointers else ("rolled" if self.state == "rolled_back" else "other")


class Overview(NamedTuple):
    agent: tenants.Agent
    route: pointers.Route | None
    versions: list[Version]
    """Oldest first."""
    graph: str
    pending: list[Approval]
    decisions: list[dict[str, Any]]
    """Newest first."""
    history: list[audit.Entry]
    """Newest first: what moved users, and what was decided."""
    canary: canaries.Canary | None


_MOVES = ("promote", "rollback", "canary.start", "canary.stop", "shadow.start", "shadow.stop", "delivery.started",
          "delivery.ended", "candidate.accepted", "data_gate.failed", "version.delete")  # fmt: skip
_HISTORY = 30


def overview(connection: sqlite3.Connection, name: str, whole: bool) -> Overview:
    """Not `whole`, it is what `narrow` leaves. Raises `RegistryError` for an agent that does not exist."""
    agent = tenants.get_agent(connection, name)
    route = pointers.all_routes(connection).get(name)
    versions = [_version(connection, route, v) for v in pointers.versions(connection, name).values()]
    by_label = _approvals(connection, name)
    versions = [v._replace(approval=by_label.get(v.version.version)) for v in versions]
    nodes = [
        Node(
            v.version.version,
            v.version.parent,
            v.kind,
            v.version.intervention,
            f"/agents/{name}/versions/{v.version.version}",
        )
        for v in versions
    ]
    waiting = [approvals.get(connection, a.id) for a in approvals.list_approvals(connection, name)]
    entries = [e for e in audit.entries(connection, name) if e.action in _MOVES]
    decided = list(reversed(decisions.list_decisions(connection, name)))[:10]
    moves = list(reversed(entries))[:_HISTORY]
    if not whole:
        versions = [_narrow(v) for v in versions]
        waiting = [narrow.approval(a) for a in waiting]
        decided, moves = [narrow.decision(d) for d in decided], [narrow.entry(e) for e in moves]
    return Overview(
        agent=agent,
        route=route,
        versions=versions,
        graph=version_graph(nodes),
        pending=[a for a in waiting if a.status == "pending"],
        decisions=decided,
        history=moves,
        canary=canaries.running(connection, name),
    )


def version(connection: sqlite3.Connection, name: str, label: str, whole: bool) -> Version:
    """Not `whole`, it is what `narrow` leaves. Raises `RegistryError` for a version that does not exist."""
    known = pointers.versions(connection, name)
    if label not in known:
        raise RegistryError(f"{name} has no version {label!r}")
    found = _version(connection, pointers.all_routes(connection).get(name), known[label])
    found = found._replace(approval=_approvals(connection, name).get(label))
    return found if whole else _narrow(found)


def _narrow(found: Version) -> Version:
    asked = narrow.approval(found.approval) if found.approval is not None else None
    return found._replace(version=narrow.version(found.version), state_why="", approval=asked)


def _approvals(connection: sqlite3.Connection, agent: str) -> dict[str, Approval]:
    """The last approval asked for each version."""
    return {a.version: a for a in approvals.list_approvals(connection, agent)}


def _version(connection: sqlite3.Connection, route: pointers.Route | None, entry: AgentVersion) -> Version:
    names = ("champion", "canary", "shadow", "previous")
    pointed = tuple(n for n in names if route is not None and getattr(route, n) == entry.version)
    candidate = candidates.get(connection, entry.agent, entry.version)
    state, since, why = (candidate.state, candidate.since, candidate.why) if candidate else ("", "", "")
    return Version(entry, pointed, state, since, why, None)


class Quality(NamedTuple):
    """What the recorded decisions of the last while say."""

    judged: int
    success: Interval
    reward_chart: str
    corrections_chart: str
    diagnosis: Diagnosis


class CanaryView(NamedTuple):
    canary: canaries.Canary
    verdict: CanaryVerdict
    chart: str


class AgentReader:
    """Reads an agent's cases once in a while for everybody who looks. Close it at the end."""

    def __init__(self, config: Settings, reader: StoreReader) -> None:
        self._config = config
        self._reader = reader
        self._lock = threading.Lock()
        self._readers: dict[str, CaseReader] = {}
        self._read: dict[str, tuple[float, list[Case]]] = {}

    def cases(self, agent: str) -> list[Case]:
        """The decisions of the newest trajectories, oldest first; at most `monitor.window` a tenant."""
        with self._lock:
            at, known = self._read.get(agent, (0.0, []))
            if not at or time.monotonic() - at > _FRESH_S:
                reader = self._readers.setdefault(agent, CaseReader(self._reader, agent))
                known = reader.read(limit=self._config.monitor.window)
                self._read[agent] = (time.monotonic(), known)
            return known

    def quality(self, agent: str, seen: frozenset[str], champion: str | None) -> Quality:
        """Of the tenants in `seen` only."""
        mine = [c for c in self.cases(agent) if c.tenant in seen]
        judged = [c for c in served(mine) if c.success is not None]
        current = [c for c in judged if champion is None or c.agent_version == champion]
        alpha = self._config.monitor.alpha
        target = self._config.monitor.target_success
        return Quality(
            judged=len(judged),
            success=wilson(sum(bool(c.success) for c in current), len(current), alpha),
            reward_chart=interval_line(
                _buckets(judged, lambda c: bool(c.success), alpha), title="success", low=0.0, high=1.0,
                mark=target, mark_label=f"target {target:g}",
            ),
            corrections_chart=interval_line(
                _buckets(judged, lambda c: bool(c.corrections), alpha), title="user corrections", low=0.0, high=1.0
            ),
            diagnosis=diagnosis.diagnose(current, corrections.established(mine), alpha),
        )  # fmt: skip

    def canary(self, canary: canaries.Canary, seen: frozenset[str]) -> CanaryView:
        """The test as `deliver` runs it, drawn after every few sessions; of the tenants in `seen` only."""
        delivery = self._config.delivery
        cases = [c for c in self.cases(canary.agent) if c.tenant in seen]
        before = [c for c in served(cases) if c.at < canary.started_at]
        test = CanaryTest(
            alpha=delivery.alpha, harm_margin=delivery.harm_margin, min_sessions=delivery.canary_min_sessions,
            scales=scales(before, delivery.latency_tolerance, delivery.cost_tolerance),
        )  # fmt: skip
        connection = control.connect(self._config.control_db)
        policies = tenant_policy.all_policies(connection)
        connection.close()
        compared = [
            t for t in seen
            if (canary.tenants is None or t in canary.tenants)
            and policies.get(t, tenant_policy.DEFAULT).exposure == "canary"
        ]  # fmt: skip
        outcomes = Arrivals(canary.version, canary.started_at, delivery.breach_signals).new(cases, compared)
        every = max(1, len(outcomes) // _CANARY_POINTS)
        points = []
        for number, outcome in enumerate(outcomes, 1):
            test.add([outcome])
            if number % every == 0 or number == len(outcomes):
                found = test.verdict().success
                if found.n:
                    points.append(Point(f"session {number}", found.value, found.low, found.high, found.n))
        chart = interval_line(
            points, title="canary minus champion, success", low=-1.0, high=1.0, mark=0.0, mark_label="no difference"
        )
        return CanaryView(narrow.canary(canary, seen), test.verdict(), chart)


def _buckets(cases: Sequence[Case], holds: Any, alpha: float) -> list[Point]:
    """Equal numbers of cases in time order, each with its rate and interval."""
    ordered = sorted(cases, key=lambda c: c.at)
    size = max(5, -(-len(ordered) // _BUCKETS))
    groups = [ordered[start : start + size] for start in range(0, len(ordered), size)]
    if len(groups) > 1 and len(groups[-1]) < size // 2:
        groups[-2:] = [groups[-2] + groups[-1]]
    points = []
    for group in groups:
        rate = wilson(sum(map(holds, group)), len(group), alpha)
        points.append(Point(group[-1].at[5:16].replace("T", " "), rate.value, rate.low, rate.high, rate.n))
    return points
