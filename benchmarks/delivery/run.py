"""`evoplane bench delivery`: rollbacks under load, then simulated rollouts."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.delivery import rollbacks, rollouts
from benchmarks.machine import load_average

_FULL = {"gateways": 8, "rate": 200.0, "runs": 20, "rollouts": 200, "most": 3000}
_QUICK = {"gateways": 2, "rate": 50.0, "runs": 2, "rollouts": 4, "most": 600}


def run(var: Path, *, quick: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """All figures. `var` must be on the disk a deployment writes to."""
    plan = _QUICK if quick else _FULL
    bench = var.absolute() / "bench"
    bench.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="delivery-", dir=bench))
    started, load_before = time.monotonic(), load_average()
    try:
        found = rollbacks.measure(
            folder, gateways=int(plan["gateways"]), rate=plan["rate"], runs=int(plan["runs"]), say=say
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    say(f"simulating {int(plan['rollouts'])} rollouts of each candidate")
    found |= rollouts.simulate(int(plan["rollouts"]), int(plan["most"]))
    return {
        **found,
        "seconds": round(time.monotonic() - started, 1),
        "load_average": [load_before, load_average()],
    }
