"""The part of `evoplane bench replay` that asks a real model.

    python -m benchmarks.replay.served [--quick] [--no-real-policy]

A process of its own, because the command may not import flows: progress goes to standard error, the figures as one JSON
object to standard output.
"""

from __future__ import annotations

import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import orjson

from benchmarks.gateway.servers import CannotStart
from benchmarks.replay.server import serving
from benchmarks.replay.throughput import NotMeasured, share_of_vllm_bench
from evoplane.settings import settings

_MODEL_LEN = 2048
"""Room for the tools of AgentDojo's bank (277 tokens) and the results of three calls."""


def measure(quick: bool, real_policy: bool) -> dict[str, Any]:
    """Figures by name; under `not_measured` what could not be had and why."""
    missing: dict[str, str] = {}
    found: dict[str, Any] = {"share_of_vllm_bench": None, "not_measured": missing}
    size = {"requests": 16, "tokens": 16, "rounds": 1} if quick else {"requests": 64, "tokens": 32, "rounds": 2}
    with tempfile.TemporaryDirectory(prefix="evoplane-replay-") as name:
        _say("vLLM starts")
        try:
            with serving(settings(), Path(name), _MODEL_LEN) as server:
                found |= share_of_vllm_bench(server, Path(name), _say, **size)
                if real_policy and not find_spec("agentdojo"):
                    missing["agentdojo_real"] = "agentdojo is not installed (constraints/environments-py311.txt)"
                elif real_policy:
                    from benchmarks.replay.leading_astray import real_policy as on_agentdojo
                    from benchmarks.replay.taught import USERS, taught_policies

                    _say("a real policy on AgentDojo")
                    found |= on_agentdojo(server, 4 if quick else 16)
                    found |= taught_policies(server, Path(name), _say, USERS[:2] if quick else USERS)
        except (CannotStart, NotMeasured) as error:
            missing["share_of_vllm_bench"] = str(error)
    return found


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.stdout.write(orjson.dumps(measure("--quick" in sys.argv, "--no-real-policy" not in sys.argv)).decode())
