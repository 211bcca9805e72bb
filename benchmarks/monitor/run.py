"""`evoplane bench monitor`: simulated lives with and without faults, and what the control plane made of them."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.monitor.life import Ended, live
from benchmarks.monitor.scenarios import SCENARIOS
from benchmarks.monitor.server import ModelServer
from benchmarks.watching.run import figures as watching
from evaluators.intervals import wilson

SURFACES = ("memory", "skill", "harness", "tools", "policy", "rollback", "no-op")
Say = Callable[[str], None]


def run(var: Path, *, seeds: int, quiet_seeds: int = 0, quick: bool, say: Say) -> dict[str, Any]:
    """Figures of `seeds` lives of every scenario, `quiet_seeds` (if that is more) of those without a fault.

    Quick: one of each, with the watch's quick figures. The watch's own figures (`benchmarks.watching`) are part of the
    result.
    """
    started = time.monotonic()
    lives = play(var, 1, 1, say) if quick else play(var, seeds, max(seeds, quiet_seeds), say)
    return {
        **figures(lives),
        "seconds_of_lives": round(time.monotonic() - started, 1),
        **watching(quick=quick, say=say),
    }


def play(var: Path, seeds: int, quiet_seeds: int, say: Say) -> list[Ended]:
    """The lives, one after another."""
    bench = var.absolute() / "bench"
    bench.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="monitor-", dir=bench))
    ended = []
    try:
        with ModelServer() as server:
            for scenario in SCENARIOS:
                for seed in range(seeds if scenario.faulty else quiet_seeds):
                    found = live(scenario, seed, server, folder)
                    ended.append(found)
                    mark = "ok" if found.correct else f"{found.right} would have been right"
                    say(f"{scenario.name} {seed}: {found.chosen} ({mark}); {found.why}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return ended


def figures(lives: Sequence[Ended]) -> dict[str, Any]:
    """Shares with intervals, the confusion matrix, and every life in a line.

    Every scenario counts alike in the share that is right: of those that were played more often, the first seeds count.
    """
    quiet_names = {s.name for s in SCENARIOS if not s.faulty}
    each = min(Counter(e.scenario for e in lives).values())
    correct = [e.correct for e in lives if e.seed < each]
    quiet = [e.chosen == "no-op" for e in lives if e.scenario in quiet_names]
    alarms = [bool(e.alarm) for e in lives if e.scenario in quiet_names]
    right, still = wilson(sum(correct), len(correct)), wilson(sum(quiet), len(quiet))
    return {
        "right_surface_share": round(right.value, 3),
        "right_surface_interval": [round(right.low, 3), round(right.high, 3)],
        "quiet_share": round(still.value, 3),
        "quiet_interval": [round(still.low, 3), round(still.high, 3)],
        "alarms_without_a_fault": sum(alarms),
        "lives": len(correct),
        "quiet_lives": len(quiet),
        "confusion": confusion(lives),
        "misses": [
            {"scenario": e.scenario, "seed": e.seed, "chosen": e.chosen, "why": e.why} for e in lives if not e.correct
        ],
    }


def confusion(lives: Sequence[Ended]) -> dict[str, dict[str, int]]:
    """How often each surface was chosen, by scenario."""
    counts: dict[str, Counter[str]] = {s.name: Counter() for s in SCENARIOS}
    for ended in lives:
        counts[ended.scenario][ended.chosen] += 1
    return {name: {surface: chosen[surface] for surface in SURFACES} for name, chosen in counts.items()}


def table(found: dict[str, Any]) -> str:
    """The confusion matrix as Markdown, the right answer in bold."""
    right = {s.name: s.right for s in SCENARIOS}
    lines = [
        f"| fault | {' | '.join(SURFACES)} |",
        f"|---|{'---|' * len(SURFACES)}",
    ]
    for name, chosen in found["confusion"].items():
        cells = [_cell(chosen[s], s == right[name]) for s in SURFACES]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    low, high = found["right_surface_interval"]
    lines += [
        "",
        f"Right in {found['right_surface_share']:.0%} [{low:.0%}, {high:.0%}] of {found['lives']} lives "
        f"(as many of each scenario); without a fault, nothing was disturbed in {found['quiet_share']:.0%} "
        f"[{found['quiet_interval'][0]:.0%}, {found['quiet_interval'][1]:.0%}] of {found['quiet_lives']}.",
    ]
    return "\n".join(lines)


def _cell(count: int, right: bool) -> str:
    return f"**{count}**" if right else (str(count) if count else "")


_BEGIN, _END = "<!-- confusion: evoplane bench monitor --write -->", "<!-- /confusion -->"


def write(found: dict[str, Any], page: Path) -> None:
    """Put the matrix where the page has its place for it; raises `ValueError` when it has none."""
    text = page.read_text()
    begin, end = text.find(_BEGIN), text.find(_END)
    if begin < 0 or end < begin:
        raise ValueError(f"{page} has no place for the matrix: {_BEGIN} … {_END}")
    page.write_text(f"{text[: begin + len(_BEGIN)]}\n\n{table(found)}\n\n{text[end:]}")
