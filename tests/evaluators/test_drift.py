import warnings

import numpy as np
import pandas as pd
import pytest

from evaluators import drift, watching
from evaluators.drift import Drift
from evaluators.effects import Effect
from evaluators.intervals import Interval
from evaluators.text_drift import TextDrift
from evoplane.settings import Monitor

CONFIG = Monitor(text_drift="off")


def window(rng: np.random.Generator, n: int, success: float = 0.7) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "latency_ms": rng.gamma(2, 100, n),
            "input_tokens": rng.poisson(130, n).astype(float),
            "output_tokens": rng.poisson(25, n).astype(float),
            "request_words": rng.poisson(8, n).astype(float),
            "tool_calls": rng.poisson(1, n).astype(float),
            "tenant": rng.choice(["a", "b", "c"], n),
            "action": rng.choice(["answer", "track", "cancel"], n, p=[0.5, 0.3, 0.2]),
            "success": rng.choice(["True", "False"], n, p=[success, 1 - success]),
            "corrected": rng.choice(["True", "False"], n, p=[0.2, 0.8]),
        }
    )


def p_values(current: pd.DataFrame, reference: pd.DataFrame) -> list[float]:
    """What the report computes, without the report: KS and the registered two-sample chi-square."""
    from scipy.stats import ks_2samp

    measures = [ks_2samp(current[c], reference[c]).pvalue for c in drift.MEASURES]
    return measures + [drift.two_sample_chi2(reference[c], current[c]) for c in drift.CATEGORIES]


def test_windows_of_one_distribution_are_quiet_and_of_another_are_not():
    rng = np.random.default_rng(1)
    threshold = 0.05 / (len(drift.MEASURES) + len(drift.CATEGORIES))
    alarms = sum(min(p_values(window(rng, 200), window(rng, 200))) < threshold for _ in range(100))
    assert alarms <= 11  # 5%, and three standard errors of 100 windows
    hits = sum(min(p_values(window(rng, 200, 0.45), window(rng, 200))) < threshold for _ in range(20))
    assert hits >= 18


def test_the_report_uses_those_tests_at_the_corrected_level():
    rng = np.random.default_rng(2)
    current, reference = window(rng, 200, 0.4), window(rng, 200)
    found, run = drift.compare(current, reference, CONFIG)
    assert run is not None and found.state == "drift" and found.drifted == ("success",)
    assert found.columns["success"] == pytest.approx(drift.two_sample_chi2(reference["success"], current["success"]))


def test_a_measure_that_never_changes_is_compared_without_a_warning():
    rng = np.random.default_rng(2)
    still, other = window(rng, 60).assign(latency_ms=0.0), window(rng, 60).assign(latency_ms=0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        found, _ = drift.compare(still, other, CONFIG)
    assert found.columns["latency_ms"] == 1.0


def test_eight_rows_are_not_enough_data():
    rng = np.random.default_rng(3)
    found, run = drift.compare(window(rng, 8, 0.1), window(rng, 200), CONFIG)
    assert (found.state, run) == ("not enough data", None)


def test_what_is_remembered_of_a_look_names_what_moved_and_no_user_s_words():
    text = TextDrift("drift", "lexical", Interval(0.9, 0.8, 0.95, 80), 1e-9, ("where is my parcel?",))
    sizes = {"success": Effect("cohen_h", -0.5, 0.2), "tenant": Effect("cramers_v", 0.0, 0.15)}
    p = {"success": 0.0001, "tenant": 0.9}
    found = Drift("drift", p, ("success", "text"), 0.005, 40, 40, effects=sizes, text=text)
    kept = watching.last_drift(found, "2026-01-01T00:00:00Z")
    assert kept.moved[0] == "success (p 0.0001, cohen_h -0.50)"
    assert kept.moved[1].startswith("texts (p 1e-09, AUC 0.90")
    assert "parcel" not in str(kept)
