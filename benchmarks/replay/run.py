"""`evoplane bench replay`: is replay fast, are its intervals true, and does live traffic confirm it?"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.gateway.servers import CannotStart
from benchmarks.machine import load_average
from benchmarks.replay.deployment import delivered
from benchmarks.replay.server import serving
from benchmarks.replay.simulation import interval_coverage, replay_vs_canary_agreement
from benchmarks.replay.throughput import NotMeasured, share_of_vllm_bench
from evoplane.settings import Settings
from registry import control, tenants

Say = Callable[[str], None]
_MODEL_LEN = 4096
"""AgentDojo's tools take 1,900 tokens of it."""


def run(config: Settings, *, quick: bool, say: Say, real_policy: bool = True) -> dict[str, Any]:
    """All figures by name, and under `not_measured` what could not be had and why."""
    started, missing = time.monotonic(), {}
    say("simulated replays")
    found: dict[str, Any] = {**interval_coverage(480 if quick else 4800)}
    found |= replay_vs_canary_agreement(60 if quick else 600)
    found |= _deployed(config)
    with tempfile.TemporaryDirectory(prefix="evoplane-replay-") as name:
        folder = Path(name)
        say("vLLM starts")
        try:
            with serving(config, folder, _MODEL_LEN) as server:
                size = (
                    {"requests": 16, "tokens": 16, "rounds": 1}
                    if quick
                    else {"requests": 64, "tokens": 32, "rounds": 3}
                )
                found |= share_of_vllm_bench(server, folder, say, **size)
                if real_policy and not find_spec("agentdojo"):
                    missing["agentdojo_real"] = "agentdojo is not installed"
                elif real_policy:
                    from benchmarks.replay.leading_astray import real_policy as on_agentdojo

                    say("a real policy on AgentDojo")
                    found |= on_agentdojo(server, 4 if quick else 16)
        except (CannotStart, NotMeasured) as error:
            missing["share_of_vllm_bench"] = str(error)
            found.setdefault("share_of_vllm_bench", None)
    return {
        **{k: round(v, 4) if isinstance(v, float) else v for k, v in found.items()},
        "not_measured": missing,
        "seconds": round(time.monotonic() - started, 1),
        "load_average": load_average(),
    }


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
