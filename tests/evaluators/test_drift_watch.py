"""Drift looked at for ever: its error rate, its power, its answer to small and to large samples."""

from __future__ import annotations

from itertools import product
from math import comb, exp
from typing import Any

import numpy as np
import pytest

from evaluators import drift_watch, effects, watching
from evaluators.drift_watch import DriftWatch, follow, log_e_value, moved
from evaluators.watching import Memo
from evoplane.settings import Monitor

CONFIG = Monitor(text_drift="off")
ALPHA = 0.05 / 6


def rows(rng: np.random.Generator, n: int, **given: Any) -> dict[str, list[Any]]:
    shift = given.get("shift", 0.0)
    return {
        "latency_ms": list(rng.gamma(2, 100, n) * (1 + shift)),
        "request_words": [float(x) for x in rng.poisson(8, n)],
        "tenant": [str(t) for t in rng.choice(["a", "b", "c"], n, p=given.get("tenants", [0.5, 0.3, 0.2]))],
        "action": [str(t) for t in rng.choice(["answer", "track", "cancel"], n, p=[0.5, 0.3, 0.2])],
        "success": [str(bool(x)) for x in rng.random(n) < given.get("success", 0.85)],
    }


def test_the_counts_e_value_averages_at_most_one_if_nothing_changed() -> None:
    """Over every way to draw 6 of a bag of 20: E ≤ 1, exactly."""
    bag, n = {"a": 9, "b": 7, "c": 4}, 6
    total = 0.0
    for a, b, c in product(range(n + 1), repeat=3):
        if a + b + c != n or a > 9 or b > 7 or c > 4:
            continue
        probability = comb(9, a) * comb(7, b) * comb(4, c) / comb(20, n)
        batch = {"a": a, "b": b, "c": c}
        total += probability * exp(log_e_value(batch, {k: bag[k] - batch[k] for k in bag}))
    assert 0.5 < total <= 1 + 1e-9


def test_an_agent_that_stays_as_it_is_is_hardly_ever_said_to_drift() -> None:
    rng = np.random.default_rng(1)
    alarms = 0
    for _ in range(60):
        watch = DriftWatch()
        for _ in range(12):
            follow(watch, rows(rng, 200), CONFIG)
            if moved(watch, ALPHA, CONFIG):
                alarms += 1
                break
    assert alarms <= 2


def test_what_moved_is_named_with_its_effect() -> None:
    rng = np.random.default_rng(2)
    watch = DriftWatch()
    follow(watch, rows(rng, 400), CONFIG)
    follow(watch, rows(rng, 300, shift=0.6, success=0.6), CONFIG)
    found = {m.column: m for m in moved(watch, ALPHA, CONFIG)}
    assert set(found) == {"latency_ms", "success"}
    assert found["success"].effect.size < -0.4
    again = drift_watch.begun_anew(watch)
    follow(again, rows(rng, 400, shift=0.6, success=0.6), CONFIG)
    assert not moved(again, ALPHA, CONFIG) and again.epoch == 2


def test_rows_wait_until_they_are_enough_for_a_look() -> None:
    watch = DriftWatch()
    follow(watch, rows(np.random.default_rng(3), 49), CONFIG)
    assert (watch.looks, len(watch.pending["success"])) == (0, 49)


def test_effect_sizes_are_the_textbooks() -> None:
    assert effects.cohen_h(0.7, 0.5) == pytest.approx(0.4115, abs=1e-4)
    assert effects.cramers_v(np.array([[50.0, 0.0], [0.0, 50.0]])) == pytest.approx(1.0, abs=0.01)
    assert effects.of_measure([1, 2, 3, 4], [3, 4, 5, 6], CONFIG).size == pytest.approx(0.5)


def judged(case: Any, rng: np.random.Generator, n: int, success: float, **given: Any) -> list[list[Any]]:
    return [[case(reward=float(rng.random() < success), **given)] for _ in range(n)]


def test_other_work_without_a_loss_is_told_and_disturbs_nothing(case) -> None:
    rng = np.random.default_rng(4)
    state = Memo()
    watching.take(state, "1", judged(case, rng, 400, 0.95), CONFIG)
    watching.take(state, "1", judged(case, rng, 200, 0.95, tenant="lumen"), CONFIG)
    found = watching.seen(state, CONFIG)
    assert found.cause is None and [m.column for m in found.workload] == ["tenant"]
    watching.told(state, found)
    assert not watching.seen(state, CONFIG).moved


def test_the_memo_survives_being_written_down(case, tmp_path) -> None:
    rng = np.random.default_rng(5)
    first, second = judged(case, rng, 130, 0.8), judged(case, rng, 130, 0.5, input_tokens=0)
    whole = Memo()
    watching.take(whole, "1", [*first, *second], CONFIG)
    for part in (first, second):
        with watching.memo(tmp_path, "support") as state:
            watching.take(state, "1", part, CONFIG)
    kept = watching.remembered(tmp_path, "support")
    assert watching.seen(kept, CONFIG) == watching.seen(whole, CONFIG)
    assert watching.seen(kept, CONFIG).cause is not None
