"""Which alarms are raised for whom, and what an alarm leaves behind."""

from __future__ import annotations

import numpy as np
import pytest

from evaluators import triggers
from evaluators.triggers import Outcome, Watch

TOLD = {"target": 0.8, "alpha": 0.05, "min_outcomes": 40}


def live(watch: Watch, seed: int, n: int, **success: float) -> None:
    """`n` outcomes of each tenant."""
    rng = np.random.default_rng(seed)
    outcomes = [Outcome(tenant, float(rng.random() < p)) for _ in range(n) for tenant, p in success.items()]
    triggers.follow(watch, outcomes, 0.05)


def causes(watch: Watch) -> list[str]:
    return [finding.cause for finding in triggers.findings(watch, **TOLD)]  # type: ignore[arg-type]


def test_an_agent_as_good_as_ever_is_left_alone() -> None:
    watch = Watch(version="1")
    live(watch, 1, 1500, a=0.85, b=0.85)
    assert causes(watch) == []


def test_below_the_target_is_a_level_but_not_before_there_is_enough_data() -> None:
    watch = Watch(version="1")
    live(watch, 2, 39, a=0.2)
    assert causes(watch) == []
    live(watch, 3, 10, a=0.2)
    assert causes(watch) == ["success"]


def test_a_drop_above_the_target_is_still_a_drop_and_told_it_begins_anew() -> None:
    watch = Watch(version="1")
    live(watch, 4, 800, a=0.99)
    live(watch, 5, 300, a=0.86)
    (finding,) = triggers.findings(watch, **TOLD)  # type: ignore[arg-type]
    assert (finding.kind, finding.tenant) == ("drop", None)
    triggers.told(watch, finding)
    live(watch, 6, 500, a=0.86)
    assert causes(watch) == [] and watch.agent.epoch == 2


def test_one_tenants_loss_is_seen_though_the_others_hide_it() -> None:
    watch = Watch(version="1")
    live(watch, 7, 150, a=0.95, b=0.5, c=0.95, d=0.95)
    assert "success of b" in causes(watch)
    assert all("of b" in cause for cause in causes(watch))


def test_a_new_version_is_compared_with_the_one_before() -> None:
    old = Watch(version="1")
    live(old, 8, 900, a=0.97)
    new = triggers.renewed(old, "2", 40)
    live(new, 9, 250, a=0.83)
    assert causes(new) == ["regression"]
    assert triggers.renewed(Watch(version="1"), "2", 40).agent.regression is None


def test_the_error_budget_is_spent_once() -> None:
    assert sum(triggers.SHARES.values()) == pytest.approx(1)
    assert sum(map(triggers.life_share, range(1, 50))) == pytest.approx(1)


def test_a_reward_outside_zero_and_one_is_refused() -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        triggers.follow(Watch(), [Outcome("a", 1.5)], 0.05)
