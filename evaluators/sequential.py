"""Anytime-valid evidence about a success rate, kept as a small state and updated with new outcomes only.

`Level`: a confidence sequence for the mean (`ville.BettingCS`: Waudby-Smith & Ramdas 2024, "Estimating means of
bounded random variables by betting", Theorem 3), made resumable.

`Drop`: an e-process against "the mean never changed", for a mean nobody knows. For a candidate m of the past mean,
wealth is won before a change by betting that outcomes are above m, and after it by betting that they are below m:

    E_t(m) = Σ_k w_k · U_k(m) · D_{k,t}(m)        over possible moments k of the change, Σ w_k ≤ 1
    alarm when  min_m E_t(m) ≥ 1/α

At the true mean both wealths are martingales, so E_t is one, and by Ville's inequality a stationary agent watched
for ever alarms with probability ≤ α. The mixture over moments is the Shiryaev–Roberts form of the e-detectors of
Shin, Ramdas & Rinaldo (2024), with weights that sum to one instead of to the time, which turns their bound on the
run length into a bound on the probability of any false alarm. The minimum over m is what makes it two-sample: the
past is as uncertain as it is. Both bets are the likelihood ratio of a Bernoulli against one shifted by δ, mixed
over several δ, and stay valid for any outcomes in [0, 1].
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log

import msgspec
import numpy as np
from numpy.typing import NDArray
from ville import BettingCS

from evaluators.intervals import Interval

CELLS = 250
"""Cells of candidate past means; a cell is refuted as a whole, so the discretisation is conservative."""
RESTART_EVERY = 10
"""Outcomes between two possible moments of a change."""
_GRID = 501
_DROPS = np.array([0.06, 0.13, 0.3])
_RISES = np.array([0.02, 0.05, 0.12])
_IDLE = 0.25
"""Share of the wealth before a change that does not bet, so that it never falls far below one."""
_STAKE = 0.9
"""No single outcome may cost more than this share of the wealth."""
_RICHEST, _POOREST = 1e100, 1e-200
"""Wealth above is not needed and wealth below is given up: both are what a gambler may do."""
_TIDY_EVERY = 16
_SLOW = 20

Array = NDArray[np.float64]


def _edges() -> tuple[Array, Array]:
    edges = np.linspace(0.0, 1.0, CELLS + 1)
    return edges[:-1], edges[1:]


def _tables() -> tuple[Array, Array, Array, Array]:
    """Wealth factors of k ones and of k zeros, for both bets: (RESTART_EVERY + 1, bets, cells) each."""
    low, high = _edges()
    with np.errstate(divide="ignore"):
        down = np.minimum(_DROPS[:, None] / (low * (1 - low)), _STAKE / (1 - low))
        up = np.minimum(_RISES[:, None] / np.maximum(high * (1 - high), 1e-12), _STAKE / high)
    power = np.arange(RESTART_EVERY + 1)[:, None, None]
    return (
        (1 - down * (1 - low)) ** power,
        (1 + down * low) ** power,
        (1 + up * (1 - high)) ** power,
        (1 - up * high) ** power,
    )


_DOWN_ONE, _DOWN_ZERO, _UP_ONE, _UP_ZERO = _tables()


def share(k: int) -> float:
    """The k-th of infinitely many shares, from 1: 1/(k(k+1)); they sum to one."""
    return 1.0 / (k * (k + 1))


def moment_weight(k: int) -> float:
    """Weight of the k-th possible moment of a change, from 1; all together at most one.

    log(a) / ((k + a) log²(k + a)): its integral from 0 is one. It falls hardly faster than 1/k, so that a change
    after a long quiet life costs little more evidence than an early one.
    """
    return log(_SLOW) / ((k + _SLOW) * log(k + _SLOW) ** 2)


class Drops:
    """`Drop` for many independent streams at once: arrays of shape (streams, bets, cells)."""

    def __init__(self, streams: int = 1):
        self.n = 0
        self.up = np.full((streams, len(_RISES), CELLS), (1 - _IDLE) / len(_RISES))
        self.changed = np.zeros((streams, len(_DROPS), CELLS))

    def begin(self, wealth: Array, weight: float) -> None:
        """Now may be the moment: `weight` of the mixture stakes the `wealth` of the past, (streams, cells)."""
        self.changed += (weight / len(_DROPS)) * wealth[:, None, :]

    @property
    def past(self) -> Array:
        """What was won against each cell by betting that outcomes are above it: (streams, cells)."""
        return _IDLE + self.up.sum(axis=1)

    def update(self, values: Array, restart: bool = True) -> Array:
        """Outcomes in [0, 1], (streams, new ones), in order; returns the log e-value after each group of them.

        With `restart`, every `RESTART_EVERY` outcomes may be the moment of a change; the result is
        (streams, groups).
        """
        out = []
        at = 0
        while at < values.shape[1]:
            if restart and self.n and self.n % RESTART_EVERY == 0:
                self.begin(self.past, moment_weight(self.n // RESTART_EVERY))
            size = min(RESTART_EVERY - self.n % RESTART_EVERY, values.shape[1] - at)
            self._settle(values[:, at : at + size])
            self.n += size
            at += size
            out.append(self.evidence())
        return np.stack(out, axis=1) if out else np.zeros((len(self.up), 0))

    def evidence(self) -> Array:
        """log e-value of each stream now: the least of all cells'."""
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(self.changed.sum(axis=1).min(axis=1)), dtype=float)

    def _settle(self, group: Array) -> None:
        size = group.shape[1]
        if np.all((group == 0) | (group == 1)):
            ones = group.sum(axis=1).astype(int)
            self.changed *= _DOWN_ONE[ones] * _DOWN_ZERO[size - ones]
            self.up *= _UP_ONE[ones] * _UP_ZERO[size - ones]
        else:
            for x in group.T[:, :, None, None]:
                # a bet is linear in the outcome
                self.changed *= x * _DOWN_ONE[1] + (1 - x) * _DOWN_ZERO[1]
                self.up *= x * _UP_ONE[1] + (1 - x) * _UP_ZERO[1]
        np.minimum(self.changed, _RICHEST, out=self.changed)
        np.minimum(self.up, _RICHEST, out=self.up)
        if self.n // RESTART_EVERY % _TIDY_EVERY == 0:
            self.changed[self.changed < _POOREST] = 0.0
            self.up[self.up < _POOREST] = 0.0


