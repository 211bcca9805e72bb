"""How long users still get a bad version: after `evoplane rollback`, and after a canary that aborts by itself.

Measured to when the last request was *sent* that the bad version answered: from the start of the command, a process of
its own as an operator's shell starts it; and from an abort's decision (the pointer's flip, as the audit log has it).
"""

from __future__ import annotations

import asyncio
import json
import random
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.delivery.fleet import AGENT, BAD, Fleet, fleet
from benchmarks.delivery.traffic import Traffic
from evaluators.canary import Arm, CanaryTest, Outcome
from registry import control, pointers

Say = Callable[[str], None]

_SETTLE_S = 1.5
_AFTER_S = 1.5
_ABORT_WAIT_S = 30.0
_TEST = {"alpha": 0.05, "harm_margin": 0.1, "min_sessions": 24}


@dataclass(frozen=True)
class Run:
    cause: str
    flip_s: float
    """From the pointer's flip to the last request sent that the bad version answered; 0 when none was."""
    command_s: float = 0.0
    """From the start of the command to the flip; an abort has none."""
    proven_s: float | None = None
    """What the command took to prove it on every gateway."""
    exposed: int = 0
    """Canary sessions until the abort."""

    @property
    def bad_s(self) -> float:
        return self.command_s + self.flip_s


def measure(folder: Path, *, gateways: int, rate: float, runs: int, say: Say) -> dict[str, Any]:
    """Half of the runs are rollbacks by the command, half automatic aborts of a canary."""
    with fleet(folder, gateways) as deployed:
        return asyncio.run(_measured(deployed, rate, runs, say))


async def _measured(deployed: Fleet, rate: float, runs: int, say: Say) -> dict[str, Any]:
    connection = control.connect(deployed.config.control_db)
    await _command(deployed, "rollback", "--help")  # compiles what it imports
    traffic = Traffic(deployed.urls, deployed.secret, rate)
    load = asyncio.create_task(traffic.run())
    found: list[Run] = []
    started = time.time()
    try:
        await asyncio.sleep(_SETTLE_S)
        for number in range(runs):
            one = _rolled_back if number % 2 == 0 else _aborted
            found.append(await one(deployed, connection, traffic, number))
            say(f"{found[-1].cause}: {found[-1].bad_s:.3f} s")
    finally:
        traffic.stop()
        await load
    seconds = [run.bad_s for run in found]
    commands = [run for run in found if run.cause == "rollback"]
    aborts = [run for run in found if run.cause == "abort"]
    asked = traffic.since(started)
    return {
        "rollback_s_median": round(median(seconds), 3),
        "rollback_s_max": round(max(seconds), 3),
        "failed_requests": sum(each.status != 200 for each in asked),
        "failed_by_status": dict(Counter(each.failure or str(each.status) for each in asked if each.status != 200)),
        "requests": len(asked),
        "requests_per_s": round(len(asked) / (time.time() - started), 1),
        "runs": len(found),
        "gateways": len(deployed.urls),
        "rollback_command_s_median": round(median(run.bad_s for run in commands), 3),
        "rollback_command_s_max": round(max(run.bad_s for run in commands), 3),
        "command_to_flip_s_median": round(median(run.command_s for run in commands), 3),
        "flip_to_last_bad_s_max": round(max(run.flip_s for run in found), 3),
        "automatic_abort_s_max": round(max((run.bad_s for run in aborts), default=0.0), 3),
        "proven_on_every_gateway_s_median": round(median(run.proven_s or 0.0 for run in commands), 3),
        "abort_sessions_exposed_median": median(run.exposed for run in aborts) if aborts else None,
    }


async def _rolled_back(deployed: Fleet, connection: sqlite3.Connection, traffic: Traffic, number: int) -> Run:
    """Everybody is on the bad version; an operator runs the command."""
    pointers.set_champion(connection, AGENT, BAD, f"run {number}", "bench")
    await asyncio.sleep(_SETTLE_S)
    began = time.time()
    route = json.loads(await _command(deployed, "rollback", "--agent", AGENT, "--json"))
    await asyncio.sleep(_AFTER_S)
    decided = _seconds(route["changed_at"])
    return Run("rollback", max(0.0, _last_bad(traffic, began) - decided), decided - began, route["served_in_s"])


async def _command(deployed: Fleet, *arguments: str) -> bytes:
    """What `evoplane …` printed, as its entry point runs it."""
    program = "from evoplane.cli.main import main; main()"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program, *arguments),
        env=deployed.environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    if process.returncode != 0:
        raise RuntimeError(f"evoplane {arguments[0]} failed: {err.decode()[-500:]}")
    return out


async def _aborted(deployed: Fleet, connection: sqlite3.Connection, traffic: Traffic, number: int) -> Run:
    """Half of the sessions are on a canary that fails; its test finds out and takes it out."""
    rng = random.Random(number)
    test = CanaryTest(alpha=_TEST["alpha"], harm_margin=_TEST["harm_margin"], min_sessions=int(_TEST["min_sessions"]))
    began = time.time()
    pointers.start_canary(connection, AGENT, BAD, 0.5, actor="bench")
    position = len(traffic.answered)
    while time.time() - began < _ABORT_WAIT_S:
        await asyncio.sleep(0.05)
        new, position = traffic.answered[position:], len(traffic.answered)
        for each in new:
            arm: Arm = "canary" if each.version == BAD else "champion"
            test.add([Outcome(arm, float(rng.random() < (0.3 if arm == "canary" else 0.9)))])
        verdict = test.verdict()
        if verdict.state == "abort":
            route = pointers.clear_canary(connection, AGENT, verdict.reason, "bench", only=BAD, end="aborted")
            await asyncio.sleep(_AFTER_S)
            last = _last_bad(traffic, began)
            return Run("abort", max(0.0, last - _seconds(route.changed_at)), exposed=verdict.canary)
    raise RuntimeError(f"the canary was not aborted within {_ABORT_WAIT_S:.0f} s")


def _last_bad(traffic: Traffic, since: float) -> float:
    return max((each.sent for each in traffic.since(since) if each.version == BAD), default=since)


def _seconds(at: str) -> float:
    return datetime.fromisoformat(at).timestamp()
