"""Evidence that may be read at any time: its error rates, its power, and that putting it away changes nothing."""

from __future__ import annotations

from math import log

import numpy as np
import pytest
from scipy.special import betaln
from ville import BettingCS, EmpiricalBernsteinCS

from evaluators import sequential
from evaluators.sequential import Drops, DropState, Level, LevelState, against, followed


def coins(rng: np.random.Generator, streams: int, n: int, p: float) -> np.ndarray:
    return (rng.random((streams, n)) < p).astype(float)


@pytest.mark.parametrize("p", [0.5, 0.9, 0.99])
def test_a_stationary_stream_watched_for_long_alarms_with_at_most_alpha(p: float) -> None:
    rng = np.random.default_rng(1)
    evidence = Drops(150).update(coins(rng, 150, 2000, p))
    assert np.mean(evidence.max(axis=1) >= log(1 / 0.05)) <= 0.05 + 3 * (0.05 * 0.95 / 150) ** 0.5


def test_rewards_between_zero_and_one_keep_the_error_too() -> None:
    rng = np.random.default_rng(2)
    evidence = Drops(60).update(rng.beta(2, 1, (60, 1000)).round(2))
    assert np.mean(evidence.max(axis=1) >= log(1 / 0.05)) <= 0.1


def test_a_drop_by_ten_points_is_seen_and_a_rise_is_not() -> None:
    rng = np.random.default_rng(3)
    fallen = Drops(40).update(np.concatenate([coins(rng, 40, 1000, 0.9), coins(rng, 40, 500, 0.8)], axis=1))
    risen = Drops(40).update(np.concatenate([coins(rng, 40, 1000, 0.8), coins(rng, 40, 500, 0.9)], axis=1))
    assert np.mean(fallen.max(axis=1) >= log(1 / 0.05)) >= 0.7
    assert np.mean(risen.max(axis=1) >= log(1 / 0.05)) <= 0.05


def test_the_weights_of_all_moments_sum_to_at_most_one() -> None:
    head = sum(sequential.moment_weight(k) for k in range(1, 10_000))
    tail = log(sequential._SLOW) / log(10_000 + sequential._SLOW - 1)  # the integral from there on
    assert head + tail <= 1.0
    assert sum(sequential.share(k) for k in range(1, 10_000)) < 1.0


def test_every_cell_bets_fairly_against_the_means_it_stands_for() -> None:
    low, high = sequential._edges()
    down = low * sequential._DOWN_ONE[1] + (1 - low) * sequential._DOWN_ZERO[1]
    up = high * sequential._UP_ONE[1] + (1 - high) * sequential._UP_ZERO[1]
    assert np.all(down <= 1 + 1e-12) and np.all(up <= 1 + 1e-12)
    for table in (sequential._DOWN_ONE, sequential._DOWN_ZERO, sequential._UP_ONE, sequential._UP_ZERO):
        assert np.all(table[1] > 0)


def test_put_away_and_taken_up_again_the_evidence_is_the_same() -> None:
    x = coins(np.random.default_rng(4), 1, 300, 0.7)[0]
    whole, parts = DropState(), DropState()
    whole.update(x)
    at_once = followed(LevelState(), 0.05, x)
    piecewise = LevelState()
    for piece in np.split(x, [7, 10, 55, 210]):
        parts.update(piece)
        piecewise = followed(piecewise, 0.05, piece)
    assert parts.log_e == pytest.approx(whole.log_e)
    assert piecewise.interval == at_once.interval
    assert np.frombuffer(parts.changed) == pytest.approx(np.frombuffer(whole.changed))


def test_the_kept_level_is_the_librarys() -> None:
    x = coins(np.random.default_rng(5), 1, 400, 0.8)[0]
    theirs = BettingCS(bounds=(0, 1), alpha=0.02, grid=501).fit(x)
    state = followed(followed(LevelState(), 0.02, x[:150]), 0.02, x[150:])
    assert (state.low, state.high) == theirs.interval()


@pytest.mark.parametrize("p", [0.3, 0.9])
def test_the_librarys_sequence_covers_the_mean_at_every_time(p: float) -> None:
    rng = np.random.default_rng(6)
    missed = sum(Level(0.05).fit(x).excludes(p) is not None for x in coins(rng, 150, 400, p))
    assert missed <= 0.05 * 150 + 3 * (0.05 * 0.95 * 150) ** 0.5


def test_the_libraries_closed_form_is_the_papers() -> None:
    """Waudby-Smith & Ramdas (2024), Theorem 2, written out again."""
    x = coins(np.random.default_rng(7), 1, 200, 0.6)[0]
    mean, variance, weights, weighted, penalty = 0.5, 0.25, 0.0, 0.0, 0.0
    seen, squares, low, high = 0.0, 0.0, 0.0, 1.0
    for t, value in enumerate(x, start=1):
        bet = min((2 * log(2 / 0.05) / (variance * t * log(1 + t))) ** 0.5, 0.5)
        weights += bet
        weighted += bet * value
        penalty += (value - mean) ** 2 * (-log(1 - bet) - bet)
        centre, radius = weighted / weights, (log(2 / 0.05) + penalty) / weights
        low, high = max(low, centre - radius), min(high, centre + radius)
        seen += value
        mean = (0.5 + seen) / (t + 1)
        squares += (value - mean) ** 2
        variance = (0.25 + squares) / (t + 1)
    assert EmpiricalBernsteinCS(alpha=0.05).fit(x).interval() == pytest.approx((low, high))


def test_betting_is_hardly_wider_than_the_best_mixture_for_a_coin() -> None:
    """Robbins' Beta mixture has a closed form for a coin: mean m is refuted when B(s+1, f+1) / (m^s (1-m)^f) ≥ 1/α."""
    x = coins(np.random.default_rng(8), 1, 1000, 0.8)[0]
    s, f = x.sum(), len(x) - x.sum()
    grid = np.linspace(0.001, 0.999, 999)
    kept = grid[betaln(s + 1, f + 1) - s * np.log(grid) - f * np.log(1 - grid) < log(1 / 0.05)]
    low, high = Level(0.05).fit(x).interval()
    assert low <= 0.8 <= high
    assert high - low <= 1.25 * (kept[-1] - kept[0])


def test_the_version_before_is_what_a_new_one_is_compared_with() -> None:
    rng = np.random.default_rng(9)
    before = DropState()
    before.update(coins(rng, 1, 800, 0.9)[0])
    worse, same = against(before), against(before)
    worse.update(coins(rng, 1, 300, 0.75)[0])
    same.update(coins(rng, 1, 300, 0.9)[0])
    assert worse.log_e >= log(1 / 0.01) > same.log_e