class DropState(msgspec.Struct, kw_only=True):
    """A `Drop` between two looks."""

    n: int = 0
    up: bytes = b""
    changed: bytes = b""
    restart: bool = True
    log_e: float = float("-1e9")
    """The largest log e-value so far."""

    def update(self, values: Sequence[float]) -> None:
        bank = self.bank()
        found = bank.update(np.asarray(values, dtype=float)[None, :], self.restart)
        self.keep(bank)
        if found.size:
            self.log_e = max(self.log_e, float(found.max()))

    def bank(self) -> Drops:
        bank = Drops()
        if self.up:
            bank.n = self.n
            bank.up = np.frombuffer(self.up).reshape(bank.up.shape).copy()
            bank.changed = np.frombuffer(self.changed).reshape(bank.changed.shape).copy()
        return bank

    def keep(self, bank: Drops) -> None:
        self.n, self.up, self.changed = bank.n, bank.up.tobytes(), bank.changed.tobytes()


def against(past: DropState) -> DropState:
    """The test whether what follows is worse than all of `past`: one moment of change, now, with all the weight."""
    bank = Drops()
    bank.begin(past.bank().past, 1.0)
    state = DropState(restart=False)
    state.keep(bank)
    return state


class Level(BettingCS):
    """A betting confidence sequence for a mean in [0, 1] whose state can be put away and taken up again."""

    def __init__(self, alpha: float):
        super().__init__(bounds=(0.0, 1.0), alpha=alpha, grid=_GRID)

    def state(self) -> LevelState:
        plug, (a, b) = self._plug, self._alive
        low, high = self.interval() if self.n_ else (0.0, 1.0)
        return LevelState(
            n=self.n_,
            total=float(self._sum),
            plug=(plug.n, float(plug.sum_x), float(plug.sum_dev), float(plug.mu), float(plug.var)),
            alive=(a, b),
            up=self._log_up[a : b + 1].tobytes(),
            down=self._log_down[a : b + 1].tobytes(),
            low=low,
            high=high,
        )

    @classmethod
    def resumed(cls, alpha: float, state: LevelState) -> Level:
        level = cls(alpha)
        if not state.n:
            return level
        plug, (a, b) = level._plug, state.alive
        plug.n, plug.sum_x, plug.sum_dev, plug.mu, plug.var = state.plug
        level.n_, level._sum, level._alive = state.n, state.total, (a, b)
        level._log_up[a : b + 1] = np.frombuffer(state.up)
        level._log_down[a : b + 1] = np.frombuffer(state.down)
        for kept, value in ((level._est, state.total / state.n), (level._lo, state.low), (level._hi, state.high)):
            kept.append(np.array([value]))
        return level


class LevelState(msgspec.Struct, kw_only=True):
    """A `Level` between two looks; of the capital, only that of the means not yet refuted."""

    n: int = 0
    total: float = 0.0
    plug: tuple[int, float, float, float, float] = (0, 0.0, 0.0, 0.5, 0.25)
    alive: tuple[int, int] = (0, _GRID - 1)
    up: bytes = b""
    down: bytes = b""
    low: float = 0.0
    high: float = 1.0

    @property
    def interval(self) -> Interval:
        """Holds the mean at every time with probability 1 - alpha."""
        value = self.total / self.n if self.n else float("nan")
        return Interval(value=value, low=self.low, high=self.high, n=self.n)


def followed(state: LevelState, alpha: float, values: Sequence[float]) -> LevelState:
    """The state after these outcomes."""
    if not len(values):
        return state
    level = Level.resumed(alpha, state)
    level.update(np.asarray(values, dtype=float))
    return level.state()
