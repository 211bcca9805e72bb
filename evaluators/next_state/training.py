"""Training the next-state classifier: refused with too few labels, calibrated, measured on unseen conversations.

Everything reported comes from an outer cross-validation whose folds never divide a conversation. For each fold the
temperature is fitted by an inner one on the rest, and the confidence it speaks at is chosen on the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from evaluators.intervals import Interval, wilson
from evaluators.next_state import LABELS
from evaluators.next_state.classifier import Array, Classifier, Embed, Report, features, softmax
from evaluators.next_state.replies import Reply

MIN_LABELS = 20
"""Labelled replies of each class, from as many conversations at least as there are folds."""
_FOLDS = 5
_INNER = 3
_BINS = 10
_RESAMPLES = 400
_STRENGTH = 10.0
"""Inverse of the penalty on the weights (scikit-learn's C)."""


class TooFewLabels(Exception):
    """Not enough to learn from; the message says what is missing."""


def train(
    replies: Iterable[Reply], embed: Embed, embedding: str, *, precision: float = 0.9, alpha: float = 0.05
) -> Classifier:
    """Train on the labelled replies; raises `TooFewLabels`.

    It will speak only at confidences where, on unseen conversations, what it said was right at least `precision` of the
    time; where no confidence reaches that, it never speaks (threshold above 1).
    """
    known = [r for r in replies if r.label is not None]
    counts = Counter(r.label for r in known)
    short = [f"{counts[label]} {label}" for label in LABELS if counts[label] < MIN_LABELS]
    if short:
        raise TooFewLabels(f"{', '.join(short)}: {MIN_LABELS} labelled replies of each class are needed")
    groups = np.array([f"{r.tenant}/{r.trajectory_id}" for r in known])
    if len(set(groups)) < 2 * _FOLDS:
        raise TooFewLabels(f"{len(set(groups))} conversations: {2 * _FOLDS} are needed to measure it on unseen ones")
    x, y = features(known, embed), np.array([LABELS.index(r.label) for r in known if r.label is not None])
    unseen = np.zeros((len(known), len(LABELS)))
    folds = _folds(x, y, groups, _FOLDS)
    for fit, held in folds:
        logits = _fitted(x[fit], y[fit], x[held])
        unseen[held] = softmax(logits / _temperature(_unseen_logits(x[fit], y[fit], groups[fit]), y[fit]))
    confidence, right = unseen.max(axis=1), unseen.argmax(axis=1) == y
    spoken = np.zeros(len(known), dtype=bool)
    for fit, held in folds:
        spoken[held] = confidence[held] >= _threshold(confidence[fit], right[fit], precision)
    model = _regression().fit(x, y)
    return Classifier(
        coefficients=np.asarray(model.coef_, dtype=float),
        intercepts=np.asarray(model.intercept_, dtype=float),
        temperature=_temperature(_unseen_logits(x, y, groups), y),
        threshold=_threshold(confidence, right, precision),
        embedding=embedding,
        report=Report(
            labels={label: counts[label] for label in LABELS},
            accuracy=wilson(int(right.sum()), len(right), alpha),
            spoken_accuracy=wilson(int(right[spoken].sum()), int(spoken.sum()), alpha),
            spoken=wilson(int(spoken.sum()), len(spoken), alpha),
            calibration_error=_calibration_error(confidence, right, alpha),
        ),
    )


def _regression() -> Any:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(C=_STRENGTH, max_iter=2000, class_weight="balanced")


def _fitted(x: Array, y: Any, other: Array) -> Array:
    return np.asarray(_regression().fit(x, y).decision_function(other), dtype=float)


def _folds(x: Array, y: Any, groups: Any, count: int) -> list[tuple[Any, Any]]:
    """Folds with like shares of each class that divide no conversation and lack no class to learn from."""
    from sklearn.model_selection import StratifiedGroupKFold

    folds = list(StratifiedGroupKFold(count, shuffle=True, random_state=0).split(x, y, groups))
    if any(len(set(y[fit])) < len(LABELS) for fit, _ in folds):
        raise TooFewLabels("one class comes from so few conversations that a fold lacks it")
    return folds


def _unseen_logits(x: Array, y: Any, groups: Any) -> Array:
    logits = np.zeros((len(y), len(LABELS)))
    for fit, held in _folds(x, y, groups, _INNER):
        logits[held] = _fitted(x[fit], y[fit], x[held])
    return logits


def _temperature(logits: Array, y: Any) -> float:
    """The temperature with the least cross-entropy."""
    from scipy.optimize import minimize_scalar

    def loss(log_temperature: float) -> float:
        told = softmax(logits / np.exp(log_temperature))
        return float(-np.log(told[np.arange(len(y)), y] + 1e-12).mean())

    return float(np.exp(minimize_scalar(loss, bounds=(-3, 3), method="bounded").x))


def _threshold(confidence: Array, right: Any, precision: float) -> float:
    """The lowest confidence above which the share that is right reaches `precision` (of at least `MIN_LABELS`)."""
    order = np.argsort(-confidence)
    share = np.cumsum(right[order]) / np.arange(1, len(order) + 1)
    reached = [n for n in range(MIN_LABELS - 1, len(order)) if share[n] >= precision]
    return float(confidence[order][max(reached)]) if reached else 1.01


def _calibration_error(confidence: Array, right: Any, alpha: float) -> Interval:
    """Expected calibration error in ten equal bins, with a percentile bootstrap interval."""
    draws = np.random.default_rng(0)
    n = len(confidence)
    again = [_ece(confidence[at], right[at]) for at in (draws.integers(0, n, n) for _ in range(_RESAMPLES))]
    low, high = np.quantile(again, [alpha / 2, 1 - alpha / 2])
    return Interval(value=_ece(confidence, right), low=float(low), high=float(high), n=n)


def _ece(confidence: Sequence[float] | Array, right: Any) -> float:
    confidence = np.asarray(confidence)
    bins = np.minimum((confidence * _BINS).astype(int), _BINS - 1)
    gaps = [abs(confidence[bins == b].mean() - right[bins == b].mean()) * (bins == b).mean() for b in set(bins)]
    return float(sum(gaps))
