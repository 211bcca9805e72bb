"""What the monitor has seen of an agent: each trigger with its evidence, drift, and the alerts there were."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp
from typing import NamedTuple

from evaluators import drift_watch, triggers, watching
from evaluators.drift import sort_of
from evaluators.intervals import Interval
from evaluators.triggers import Kind, Scope
from evaluators.watching import LastDrift, Memo
from evoplane.settings import Monitor, Settings
from registry.alerts import Alert

_LARGEST_LOG_E = 200.0


class Trigger(NamedTuple):
    whose: str
    """A tenant, or all of them."""
    name: Kind
    state: str
    """alarm, quiet, not enough data."""
    evidence: str
    """What it has, and what it would take."""
    n: int
    """Outcomes behind it."""


class Column(NamedTuple):
    """A watched column, over all looks at this version."""

    name: str
    about: str
    state: str
    """drifted, quiet."""
    e_value: float
    bound: float
    """The e-value that it takes, beside an effect that matters."""


class AlertRow(NamedTuple):
    alert: Alert
    causes: list[tuple[str, str]]
    """(when, what) of the causes the viewer may read."""
    hidden: int
    """Causes that tell of tenants the viewer may not see."""


class Watching(NamedTuple):
    version: str
    """That the triggers are about; empty before the first look."""
    whole: bool
    """May the viewer see all tenants? Only then what is about all of them is here."""
    triggers: list[Trigger]
    columns: list[Column]
    drift: LastDrift | None
    """Of the last look at the window."""
    rows: int
    looks: int
    alerts: list[AlertRow]
    """Newest first."""


def view(
    config: Settings, agent: str, seen: frozenset[str], present: Sequence[str], alerts: Sequence[Alert]
) -> Watching:
    """Of the tenants in `seen`; `present` are all that have trajectories."""
    memo = watching.remembered(config.var, agent)
    whole = set(present) | set(memo.watch.tenants) <= seen
    return Watching(
        version=memo.watch.version,
        whole=whole,
        triggers=_triggers(memo, config.monitor, seen),
        columns=_columns(memo, config.monitor) if whole else [],
        drift=memo.last_drift if whole else None,
        rows=memo.drift.rows,
        looks=memo.drift.looks,
        alerts=[_alert_row(alert, seen, whole) for alert in alerts],
    )


def _triggers(memo: Memo, config: Monitor, seen: frozenset[str]) -> list[Trigger]:
    """The agent's where every outcome is of a tenant in `seen`, and where there are several tenants, theirs."""
    watch = memo.watch
    said = {
        (f.tenant, f.kind)
        for f in triggers.findings(
            watch, target=config.target_success, alpha=config.alpha, min_outcomes=config.min_outcomes
        )
    }
    rows = _of_scope(watch.agent, None, None, said, config) if set(watch.tenants) <= seen else []
    for place, (tenant, scope) in enumerate(watch.tenants.items(), 1):
        if tenant in seen and len(watch.tenants) > 1:
            rows += _of_scope(scope, tenant, place, said, config)
    return rows


def _of_scope(
    scope: Scope, tenant: str | None, place: int | None, said: set[tuple[str | None, Kind]], config: Monitor
) -> list[Trigger]:
    alphas = triggers.alphas_of(scope, config.alpha, place)
    level = scope.level.interval
    found: list[tuple[Kind, str, int]] = [
        ("level", f"success {_text(level)}; alarm when all of it is below {config.target_success:g}", level.n),
        ("drop", _odds(scope.drop.log_e, alphas["drop"]), scope.drop.n),
    ]
    if scope.regression is not None:
        evidence = f"{_odds(scope.regression.log_e, alphas['regression'])}; the version before had {scope.before:.2f}"
        found.append(("regression", evidence, scope.regression.n))
    rows = []
    for name, evidence, n in found:
        state = "not enough data" if n < config.min_outcomes else "quiet"
        rows.append(Trigger(tenant or "all tenants", name, "alarm" if (tenant, name) in said else state, evidence, n))
    return rows


def _columns(memo: Memo, config: Monitor) -> list[Column]:
    alpha = config.alpha * triggers.SHARES["drift"] * triggers.life_share(memo.drift.epoch)
    moved = {found.column for found in drift_watch.moved(memo.drift, alpha, config)}
    bound = len(memo.drift.columns) / alpha
    return [
        Column(name, sort_of(name), "drifted" if name in moved else "quiet", _e(column.log_e), bound)
        for name, column in sorted(memo.drift.columns.items(), key=lambda pair: -pair[1].log_e)
    ]


def _alert_row(alert: Alert, seen: frozenset[str], whole: bool) -> AlertRow:
    """A cause names its tenant in its last words, or is about all of them."""
    told = [
        # a reason may go on with what other tenants' triggers say
        (cause.at, f"{cause.reason if whole else cause.cause} (version {cause.version})")
        for cause in alert.causes
        if whole or _is_of(cause.cause, seen)
    ]
    return AlertRow(alert, told, len(alert.causes) - len(told))


def _is_of(cause: str, seen: frozenset[str]) -> bool:
    return cause.partition(" of ")[2] in seen


def _text(interval: Interval) -> str:
    return "unknown" if not interval.n else f"{interval.value:.2f} [{interval.low:.2f}, {interval.high:.2f}]"


def _odds(log_e: float, alpha: float) -> str:
    return f"e-value {_e(log_e):.3g}; alarm from {1 / alpha:.3g} on"


def _e(log_e: float) -> float:
    return exp(min(log_e, _LARGEST_LOG_E))
