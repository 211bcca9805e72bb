"""The simulated lives are watched by the monitor's own triggers."""

from __future__ import annotations

import numpy as np

from benchmarks.watching import lives, million, peers, run
from benchmarks.watching.streams import successes
from evaluators import triggers
from evaluators.triggers import Outcome, Watch
from evoplane.settings import Monitor

CONFIG = Monitor(target_success=0.75)


def test_lives_stepped_together_alarm_when_the_monitor_would() -> None:
    rng = np.random.default_rng(1)
    outcomes = np.concatenate([successes(rng, 6, 300, 0.95), successes(rng, 6, 240, 0.6)], axis=1)
    together = lives.success_alarms(outcomes, CONFIG)
    for life, at in zip(outcomes, together, strict=True):
        watch = Watch(version="1")
        first = lives.NEVER
        for t in range(0, len(life), 20):
            some = [Outcome("ab"[(t + i) % 2], float(x)) for i, x in enumerate(life[t : t + 20])]
            triggers.follow(watch, some, CONFIG.alpha)
            if triggers.findings(watch, target=0.75, alpha=CONFIG.alpha, min_outcomes=CONFIG.min_outcomes):
                first = t + 20
                break
        assert first - 20 <= at <= first


def test_the_fixed_test_is_planned_as_the_textbook_says() -> None:
    assert peers.planned(0.9, 0.8, 0.05) == 69
    rng = np.random.default_rng(2)
    fallen = np.concatenate([successes(rng, 200, 1000, 0.9), successes(rng, 200, 200, 0.8)], axis=1)
    assert 0.7 <= np.mean(peers.fixed_horizon(fallen, 1000, 69, 0.05) < lives.NEVER) <= 0.92


def test_an_alarm_before_the_drop_is_not_a_detection() -> None:
    assert list(run._after(np.array([900, 1100, lives.NEVER]))) == [lives.NEVER, 100, lives.NEVER]


def test_a_few_events_cost_what_they_cost() -> None:
    found = million.measure(2000)
    assert found["events"] == 2000 and found["seconds"] > 0 and found["peak_rss_mib"] < 2048
