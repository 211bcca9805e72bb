"""The figures of watching, and what they are compared with."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.watching import lives, peers
from benchmarks.watching.lives import NEVER, Times
from benchmarks.watching.streams import successes
from evaluators.intervals import Interval, wilson
from evoplane.settings import Monitor

EVERY = 40
"""Sessions between two looks: a window."""
WINDOWS, LIVES = 200, 300
PAST, BEFORE, AFTER = 1000, 0.9, 0.8
"""The drop: ten points, after so many sessions."""
_TARGET = 0.75
"""Below both, so that the drop and not the level is what has to be seen."""


def figures(quick: bool, say: Callable[[str], object]) -> dict[str, Any]:
    """False alarms, delay after a drop, cost; `quick` gives figures that mean little."""
    config = Monitor(target_success=_TARGET)
    say("false alarms: lives of a stationary agent")
    alarms = false_alarms(config, *((40, 50) if quick else (LIVES, WINDOWS)))
    say("a drop by ten points, and what others make of the same streams")
    delay = delays(config, 40 if quick else 200, 4 if quick else 24)
    say("a million events")
    cost = costs((20_000, 60_000) if quick else (100_000, 300_000, 1_000_000))
    return {**alarms, **delay, **cost}


def false_alarms(config: Monitor, count: int, windows: int) -> dict[str, Any]:
    """Share of lives in which anything at all is said, of success or drift, of an agent that never changes."""
    rng = np.random.default_rng(11)
    sessions = windows * EVERY
    rates = rng.uniform(0.8, 0.98, count)
    outcomes = (rng.random((count, sessions)) < rates[:, None]).astype(float)
    success, drifted = lives.success_alarms(outcomes, config), lives.drift_alarms(rng, outcomes, config)
    either = np.minimum(success, drifted)
    share = _share(either)
    return {
        "false_alarm_share": round(share.value, 4),
        "false_alarm_interval": [round(share.low, 4), round(share.high, 4)],
        "false_alarm_lives": count,
        "false_alarm_windows": windows,
        "false_alarm_share_success": round(_share(success).value, 4),
        "false_alarm_share_drift": round(_share(drifted).value, 4),
    }


def delays(config: Monitor, count: int, for_evidently: int) -> dict[str, Any]:
    """Sessions from the drop to the first alarm, and false alarms on streams without one, by method."""
    rng = np.random.default_rng(12)
    after = 2000
    fallen = np.concatenate([successes(rng, count, PAST, BEFORE), successes(rng, count, after, AFTER)], axis=1)
    same = successes(rng, max(1, count // 2), WINDOWS * EVERY, BEFORE)
    n = peers.planned(BEFORE, AFTER, config.alpha)
    few = slice(0, for_evidently)
    ours = lives.success_alarms(fallen, config)
    flagged = peers.evidently_preset(rng, same[few, : 20 * EVERY + 2 * peers.WINDOW], EVERY)
    table = {
        "evoplane, looked at after every session": _row(ours, lives.success_alarms(same, config)),
        f"fixed-horizon test, one look {n} sessions after a change known beforehand": _row(
            peers.fixed_horizon(fallen, PAST, n, config.alpha), peers.fixed_horizon(same, PAST, n, config.alpha)
        ),
        f"the same test, looked at every {EVERY} sessions": _row(
            peers.peeked(fallen, EVERY, config.alpha), peers.peeked(same, EVERY, config.alpha)
        ),
        f"Evidently's DataDriftPreset, every {EVERY} sessions": _row(
            peers.evidently_preset(rng, fallen[few, : PAST + 400], EVERY, PAST + EVERY), flagged
        ),
    }
    delay = _after(ours)
    return {
        "median_sessions_to_detect": float(np.median(delay)) if np.median(delay) < NEVER else None,
        "detected_share": round(float(np.mean(delay < NEVER)), 4),
        "evidently_preset_false_alarm_share": round(_share(flagged).value, 4),
        "drop": f"{BEFORE} to {AFTER} after {PAST} sessions",
        "methods": table,
    }


def costs(sizes: tuple[int, ...]) -> dict[str, Any]:
    """Seconds of computing and largest memory by number of events, each in a process of its own."""
    found = [json.loads(_run(size)) for size in sizes]
    largest = found[-1]
    per_million = [round(run["seconds"] / run["events"] * 1e6, 1) for run in found]
    return {
        "seconds_per_million_events": per_million[-1],
        "peak_rss_mib": largest["peak_rss_mib"],
        "seconds_per_million_by_events": {str(run["events"]): s for run, s in zip(found, per_million, strict=True)},
        "linearity": round(per_million[-1] / per_million[0], 2),
    }


def _run(events: int) -> str:
    command = [sys.executable, "-m", "benchmarks.watching.million", str(events)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip().splitlines()[-1]


def _row(fallen: Times, same: Times) -> dict[str, Any]:
    delay = _after(fallen)
    median = float(np.median(delay))
    return {
        "median_sessions": None if median >= NEVER else median,
        "detected": round(float(np.mean(delay < NEVER)), 3),
        "false_alarm_share": round(_share(same).value, 3),
        "streams": len(fallen),
        "streams_without_drop": len(same),
    }


def _after(times: Times) -> NDArray[np.int64]:
    """Sessions since the drop; an alarm before it is a false one and counts as not detected."""
    return np.where((times > PAST) & (times < NEVER), times - PAST, NEVER)


def _share(times: Times) -> Interval:
    return wilson(int(np.sum(times < NEVER)), len(times))
