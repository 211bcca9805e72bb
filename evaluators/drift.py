"""Is one window of work like another? Evidently's drift report under tests that keep their error rate.

Evidently's defaults flag some column in 52-86% of windows drawn from one distribution: its chi-square
takes the reference as exact truth, and its effect-size thresholds are below the noise of a few hundred
rows. So: Kolmogorov-Smirnov for measurements, a registered two-sample chi-square for categories, each
at alpha / columns (Bonferroni), a least effect that matters (`evaluators.effects`), and nothing at all below `MIN_ROWS`
a side. This is one look at two windows; `evaluators.drift_watch` looks for ever.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isnan, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from evaluators import effects, text_drift
from evaluators.cases import Case, Key
from evaluators.effects import Effect
from evaluators.text_drift import TextDrift
from evoplane.settings import Monitor

if TYPE_CHECKING:
    import pandas as pd

MIN_ROWS = 20
"""Rows each side needs: with fewer, a chi-square's expected counts are too small to mean anything."""

MEASURES = ["latency_ms", "input_tokens", "output_tokens", "request_words", "tool_calls"]
CATEGORIES = ["tenant", "action", "success", "corrected"]

Sort = Literal["workload", "behaviour", "performance"]

SORTS: dict[str, Sort] = {
    "tenant": "workload",
    "request_words": "workload",
    "topic": "workload",
    "text": "workload",
    "success": "performance",
    "corrected": "performance",
}
"""What a column is about: what is asked of the agent, or how well it did. Every other column is how it behaves."""

_METHOD = "chi2_two_sample"


class Drift(msgspec.Struct, frozen=True):
    state: Literal["drift", "quiet", "not enough data"]
    columns: dict[str, float]
    """p-value by column; a measurement that is unknown on either side has none."""
    drifted: tuple[str, ...]
    """Columns whose p-value is below the threshold and whose effect matters."""
    threshold: float
    """Bonferroni: alpha / columns."""
    current: int
    reference: int
    report_url: str | None = None
    effects: dict[str, Effect] = {}
    text: TextDrift | None = None

    @property
    def sorts(self) -> tuple[Sort, ...]:
        """What drifted: other work, other behaviour, other results."""
        return tuple(sorted({sort_of(column) for column in self.drifted}))


def sort_of(column: str) -> Sort:
    return SORTS.get(column, "behaviour")


def rows(cases: Sequence[Case]) -> dict[str, list[Any]]:
    """The watched columns, a row a trajectory, because the decisions of one depend on each other.

    Measurements are means over its decisions; what was asked and done first are the request and the action.
    """
    kept = _trajectories(cases)
    return {
        "latency_ms": [_mean([c.latency_ms for c in t]) for t in kept],
        "input_tokens": [_mean([c.input_tokens for c in t if c.input_tokens]) for t in kept],
        "output_tokens": [_mean([c.output_tokens for c in t if c.input_tokens]) for t in kept],
        "request_words": [float(len(t[0].request.split())) for t in kept],
        "tool_calls": [float(sum(_calls(c) for c in t)) for t in kept],
        "tenant": [t[0].tenant for t in kept],
        "action": [next((c.action.kind for c in t if c.action.calls), "answer") for t in kept],
        "success": [str(_succeeded(t)) for t in kept],
        "corrected": [str(any(c.corrections for c in t)) for t in kept],
    }


def requests(cases: Sequence[Case]) -> list[str]:
    """What was asked, a text a row."""
    return [t[0].request for t in _trajectories(cases)]


def _trajectories(cases: Sequence[Case]) -> list[list[Case]]:
    """Each one's decisions, oldest first; in the order in which they first come."""
    found: dict[Key, list[Case]] = {}
    for case in cases:
        found.setdefault(case.trajectory, []).append(case)
    return [sorted(members, key=lambda c: (c.at, c.event_id)) for members in found.values()]


def _calls(case: Case) -> int:
    return max(len(case.action.calls), sum(step.kind == "tool_call" for step in case.steps))


def _succeeded(trajectory: Sequence[Case]) -> bool | None:
    """All of what was judged in it."""
    told = [c.success for c in trajectory if c.success is not None]
    return all(told) if told else None


def _mean(values: Sequence[float]) -> float:
    """NaN where nothing was reported: no model call uses no tokens."""
    return sum(values) / len(values) if values else nan


def frame(cases: Sequence[Case]) -> pd.DataFrame:
    """The same, for Evidently."""
    import pandas as pd

    return pd.DataFrame(rows(cases))


