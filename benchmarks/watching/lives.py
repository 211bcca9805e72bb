"""Whole lives of an agent under the monitor's triggers, many at once.

The triggers are the monitor's own (`evaluators.sequential`, `evaluators.drift_watch`) at the shares of α that
`evaluators.triggers` gives them; outcomes of all lives are stepped together, which changes nothing but the time it
takes (`tests/benchmarks/test_watching.py` holds both to the same answer).
"""

from __future__ import annotations

from math import log

import numpy as np
from numpy.typing import NDArray

from benchmarks.watching.streams import Outcomes, rows
from evaluators import drift_watch, triggers
from evaluators.drift_watch import DriftWatch
from evaluators.sequential import RESTART_EVERY, Drops, Level
from evaluators.triggers import Scope
from evoplane.settings import Monitor

NEVER = np.iinfo(np.int64).max

Times = NDArray[np.int64]
"""Sessions until the first alarm, by life; `NEVER` if there was none."""


def success_alarms(outcomes: Outcomes, config: Monitor) -> Times:
    """First alarm about success: of the agent as a whole, and of two tenants that take turns."""
    found = _scope_alarms(outcomes, config, None)
    for place in (1, 2):
        own = _scope_alarms(outcomes[:, place - 1 :: 2], config, place)
        found = np.minimum(found, np.where(own == NEVER, NEVER, own * 2))
    return found


def drift_alarms(rng: np.random.Generator, outcomes: Outcomes, config: Monitor) -> Times:
    """First alarm about drift of any column, whether it would disturb anybody or only be reported."""
    alpha = config.alpha * triggers.SHARES["drift"] * triggers.life_share(1)
    return np.array([_drifts_at(rng, life, alpha, config) for life in outcomes])


def _scope_alarms(outcomes: Outcomes, config: Monitor, place: int | None) -> Times:
    alphas = triggers.alphas_of(Scope(), config.alpha, place)
    evidence = Drops(len(outcomes)).update(outcomes)
    ends = np.minimum(np.arange(1, evidence.shape[1] + 1) * RESTART_EVERY, outcomes.shape[1])
    fell = np.array([_first(e >= log(1 / alphas["drop"]), ends, config.min_outcomes) for e in evidence])
    below = np.array([_below(life, alphas["level"], config) for life in outcomes])
    return np.minimum(fell, below)


def _below(life: Outcomes, alpha: float, config: Monitor) -> int:
    upper = Level(alpha).fit(life).upper_
    return _first(upper < config.target_success, np.arange(1, len(life) + 1), config.min_outcomes)


def _first(alarm: NDArray[np.bool_], at: NDArray[np.int64], least: int) -> int:
    """A state that is reached stays: before `least` outcomes it is only not said yet."""
    hits = np.flatnonzero(alarm)
    return max(int(at[hits[0]]), least) if hits.size else NEVER


def _drifts_at(rng: np.random.Generator, life: Outcomes, alpha: float, config: Monitor) -> int:
    watch = DriftWatch()
    columns = rows(rng, life)
    size = config.drift_min_rows
    for start in range(0, len(life) - size + 1, size):
        drift_watch.follow(watch, {name: values[start : start + size] for name, values in columns.items()}, config)
        if drift_watch.moved(watch, alpha, config):
            return start + size
    return NEVER
