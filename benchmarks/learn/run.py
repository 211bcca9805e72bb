"""`evoplane bench learn`: phase by phase, seed by seed; what is done is kept and not done again."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Sequence
from math import sqrt
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from scipy.stats import t

from benchmarks.learn.phases import PHASES, Phases
from benchmarks.learn.school import FULL, QUICK, School
from benchmarks.live import Say, live
from benchmarks.machine import load_average

TENANTS = ("northwind", "lumen", "brightside")
_ONCE = frozenset({"staleness", "federated"})
"""Tables, not figures with an interval: made with the first seed only."""


def run(var: Path, *, seeds: Sequence[int], only: Sequence[str], quick: bool, fresh: bool, say: Say) -> dict[str, Any]:
    """The figures of all seeds. Raises `ValueError` for an unknown phase."""
    if unknown := sorted(set(only) - PHASES.keys()):
        raise ValueError(f"there is no phase {unknown[0]!r}; there are: {', '.join(PHASES)}")
    bench = var.absolute() / "bench" / ("learn-quick" if quick else "learn")
    if fresh:
        shutil.rmtree(bench, ignore_errors=True)
    bench.mkdir(parents=True, exist_ok=True)
    load = load_average()
    for seed in seeds:
        wanted = [p for p in (only or PHASES) if p not in _ONCE or seed == seeds[0] or p in only]
        missing = [phase for phase in wanted if not (bench / f"seed-{seed}" / f"{phase}.json").exists()]
        if missing:
            _seed(bench / f"seed-{seed}", seed, missing, quick, say)
    found = {seed: _kept(bench / f"seed-{seed}") for seed in seeds}
    return figures(found) | {"seeds": list(seeds), "quick": quick, "load_average": [load, load_average()]}


def figures(found: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """Means with 95% intervals over seeds (Student's t), and the tables of the first seed that has them."""

    def over(phase: str, key: str) -> dict[str, float | int | None]:
        return interval([kept[phase][key] for kept in found.values() if phase in kept])

    def table(phase: str) -> Any:
        return next((kept[phase] for kept in found.values() if phase in kept), None)

    return {
        "base_success": over("lift", "base"),
        "final_success": over("lift", "final"),
        "control_lift": over("control", "lift"),
        "grpo_only_lift": over("grpo-only", "lift"),
        "seed_seconds": {s: k["lift"]["seconds"] + k["lift"]["before_s"] for s, k in found.items() if "lift" in k},
        "staleness": table("staleness"),
        "federated": table("federated"),
        "phases": {seed: sorted(kept) for seed, kept in found.items()},
    }


def interval(values: Sequence[float]) -> dict[str, float | int | None]:
    """Mean and 95% interval; with one value there is no interval."""
    if not values:
        return {"value": None, "low": None, "high": None, "n": 0}
    middle = mean(values)
    if len(values) == 1:
        return {"value": middle, "low": None, "high": None, "n": 1}
    half = float(t.ppf(0.975, len(values) - 1)) * stdev(values) / sqrt(len(values))
    return {"value": middle, "low": middle - half, "high": middle + half, "n": len(values)}


def _seed(folder: Path, seed: int, missing: Sequence[str], quick: bool, say: Say) -> None:
    shutil.rmtree(folder / "var", ignore_errors=True)  # a phase that was interrupted begins again
    folder.mkdir(parents=True, exist_ok=True)
    options = {"worker.max_loras": "8", "evolve.lora_rank": "16"}
    with live(folder / "var", say, tenant_names=TENANTS, environment=options) as stack:
        phases = Phases(School(stack, folder / "var", seed, QUICK if quick else FULL, say))
        for phase in missing:
            say(f"seed {seed}: {phase}")
            began = time.monotonic()
            made = PHASES[phase](phases)
            made["seconds"] = round(time.monotonic() - began, 1)
            (folder / f"{phase}.json").write_text(json.dumps(made, indent=2))
    shutil.rmtree(folder / "var", ignore_errors=True)


def _kept(folder: Path) -> dict[str, Any]:
    return {file.stem: json.loads(file.read_text()) for file in folder.glob("*.json")}