def compare(
    current: pd.DataFrame, reference: pd.DataFrame, config: Monitor, text: TextDrift | None = None
) -> tuple[Drift, Any]:
    """Compare two windows; returns the result and Evidently's run (None without enough data).

    `text` is what `evaluators.text_drift.compare` said of their requests, if it was asked, at the same threshold.
    """
    threshold = level(config)
    if min(len(current), len(reference)) < MIN_ROWS:
        return Drift("not enough data", {}, (), threshold, len(current), len(reference)), None
    known = [name for name in MEASURES if _known(current[name]) >= MIN_ROWS and _known(reference[name]) >= MIN_ROWS]
    run = _report(current, reference, threshold, known)
    columns = {}
    for metric in run.dict()["metrics"]:
        column = (metric.get("config") or {}).get("column")
        if column:
            columns[column] = float(metric["value"])
    sizes = sizes_of(current, reference, config, known)
    drifted = {name for name, p in columns.items() if p < threshold and sizes[name].matters}
    if text is not None and text.state == "drift":
        drifted.add("text")
    state: Literal["drift", "quiet"] = "drift" if drifted else "quiet"
    counts = len(current), len(reference)
    return Drift(state, columns, tuple(sorted(drifted)), threshold, *counts, effects=sizes, text=text), run


def texts(current: Sequence[Case], reference: Sequence[Case], config: Monitor) -> TextDrift | None:
    """What their requests say about a shift, at the threshold of one of the columns; None where it is not asked."""
    if config.text_drift == "off":
        return None
    return text_drift.compare(
        requests(current), requests(reference), alpha=level(config), min_auc=config.min_auc, method=config.text_drift
    )


def level(config: Monitor) -> float:
    """The p-value below which a column, or the text, may be said to drift."""
    return config.alpha / (len(MEASURES) + len(CATEGORIES) + (config.text_drift != "off"))


def sizes_of(
    current: Mapping[str, Any], reference: Mapping[str, Any], config: Monitor, measures: Sequence[str]
) -> dict[str, Effect]:
    """Each column's effect size."""
    found = {
        name: effects.of_measure(_reported(current[name]), _reported(reference[name]), config) for name in measures
    }
    return found | {
        name: effects.of_category(list(current[name]), list(reference[name]), config) for name in CATEGORIES
    }


def publish(run: Any, workspace: Path, project: str, base_url: str) -> str:
    """Save a run into the agent's Evidently project; returns the address of the report."""
    from evidently.ui.workspace import Workspace

    space = Workspace.create(str(workspace))
    found = space.search_project(project)
    place = found[0] if found else _create_project(space, project)
    saved = space.add_run(place.id, run, include_data=False)
    identifier = getattr(saved, "id", None) or saved
    return f"{base_url}/projects/{place.id}/reports/{identifier}"


def _create_project(space: Any, name: str) -> Any:
    """A project whose dashboard shows the drift history: how many columns drifted at each look."""
    from evidently.sdk.models import PanelMetric
    from evidently.sdk.panels import line_plot_panel

    project = space.create_project(name, description=f"drift of agent {name}")
    counted = PanelMetric(legend="drifted columns", metric="DriftedColumnsCount", metric_labels={"value_type": "count"})
    project.dashboard.add_panel(line_plot_panel(title=f"{name}: drifted columns at each look", values=[counted]))
    for column in ("success", "action", "corrected", "tenant"):
        value = PanelMetric(legend="p-value", metric="ValueDrift", metric_labels={"column": column})
        project.dashboard.add_panel(line_plot_panel(title=f"{column}: p-value", values=[value], size="half"))
    return project


def _reported(values: Sequence[float]) -> list[float]:
    return [x for x in values if not isnan(x)]


def _known(values: pd.Series) -> int:
    return int(values.notna().sum())


def _report(current: pd.DataFrame, reference: pd.DataFrame, threshold: float, measures: list[str]) -> Any:
    import numpy as np
    from evidently import DataDefinition, Dataset, Report
    from evidently.presets import DataDriftPreset

    _register_two_sample()
    definition = DataDefinition(numerical_columns=measures, categorical_columns=CATEGORIES)
    columns = [*measures, *CATEGORIES]
    preset = DataDriftPreset(num_method="ks", num_threshold=threshold, cat_method=_METHOD, cat_threshold=threshold)
    with np.errstate(invalid="ignore"):  # Evidently correlates the columns, and one that never changes divides by zero
        return Report([preset], include_tests=True).run(
            Dataset.from_pandas(current[columns], data_definition=definition),
            Dataset.from_pandas(reference[columns], data_definition=definition),
        )


def two_sample_chi2(reference: pd.Series, current: pd.Series) -> float:
    """p-value of Pearson's test that two samples of a category share one distribution."""
    import pandas as pd
    from scipy.stats import chi2_contingency

    counts = pd.concat([reference.value_counts(), current.value_counts()], axis=1).fillna(0).to_numpy().T
    if counts.shape[1] < 2:
        return 1.0
    return float(chi2_contingency(counts, correction=False)[1])


def _register_two_sample() -> None:
    from evidently.legacy.calculations.stattests import StatTest, register_stattest
    from evidently.legacy.core import ColumnType

    test = StatTest(
        name=_METHOD,
        display_name="two-sample chi-square p_value",
        allowed_feature_types=[ColumnType.Categorical, ColumnType.Numerical],
        default_threshold=0.05,
    )

    def run(reference: Any, current: Any, feature_type: Any, level: float) -> tuple[float, bool]:
        p = two_sample_chi2(reference, current)
        return p, p < level

    register_stattest(test, run)
