"""When an agent is worth disturbing: triggers that may be read after every outcome, for ever.

An outcome is one judged trajectory of the version that serves: its decisions are not independent of each other, so
they count once. Three questions are asked of the agent as a whole, and two of each tenant:

- *level*: is success below the target? The upper bound of a betting confidence sequence is.
- *drop*: did success fall against this version's own past? (`evaluators.sequential.Drops`)
- *regression*: is it below what the version before had? The same test with one moment of change, the first outcome.

**The error budget.** α is the probability that an agent whose success never changes and reaches the target is ever
disturbed while a version serves. It is split before anything is seen (`SHARES`), by a union bound: tenants get theirs
in order of arrival (`sequential.share`), and each restart after an alarm gets a fraction of what was left
(`life_share`). Drift has its own share (`evaluators.drift_watch`).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log
from typing import Literal

import msgspec

from evaluators.intervals import Interval
from evaluators.sequential import DropState, LevelState, against, followed, share

Kind = Literal["level", "drop", "regression"]

SHARES = {"drop": 1 / 3, "level": 1 / 6, "regression": 1 / 6, "tenants": 1 / 6, "drift": 1 / 6}
"""Parts of α. A drop is what is hardest to see, so it gets the most."""
_KEPT_FOR_LATER = 0.2
"""Share of the error budget that stays for what follows an alarm, each time."""


class Outcome(msgspec.Struct, frozen=True):
    """One judged trajectory, in the order in which judgements came in."""

    tenant: str
    value: float
    """Its reward, in [0, 1]."""


class Finding(msgspec.Struct, frozen=True):
    """Something a trigger says with confidence."""

    kind: Kind
    tenant: str | None
    """None: the agent as a whole."""
    sentence: str
    n: int

    @property
    def cause(self) -> str:
        """What debouncing goes by."""
        name = "success" if self.kind == "level" else self.kind
        return name if self.tenant is None else f"{name} of {self.tenant}"


class Scope(msgspec.Struct, kw_only=True):
    """The triggers of the agent, or of one tenant."""

    level: LevelState = msgspec.field(default_factory=LevelState)
    drop: DropState = msgspec.field(default_factory=DropState)
    regression: DropState | None = None
    before: float = 0.0
    """Success of the version before."""
    epoch: int = 1
    """Restarts after an alarm about a drop, from 1."""


class Watch(msgspec.Struct, kw_only=True):
    """What is remembered of a version between two looks; grows with tenants, not with outcomes."""

    version: str = ""
    agent: Scope = msgspec.field(default_factory=Scope)
    tenants: dict[str, Scope] = {}


def renewed(watch: Watch, version: str, min_outcomes: int) -> Watch:
    """The watch of a version that begins to serve; the one before is what it is compared with."""
    fresh = Watch(version=version)
    if watch.agent.drop.n >= min_outcomes:
        fresh.agent.regression = against(watch.agent.drop)
        fresh.agent.before = watch.agent.level.interval.value
    return fresh


def follow(watch: Watch, outcomes: Sequence[Outcome], alpha: float) -> None:
    """Take new outcomes in; each only once."""
    values = [o.value for o in outcomes]
    if not values:
        return
    if not all(0.0 <= v <= 1.0 for v in values):
        raise ValueError("a reward must lie between 0 and 1")
    _follow(watch.agent, values, alphas_of(watch.agent, alpha))
    by_tenant: dict[str, list[float]] = {}
    for o in outcomes:
        by_tenant.setdefault(o.tenant, []).append(o.value)
    for tenant, mine in by_tenant.items():
        scope = watch.tenants.setdefault(tenant, Scope())
        _follow(scope, mine, alphas_of(scope, alpha, _place(watch, tenant)))


def findings(watch: Watch, *, target: float, alpha: float, min_outcomes: int) -> list[Finding]:
    """What the triggers say now, the agent first. With one tenant, its triggers are the agent's."""
    found = _findings(watch.agent, None, alphas_of(watch.agent, alpha), target, min_outcomes)
    if len(watch.tenants) > 1:
        for tenant, scope in watch.tenants.items():
            found += _findings(scope, tenant, alphas_of(scope, alpha, _place(watch, tenant)), target, min_outcomes)
    return found


def told(watch: Watch, finding: Finding) -> None:
    """An alarm went out. A drop begins a new past to compare with; a regression is said once; a level stays."""
    scope = watch.agent if finding.tenant is None else watch.tenants[finding.tenant]
    if finding.kind == "drop":
        scope.level, scope.drop, scope.epoch = LevelState(), DropState(), scope.epoch + 1
    elif finding.kind == "regression":
        scope.regression = None


def _follow(scope: Scope, values: Sequence[float], alphas: dict[Kind, float]) -> None:
    scope.level = followed(scope.level, alphas["level"], values)
    scope.drop.update(values)
    if scope.regression is not None:
        scope.regression.update(values)


def _findings(
    scope: Scope, tenant: str | None, alphas: dict[Kind, float], target: float, min_outcomes: int
) -> list[Finding]:
    whose = "" if tenant is None else f" of tenant {tenant}"
    out: list[Finding] = []
    level = scope.level.interval
    if level.n >= min_outcomes and level.high < target:
        sentence = f"success{whose} {level.value:.2f} < {target:.2f} ({_text(level)}, at any time)"
        out.append(Finding("level", tenant, sentence, level.n))
    if scope.drop.n >= min_outcomes and scope.drop.log_e >= log(1 / alphas["drop"]):
        sentence = f"success{whose} fell below this version's own past ({_odds(scope.drop)})"
        out.append(Finding("drop", tenant, sentence, scope.drop.n))
    worse = scope.regression
    if worse is not None and worse.n >= min_outcomes and worse.log_e >= log(1 / alphas["regression"]):
        sentence = (
            f"success{whose} {level.value:.2f} is below {scope.before:.2f} of the version before ({_odds(worse)})"
        )
        out.append(Finding("regression", tenant, sentence, worse.n))
    return out


def alphas_of(scope: Scope, alpha: float, place: int | None = None) -> dict[Kind, float]:
    """Each trigger's part of `alpha`: the agent's, or those of the tenant that came as the `place`-th."""
    if place is None:
        parts: dict[Kind, float] = {kind: alpha * SHARES[kind] for kind in ("level", "drop", "regression")}
    else:
        mine = alpha * SHARES["tenants"] * share(place)
        parts = {"level": mine / 2, "drop": mine / 2, "regression": 0.0}
    for kind in ("level", "drop"):
        parts[kind] *= life_share(scope.epoch)
    return parts


def life_share(number: int) -> float:
    """The share of the number-th life between alarms about drops: 0.8, 0.16, …; they sum to one."""
    return (1 - _KEPT_FOR_LATER) * _KEPT_FOR_LATER ** (number - 1)


def _place(watch: Watch, tenant: str) -> int:
    return list(watch.tenants).index(tenant) + 1


def _text(interval: Interval) -> str:
    return f"[{interval.low:.2f}, {interval.high:.2f}], n={interval.n}"


def _odds(state: DropState) -> str:
    return f"e-value {exp(min(state.log_e, 200.0)):.3g}, n={state.n}"
