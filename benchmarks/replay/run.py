"""`evoplane bench replay`: is replay fast, are its intervals true, and does live traffic confirm it?"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.machine import load_average
from benchmarks.replay.deployment import delivered
from benchmarks.replay.simulation import interval_coverage, replay_vs_canary_agreement
from evoplane.settings import Settings
from registry import control, tenants

Say = Callable[[str], None]


def run(config: Settings, *, quick: bool, say: Say, real_policy: bool = True) -> dict[str, Any]:
    """All figures by name, and under `not_measured` what could not be had and why."""
    started = time.monotonic()
    say("simulated replays")
    found: dict[str, Any] = {**interval_coverage(480 if quick else 4800)}
    found |= replay_vs_canary_agreement(60 if quick else 600)
    found |= _deployed(config)
    found |= _served(quick, real_policy, say)
    return {
        **{k: round(v, 4) if isinstance(v, float) else v for k, v in found.items()},
        "seconds": round(time.monotonic() - started, 1),
        "load_average": load_average(),
    }


def _served(quick: bool, real_policy: bool, say: Say) -> dict[str, Any]:
    """What `benchmarks.replay.served` measures, under this process's settings."""
    command = [sys.executable, "-m", "benchmarks.replay.served"]
    command += ["--quick"] * quick + ["--no-real-policy"] * (not real_policy)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        last = ""
        for line in process.stderr or ():
            last = line.strip() or last
            say(line.rstrip())
        told = process.stdout.read() if process.stdout else ""
    if process.returncode != 0:
        return {"share_of_vllm_bench": None, "not_measured": {"share_of_vllm_bench": last}}
    return dict(json.loads(told.splitlines()[-1]))


def _deployed(config: Settings) -> dict[str, Any]:
    """The same agreement in this deployment's own deliveries, where there are any (after `evoplane demo`)."""
    if not config.control_db.exists():
        return {}
    connection = control.connect(config.control_db)
    found = [d for agent in tenants.list_agents(connection) for d in delivered(connection, agent.name)]
    if not found:
        return {}
    return {
        "deployed_versions": len(found),
        "deployed_agreement": sum(d.agrees for d in found) / len(found),
        "deployed": [f"{d.agent} {d.version} ({d.surface}): replay {d.replay}, canary {d.canary}" for d in found],
    }
