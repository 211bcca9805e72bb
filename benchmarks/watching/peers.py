"""What else one could watch with, on the same streams: a fixed-horizon test, the same peeked at, Evidently's preset."""

from __future__ import annotations

from math import ceil, sqrt
from statistics import NormalDist
from typing import Any

import numpy as np

from benchmarks.watching.lives import NEVER, Times
from benchmarks.watching.streams import Outcomes, rows

WINDOW = 200
"""Newest sessions that are compared with those before them."""


def planned(before: float, after: float, alpha: float, power: float = 0.8) -> int:
    """Sessions a one-sided two-proportion test with a long past needs after the change: it is looked at once, then."""
    z = NormalDist().inv_cdf(1 - alpha) * sqrt(before * (1 - before)) + NormalDist().inv_cdf(power) * sqrt(
        after * (1 - after)
    )
    return ceil((z / (before - after)) ** 2)


def fixed_horizon(outcomes: Outcomes, past: int, n: int, alpha: float) -> Times:
    """One look, `n` sessions after the change at `past`: who plans it knows when the change will be."""
    return np.array([past + n if _worse(life[:past], life[past : past + n], alpha) else NEVER for life in outcomes])


def peeked(outcomes: Outcomes, every: int, alpha: float) -> Times:
    """The same test of the newest window against everything before it, looked at every so many sessions."""
    out = []
    for life in outcomes:
        looks = range(2 * WINDOW, len(life) + 1, every)
        out.append(next((t for t in looks if _worse(life[: t - WINDOW], life[t - WINDOW : t], alpha)), NEVER))
    return np.array(out)


def evidently_preset(rng: np.random.Generator, outcomes: Outcomes, every: int, start: int = 0) -> Times:
    """`DataDriftPreset` as it comes, newest window against the one before: the first look that flags a column."""
    return np.array([_flagged_at(rows(rng, life), len(life), every, start) for life in outcomes])


def _worse(before: Outcomes, after: Outcomes, alpha: float) -> bool:
    p, q, n, m = before.mean(), after.mean(), len(before), len(after)
    pooled = (before.sum() + after.sum()) / (n + m)
    spread = sqrt(max(pooled * (1 - pooled), 1e-12) * (1 / n + 1 / m))
    return bool((p - q) / spread > NormalDist().inv_cdf(1 - alpha))


def _flagged_at(columns: dict[str, list[Any]], sessions: int, every: int, start: int) -> int:
    import pandas as pd
    from evidently import DataDefinition, Dataset, Report
    from evidently.presets import DataDriftPreset

    frame = pd.DataFrame(columns)
    numbers = [name for name in frame if isinstance(columns[name][0], float)]
    kinds = DataDefinition(
        numerical_columns=numbers, categorical_columns=[name for name in frame if name not in numbers]
    )
    for t in range(max(start, 2 * WINDOW), sessions + 1, every):
        current, reference = frame[t - WINDOW : t], frame[t - 2 * WINDOW : t - WINDOW]
        run = Report([DataDriftPreset()]).run(
            Dataset.from_pandas(current, data_definition=kinds), Dataset.from_pandas(reference, data_definition=kinds)
        )
        if _count(run.dict()) > 0:
            return t
    return NEVER


def _count(found: dict[str, Any]) -> float:
    for metric in found["metrics"]:
        if "DriftedColumnsCount" in str(metric.get("metric_name") or metric.get("metric_id") or metric.get("id")):
            return float(metric["value"]["count"])
    raise RuntimeError("Evidently's report has no DriftedColumnsCount")
