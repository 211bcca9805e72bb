"""The monitor's computation: what is remembered of an agent between looks, and what a look makes of what is new.

State grows with tenants and columns, not with outcomes; a look costs what came since the last one. It is kept in
`<var>/monitor/<agent>.json`, behind a lock, so that simultaneous looks take turns and no outcome counts twice.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from evaluators import drift, drift_watch, triggers
from evaluators.cases import Case
from evaluators.drift import Drift
from evaluators.drift_watch import DriftWatch, Moved
from evaluators.statistics import outcome
from evaluators.text_drift import Topics
from evaluators.triggers import Finding, Outcome, Watch
from evoplane import files
from evoplane.settings import Monitor


class LastDrift(msgspec.Struct, frozen=True, kw_only=True):
    """What the last look at a window found, for people."""

    at: str
    state: str
    """drift, quiet, not enough data."""
    moved: tuple[str, ...]
    """Each drifted column with its p-value and effect."""
    current: int
    """Trajectories in the newer half, and in the half it was compared with."""
    reference: int
    report_url: str | None = None


class Memo(msgspec.Struct, kw_only=True):
    seen: str = ""
    """What the last look saw: unchanged means nothing new."""
    cursor: dict[str, int] = {}
    """How far each tenant's log has been read for judgements."""
    alerts: dict[str, dict[str, Any]] = {}
    """By cause: {"at", "version", "newest"} of the last alert; `newest` is its window's last judgement."""
    watch: Watch = msgspec.field(default_factory=Watch)
    drift: DriftWatch = msgspec.field(default_factory=DriftWatch)
    topics: Topics = msgspec.field(default_factory=Topics)
    last_drift: LastDrift | None = None


class Seen(msgspec.Struct, frozen=True):
    """What the triggers say now."""

    findings: list[Finding]
    moved: list[Moved]

    @property
    def worse(self) -> list[Moved]:
        """Drift of how well the agent does, for the worse; what a shift of the workload alone never is."""
        return [m for m in self.moved if _is_worse(m)]

    @property
    def workload(self) -> list[Moved]:
        return [m for m in self.moved if drift.sort_of(m.column) == "workload"]

    @property
    def cause(self) -> tuple[str, str] | None:
        """(cause, sentence) when the agent is worth an evolution."""
        sentences = [*(f.sentence for f in self.findings), *(f"drift in {m}" for m in self.worse)]
        if not sentences:
            return None
        return self.findings[0].cause if self.findings else "drift", "; ".join(sentences)


def take(memo: Memo, version: str, judged: Sequence[Sequence[Case]], config: Monitor) -> None:
    """Take in newly judged trajectories (each its decisions) of the version that serves, in the order of judgement."""
    if memo.watch.version != version:
        memo.watch = triggers.renewed(memo.watch, version, config.min_outcomes)
        memo.drift, memo.topics = DriftWatch(), Topics()
    if not judged:
        return
    outcomes = [Outcome(tenant=members[0].tenant, value=outcome(members)) for members in judged]
    triggers.follow(memo.watch, outcomes, config.alpha)
    cases = [case for members in judged for case in members]
    rows = drift.rows(cases)
    if config.text_drift != "off":
        rows["topic"] = topics(memo, cases, config)
    drift_watch.follow(memo.drift, rows, config)


def topics(memo: Memo, cases: Sequence[Case], config: Monitor) -> list[str]:
    """Each trajectory's topic. Until there are enough requests to find topics in, there is only one."""
    texts = drift.requests(cases)
    found = memo.topics
    if not found.centres and len(texts) < config.drift_min_rows:
        return ["topic"] * len(texts)
    if not found.centres:
        assert config.text_drift != "off"
        found.method = config.text_drift
    return found.of(texts)


def seen(memo: Memo, config: Monitor) -> Seen:
    """What the triggers say of all that was taken in."""
    found = triggers.findings(
        memo.watch, target=config.target_success, alpha=config.alpha, min_outcomes=config.min_outcomes
    )
    alpha = config.alpha * triggers.SHARES["drift"] * triggers.life_share(memo.drift.epoch)
    return Seen(found, drift_watch.moved(memo.drift, alpha, config))


def last_drift(found: Drift, at: str) -> LastDrift:
    """What people read of a look at a window; texts only by how far they moved, never by their words."""
    moved = [
        f"{name} (p {found.columns[name]:.2g}, {found.effects[name]})"
        for name in found.drifted
        if name in found.effects
    ]
    if found.text is not None and found.text.state == "drift":
        moved.append(f"texts (p {found.text.p:.2g}, AUC {found.text.auc})")
    return LastDrift(
        at=at,
        state=found.state,
        moved=tuple(moved),
        current=found.current,
        reference=found.reference,
        report_url=found.report_url,
    )


def told(memo: Memo, found: Seen) -> None:
    """An alert with all of this went out; what it was about begins anew."""
    for finding in found.findings:
        triggers.told(memo.watch, finding)
    if found.moved:
        memo.drift = drift_watch.begun_anew(memo.drift)


@contextmanager
def memo(var: Path, agent: str) -> Iterator[Memo]:
    """The agent's memo, locked; written back, durably, when the block ends well."""
    folder = var / "monitor"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{agent}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        state = remembered(var, agent)
        yield state
        files.write_durably(folder / f"{agent}.json", msgspec.json.encode(state))


def remembered(var: Path, agent: str) -> Memo:
    """The memo as the last look left it."""
    file = var / "monitor" / f"{agent}.json"
    return msgspec.json.decode(file.read_bytes(), type=Memo) if file.exists() else Memo()


def _is_worse(found: Moved) -> bool:
    size = found.effect.size
    return (found.column == "success" and size < 0) or (found.column == "corrected" and size > 0)
