"""`evoplane bench gateway`: start everything, measure it in turn, say what came out."""

from __future__ import annotations

import shutil
import tempfile
import time
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.gateway import targets
from benchmarks.gateway.figures import PREFIXES, bars, figures
from benchmarks.gateway.rounds import FULL, QUICK, Results, Rounds, Say
from benchmarks.gateway.servers import CannotStart, rss_mib
from benchmarks.gateway.targets import Target
from benchmarks.machine import BUSY_PERCENT, load_average


def run(var: Path, *, quick: bool, peers: bool, say: Say) -> dict[str, Any]:
    """Figures, bars and whatever a reader needs to judge them. `var` must be on the disk a deployment writes to."""
    plan = QUICK if quick else FULL
    bench = var.absolute() / "bench"
    bench.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="gateway-", dir=bench))
    started, load_before = time.monotonic(), load_average()
    missing: dict[str, str] = {}
    try:
        with ExitStack() as servers:
            upstream = servers.enter_context(targets.direct(folder))
            # what starts slowly starts first, nothing is measured until all are there
            found = _start(servers, folder, bench, upstream, peers, missing, say)
            rounds = Rounds([upstream, *found], plan, folder, say)
            idle = {target.name: rss_mib(target.pid) for target in found}
            results = uvloop.run(_measured(rounds, found))
            after = {target.name: rss_mib(target.pid) for target in found}
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    results.problems |= missing
    values = figures(results)
    for name, prefix in PREFIXES.items():
        values[f"{prefix}rss_mib_idle"], values[f"{prefix}rss_mib_after"] = idle.get(name), after.get(name)
    return {
        **values,
        "bars": [{**asdict(bar), "met": bar.met} for bar in bars(values)],
        "not_measured": results.problems,
        "requests": dict(results.answered),
        "seconds": round(time.monotonic() - started, 1),
        "load_average": [load_before, load_average()],
        "busy_percent": max(results.busy_percent),
        "warning": _warning(results),
    }


async def _measured(rounds: Rounds, found: list[Target]) -> Results:
    results = await rounds.run()
    for target in found:
        if target.name in ("async", "durable"):
            await rounds.fill(target)
    return results


def _start(
    servers: ExitStack,
    folder: Path,
    bench: Path,
    upstream: Target,
    peers: bool,
    missing: dict[str, str],
    say: Say,
) -> list[Target]:
    """All but the upstream; a peer that can't be started is named in `missing` and left out."""
    ours = [targets.evoplane(folder, upstream.port, mode, mode) for mode in ("async", "durable")]
    found = [servers.enter_context(each) for each in ours]
    others: dict[str, AbstractContextManager[Target]] = {
        "mlflow": targets.mlflow(folder, upstream.port),
        "portkey": targets.portkey(folder, upstream.port, bench / "portkey"),
    }
    for name, peer in others.items():
        if not peers:
            missing[name] = "left out (--no-peers)"
            continue
        say(f"starting {name}")
        try:
            found.append(servers.enter_context(peer))
        except CannotStart as error:
            missing[name] = str(error)
    return found


def _warning(results: Results) -> str | None:
    busiest = max(results.busy_percent)
    if busiest <= BUSY_PERCENT:
        return None
    return f"the machine is busy with something else ({busiest:.0f}% of all cores): these figures are not to be trusted"
