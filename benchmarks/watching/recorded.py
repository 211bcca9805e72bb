"""Drift between agents on real trajectories: two models on the same tasks, and one agent split in halves at random."""

from __future__ import annotations

import asyncio
import itertools
import random
import tempfile
from pathlib import Path
from typing import Any

from atdp import convert
from evaluators import drift
from evaluators.cases import Case, cases_of
from evaluators.drift import Drift
from evaluators.rewards import RewardRule
from evoplane.settings import Monitor, RewardClause, RewardSettings
from services.proxy import importing
from services.proxy.store import EventStore, StoreReader

_RULE = RewardRule(RewardSettings(clauses=[RewardClause(name="reward", kinds=["environment"])]))
"""What the benchmark's own checks say."""


def cases_in(file: Path, agent: str) -> list[Case]:
    """The decisions of one file of tau2-bench's, through the store as an import puts them there."""
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_import(Path(folder), file, agent))
        reader = StoreReader(Path(folder))
        out: list[Case] = []
        for row in reader.trajectories("public"):
            records = reader.resolve_all("public", reader.records("public", row.trajectory_id))
            out += cases_of("public", records, lambda context: reader.tools("public", context), rule=_RULE)
        reader.close()
        return out


def compare(current: list[Case], reference: list[Case], config: Monitor) -> Drift:
    """One look, by Evidently, effect sizes and minimum n."""
    return drift.compare(drift.frame(current), drift.frame(reference), config)[0]


def measure(files: dict[str, list[Path]], halves: int, config: Monitor) -> dict[str, Any]:
    """`between`: what drifted for each two agents of a domain; `within`: shares of random halves that drifted."""
    between: dict[str, list[str]] = {}
    within: dict[str, str] = {}
    alarms = looked = 0
    chance = random.Random(5)
    for paths in files.values():
        agents = {path.stem: cases_in(path, path.stem) for path in paths}
        for one, other in itertools.combinations(agents, 2):
            between[f"{one} / {other}"] = list(compare(agents[one], agents[other], config).drifted)
        for name, cases in agents.items():
            ids = sorted({c.trajectory_id for c in cases})
            if len(ids) < 2 * drift.MIN_ROWS:
                within[name] = "not enough data"
                continue
            hits = 0
            for _ in range(halves):
                half = set(chance.sample(ids, len(ids) // 2))
                a, b = [c for c in cases if c.trajectory_id in half], [c for c in cases if c.trajectory_id not in half]
                hits += compare(a, b, config).state == "drift"
            alarms, looked = alarms + hits, looked + halves
            within[name] = f"{hits} of {halves}"
    return {
        "between": between,
        "within": within,
        "pairs_detected": f"{sum(map(bool, between.values()))} of {len(between)}",
        "halves_false_alarm_share": round(alarms / looked, 4) if looked else None,
    }


async def _import(root: Path, file: Path, agent: str) -> None:
    store = EventStore(root)
    await store.start()
    job = importing.Import(store, "public", agent, "allow")
    with file.open("rb") as source:
        await job.take(convert.get("tau2-bench").read(source, convert.ReadOptions(agent, file.name)).records)
    await job.finish()
    await store.close()
