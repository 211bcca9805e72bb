"""Has the work changed? Looked at for ever, with one error budget for all columns and all looks.

Rows come one a trajectory. Every `rows` of them are a look: their counts by category (a measurement's categories are
the octiles of the first rows) against those of all rows before. Given the two together, the counts of the newer rows
are hypergeometric if nothing changed, whatever the distribution is; so the ratio of any other law of the counts to
that one is an e-value. The other law here is a Dirichlet–multinomial about the pooled shares, mixed over three
concentrations.

The looks' e-values are multiplied from every possible moment of a change on, and those products averaged with weights
that sum to one (as in `evaluators.sequential`). Comparing each batch with everything before it is what makes looks
independent of each other, exactly for ranks without ties (Vovk's conformal martingales) and nearly for counts. A
column drifts when its e-value reaches columns/α **and** the effect of the recent looks is large enough to matter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import exp, isnan, log

import msgspec
import numpy as np
from scipy.special import gammaln

from evaluators import effects
from evaluators.effects import Effect
from evaluators.sequential import moment_weight
from evoplane.settings import Monitor

Columns = Mapping[str, Sequence[float | str]]
"""A measurement's or a category's values by column, all of one length."""

_CONCENTRATIONS = (3.0, 12.0, 50.0)
_CELLS = 8
_UNKNOWN = "unknown"
"""The cell of a measurement that nobody reported."""
_RECENT = 4
"""Looks whose rows together say how large the effect is."""
_LARGEST_LOG_E = 300.0
_NOTHING = -1e9
"""The log of no evidence at all, as JSON can write it."""


class Column(msgspec.Struct, kw_only=True):
    """What is remembered of a column."""

    edges: list[float] | None = None
    """Of a measurement: cell boundaries, from the first look on."""
    past: dict[str, int] = {}
    recent: list[dict[str, int]] = []
    """Counts of the newest looks, which `past` does not hold yet."""
    log_e: float = _NOTHING


class DriftWatch(msgspec.Struct, kw_only=True):
    columns: dict[str, Column] = {}
    looks: int = 0
    rows: int = 0
    epoch: int = 1
    pending: dict[str, list[float | str | None]] = {}
    """Rows that are not a look yet; None is NaN, which JSON can't write."""


class Moved(msgspec.Struct, frozen=True):
    """A column that drifted."""

    column: str
    e_value: float
    effect: Effect

    def __str__(self) -> str:
        return f"{self.column} ({self.effect}, e-value {self.e_value:.3g})"


def follow(watch: DriftWatch, rows: Columns, config: Monitor) -> None:
    """Take new rows in; every `drift_min_rows` of them are a look."""
    for name, values in rows.items():
        known = (None if isinstance(v, float) and isnan(v) else v for v in values)
        watch.pending.setdefault(name, []).extend(known)
    size = config.drift_min_rows
    while watch.pending and len(next(iter(watch.pending.values()))) >= size:
        watch.looks += 1
        watch.rows += size
        for name, waiting in watch.pending.items():
            _look(watch.columns.setdefault(name, Column()), waiting[:size], watch.looks)
        watch.pending = {name: values[size:] for name, values in watch.pending.items()}


def moved(watch: DriftWatch, alpha: float, config: Monitor) -> list[Moved]:
    """Columns that drifted, with probability at most `alpha` for any of them ever if nothing changes."""
    if not watch.columns:
        return []
    bound = log(len(watch.columns) / alpha)
    found = []
    for name, column in sorted(watch.columns.items()):
        if column.log_e >= bound and (effect := _effect(column, config)).matters:
            found.append(Moved(name, exp(min(column.log_e, _LARGEST_LOG_E)), effect))
    return found


def begun_anew(watch: DriftWatch) -> DriftWatch:
    """After drift was told: what is new now is what later rows are compared with."""
    columns = {name: Column(edges=c.edges, past=dict(_total(c.recent))) for name, c in watch.columns.items()}
    return DriftWatch(columns=columns, epoch=watch.epoch + 1, pending=watch.pending)


def log_e_value(batch: Mapping[str, int], past: Mapping[str, int]) -> float:
    """log e-value of "the batch is a random part of batch and past": 0 when either is empty."""
    names = sorted(set(batch) | set(past))
    new = np.array([batch.get(n, 0) for n in names], dtype=float)
    bag = new + np.array([past.get(n, 0) for n in names], dtype=float)
    n, total = new.sum(), bag.sum()
    if n == 0 or n == total:
        return 0.0
    ways = gammaln(n + 1) - gammaln(new + 1).sum()
    if_same = (gammaln(bag + 1) - gammaln(new + 1) - gammaln(bag - new + 1)).sum() - (
        gammaln(total + 1) - gammaln(n + 1) - gammaln(total - n + 1)
    )
    if_other = []
    for concentration in _CONCENTRATIONS:
        a = concentration * bag / total
        if_other.append(
            ways + gammaln(concentration) - gammaln(concentration + n) + (gammaln(a + new) - gammaln(a)).sum()
        )
    return float(np.logaddexp.reduce(if_other) - log(len(_CONCENTRATIONS)) - if_same)


def _look(column: Column, values: Sequence[float | str | None], look: int) -> None:
    numbers = not isinstance(values[0], str)  # a category is never None
    if numbers and column.edges is None:
        known = np.asarray(values, dtype=float)
        known = known[~np.isnan(known)]
        column.edges = [float(q) for q in np.quantile(known, np.arange(1, _CELLS) / _CELLS)] if len(known) else []
    batch = _counts(values, column.edges)
    before = _total([column.past, *column.recent])
    if before:
        reached = np.logaddexp(column.log_e, log(moment_weight(look))) + log_e_value(batch, before)
        column.log_e = float(min(reached, _LARGEST_LOG_E))
    column.recent.append(dict(batch))
    if len(column.recent) > _RECENT:
        column.past = dict(_total([column.past, column.recent.pop(0)]))


def _counts(values: Sequence[float | str | None], edges: list[float] | None) -> Counter[str]:
    if edges is None:
        return Counter(str(v) for v in values)
    numbers = np.asarray(values, dtype=float)
    unknown = int(np.isnan(numbers).sum())
    cells = np.searchsorted(edges, numbers[~np.isnan(numbers)], side="right")
    counts = Counter({str(cell): int(n) for cell, n in enumerate(np.bincount(cells)) if n})
    return counts + Counter({_UNKNOWN: unknown})


def _effect(column: Column, config: Monitor) -> Effect:
    new, old = _total(column.recent), Counter(column.past)
    if not old:
        first, rest = _total(column.recent[:1]), _total(column.recent[1:])
        new, old = rest, first
    if column.edges is None:
        return effects.of_counts(new, old, config)
    cells = [*(str(cell) for cell in range(_CELLS)), _UNKNOWN]
    a = np.cumsum([new[c] for c in cells]) / max(1, new.total())
    b = np.cumsum([old[c] for c in cells]) / max(1, old.total())
    return Effect("ks_d", float(np.max(np.abs(a - b))), effects.least("ks_d", config))


def _total(counts: Sequence[Mapping[str, int]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for count in counts:
        total.update(count)
    return total
