"""Waiting for what the flows do: a person sees what they are at; a wait that can't end well ends with the reason."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from evoplane.settings import Settings
from registry import prefect_runs

Say = Callable[[str], None]

_TIMEOUT_S = 1200.0
_HEARTBEAT_S = 20.0
_TRAINING_S = 8.0
"""Seconds between two steps of a training that are told."""
_RUNS_S = 5.0
"""Seconds between two looks at the runs."""
_POLL_S = 0.5
_TICK_S = 0.1
"""A file's time is that of the kernel's last tick, which is a little before the clock's."""
_CHANGES_NOTHING = frozenset({"No change", "Nothing to propose", "Over budget"})
"""How an evolution ends that no delivery follows."""
_GOES_ON = frozenset({"Accepted", "Delivery in progress"})
"""How one ends that a delivery follows, or another evolution."""


class DemoFailed(Exception):
    """The loop did not do what it should; the message says where it stopped."""


class Waiting:
    """Waits for an agent's flows.

    Args:
        say: receives one line of progress at a time.
    """

    def __init__(self, config: Settings, agent: str, say: Say) -> None:
        self._config = config
        self._agent = agent
        self._say = say

    def ended_evolutions(self) -> frozenset[str]:
        """The runs of evolutions that are over."""
        return frozenset(run["id"] for run in self._evolutions(prefect_runs.recent_runs(self._config)) if _is_over(run))

    def until(
        self,
        what: str,
        done: Callable[[], object],
        timeout_s: float = _TIMEOUT_S,
        ended_before: frozenset[str] | None = None,
    ) -> None:
        """Return once `done`. Raises `DemoFailed` when a run fails, when it takes too long, and, where
        `ended_before` says which evolutions were over already, when the next one ends and changes nothing.
        """
        start = spoken = time.monotonic()
        looked = -_RUNS_S
        runs: list[dict[str, Any]] = []
        training = Training(self._config.var / "training" / self._agent, time.time())
        while not done():
            time.sleep(_POLL_S)
            now = time.monotonic()
            if now - looked >= _RUNS_S:
                looked, runs = now, prefect_runs.recent_runs(self._config)
                self._require_hope(what, runs, ended_before)
            step = training.news(now)
            if step:
                spoken = now
                self._say(f"waiting for {what}: {step}")
            elif now - spoken >= _HEARTBEAT_S:
                spoken = now
                self._say(f"waiting for {what}: {_doing(runs) or 'no run is active' + _last(runs)}")
            if now - start > timeout_s:
                told = f"{what} did not come within {timeout_s:.0f} s{_last(runs)}"
                raise DemoFailed(f"{told}; see {self._config.logs_dir}")

    def _require_hope(self, what: str, runs: Sequence[dict[str, Any]], ended_before: frozenset[str] | None) -> None:
        # what somebody starts by hand beside the demo has no deployment, and is theirs
        ours = [run for run in runs if run["deployment_id"] is not None]
        failed = [run for run in ours if run["state_type"] in ("FAILED", "CRASHED")]
        if failed:
            raise DemoFailed(f"waiting for {what}: run {failed[0]['name']!r} {failed[0]['state_message']}")
        if ended_before is None:
            return
        mine = [run for run in self._evolutions(runs) if run["id"] not in ended_before]
        ended = [run for run in mine if run["state_name"] in _CHANGES_NOTHING]
        if ended and not any(run["state_name"] in _GOES_ON or not _is_over(run) for run in mine):
            raise DemoFailed(
                f"waiting for {what}: the evolution ended with {ended[0]['state_name']!r}: {ended[0]['state_message']}"
            )

    def _evolutions(self, runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        return [run for run in runs if run["name"] == f"evolve {self._agent}"]


class Training:
    """The progress of trainings of one agent that write into `folder` after `since`, seconds of the epoch."""

    def __init__(self, folder: Path, since: float) -> None:
        self._folder = folder
        self._since = since
        self._told = ""
        self._told_at = -_TRAINING_S

    def news(self, now: float) -> str:
        """Where the newest training is, when that is news and the last one is some seconds (of `now`) old."""
        if now - self._told_at < _TRAINING_S:
            return ""
        line = self._newest()
        if not line or line == self._told:
            return ""
        self._told, self._told_at = line, now
        return line

    def _newest(self) -> str:
        found = [(file.stat().st_mtime, file) for file in self._folder.glob("*/metrics.jsonl")]
        at, file = max(found, default=(0.0, None))
        if file is None or at < self._since - _TICK_S:
            return ""
        lines = file.read_bytes().splitlines()
        if not lines:
            return ""
        step = json.loads(lines[-1])
        loss = "not a number" if step["loss"] is None else f"{step['loss']:.3f}"
        return f"training, step {step['step']} of {step['steps']}, loss {loss}"


def _is_over(run: dict[str, Any]) -> bool:
    return run["state_type"] in ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")


def _doing(runs: Sequence[dict[str, Any]]) -> str:
    return ", ".join(f"{run['name']} ({run['state_name']})" for run in runs if run["state_type"] == "RUNNING")


def _last(runs: Sequence[dict[str, Any]]) -> str:
    ended = next((run for run in runs if run["state_message"] and run["state_type"] == "COMPLETED"), None)
    return f"; the last said: {ended['state_message']}" if ended else ""
