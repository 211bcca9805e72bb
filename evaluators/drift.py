"""Has the work changed? Evidently's drift report under tests that keep their error rate.

Evidently's defaults flag some column in 52-86% of windows drawn from one distribution: its chi-square
takes the reference as exact truth, and its effect-size thresholds are below the noise of a few hundred
rows. So: Kolmogorov-Smirnov for measurements, a registered two-sample chi-square for categories, each
at alpha / columns (Bonferroni), and nothing at all below `MIN_ROWS` a side.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from evaluators.cases import Case

if TYPE_CHECKING:
    import pandas as pd

MIN_ROWS = 20
"""Rows each side needs: with fewer, a chi-square's expected counts are too small to mean anything."""

MEASURES = ["latency_ms", "input_tokens", "output_tokens", "request_words"]
CATEGORIES = ["tenant", "action", "success", "corrected"]
_METHOD = "chi2_two_sample"


class Drift(msgspec.Struct, frozen=True):
    state: Literal["drift", "quiet", "not enough data"]
    columns: dict[str, float]
    """p-value by column."""
    drifted: tuple[str, ...]
    threshold: float
    """Bonferroni: alpha / columns."""
    current: int
    reference: int
    report_url: str | None = None


def frame(cases: Sequence[Case]) -> pd.DataFrame:
    """The cases as the columns that are watched."""
    import pandas as pd

    return pd.DataFrame(
        {
            "latency_ms": [c.latency_ms for c in cases],
            "input_tokens": [float(c.input_tokens) for c in cases],
            "output_tokens": [float(c.output_tokens) for c in cases],
            "request_words": [float(len(c.request.split())) for c in cases],
            "tenant": [c.tenant for c in cases],
            "action": [c.action.kind for c in cases],
            "success": [str(c.success) for c in cases],
            "corrected": [str(bool(c.corrections)) for c in cases],
        }
    )


def compare(current: pd.DataFrame, reference: pd.DataFrame, alpha: float = 0.05) -> tuple[Drift, Any]:
    """Compare two windows; returns the result and Evidently's run (None without enough data)."""
    threshold = alpha / (len(MEASURES) + len(CATEGORIES))
    if min(len(current), len(reference)) < MIN_ROWS:
        return Drift("not enough data", {}, (), threshold, len(current), len(reference)), None
    run = _report(current, reference, threshold)
    columns = {}
    for metric in run.dict()["metrics"]:
        column = (metric.get("config") or {}).get("column")
        if column:
            columns[column] = float(metric["value"])
    drifted = tuple(sorted(name for name, p in columns.items() if p < threshold))
    state: Literal["drift", "quiet"] = "drift" if drifted else "quiet"
    return Drift(state, columns, drifted, threshold, len(current), len(reference)), run


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


def _report(current: pd.DataFrame, reference: pd.DataFrame, threshold: float) -> Any:
    from evidently import DataDefinition, Dataset, Report
    from evidently.presets import DataDriftPreset

    _register_two_sample()
    definition = DataDefinition(numerical_columns=MEASURES, categorical_columns=CATEGORIES)
    preset = DataDriftPreset(num_method="ks", num_threshold=threshold, cat_method=_METHOD, cat_threshold=threshold)
    return Report([preset], include_tests=True).run(
        Dataset.from_pandas(current, data_definition=definition),
        Dataset.from_pandas(reference, data_definition=definition),
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
