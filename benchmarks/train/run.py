"""`evoplane bench train`: losses against independent implementations, and a step beside TRL's."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.machine import load_average
from benchmarks.train.workloads import GROWTH, GRPO, QUICK, SFT, Workload

ROUNDS = 3
LOSS_TOLERANCE = 1e-4
"""Relative, between the two sides of a step: both compute in fp32, in another order."""

Say = Callable[[str], None]


class Side:
    """One trainer in a process of its own."""

    def __init__(self, name: str, model: Path, threads: int, log: Path) -> None:
        self.name = name
        self._log = log
        told = {"OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
        command = [
            sys.executable,
            "-m",
            "benchmarks.train.side",
            name,
            "--model",
            str(model),
            "--threads",
            str(threads),
        ]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log.open("w"),
            text=True,
            env=os.environ | told,
        )

    def ask(self, workload: str) -> dict[str, Any]:
        """The first time it gets ready, then each time takes one step."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(workload + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the {self.name} side ended: {self._log.read_text()[-2000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


@contextmanager
def _sides(model: Path, threads: int) -> Iterator[list[Side]]:
    with tempfile.TemporaryDirectory() as folder:
        both = [Side(name, model, threads, Path(folder) / f"{name}.log") for name in ("evoplane", "trl")]
        try:
            yield both
        finally:
            for side in both:
                side.close()


def measure(both: list[Side], work: Workload, rounds: int, say: Say) -> dict[str, Any]:
    """Both sides take turns, another one first each round; the first step of each is a warm-up.

    `peak_memory` is None where the other side's memory did not grow: it had that much from an earlier workload.
    """
    for side in both:
        side.ask(work.name)
    taken: dict[str, list[dict[str, Any]]] = {side.name: [] for side in both}
    for number in range(rounds + 1):
        for side in both if number % 2 else reversed(both):
            taken[side.name].append(side.ask(work.name))
        ours, theirs = (taken[name][-1] for name in ("evoplane", "trl"))
        for figure in ("loss", "grad_norm"):
            if abs(ours[figure] - theirs[figure]) > LOSS_TOLERANCE * (1 + abs(theirs[figure])):
                raise RuntimeError(f"{work.name}: not the same training: {figure} {ours[figure]} and {theirs[figure]}")
        say(f"{work.name}: {ours['seconds']:.1f} s, TRL {theirs['seconds']:.1f} s a step")
    pairs = list(zip(taken["evoplane"][1:], taken["trl"][1:], strict=True))
    medians = {name: statistics.median(t["seconds"] for t in steps[1:]) for name, steps in taken.items()}
    peaks = {name: max(t["peak_bytes"] for t in steps) for name, steps in taken.items()}
    return {
        "workload": work.name,
        "tokens": work.tokens,
        "tokens_per_s": work.tokens / medians["evoplane"],
        "trl_tokens_per_s": work.tokens / medians["trl"],
        "times_as_fast": statistics.median(t["seconds"] / o["seconds"] for o, t in pairs),
        "times_less_cpu": statistics.median(t["cpu_seconds"] / o["cpu_seconds"] for o, t in pairs),
        "loss_difference": max(abs(o["loss"] - t["loss"]) for o, t in pairs),
        "peak_mib": peaks["evoplane"] / 2**20,
        "trl_peak_mib": peaks["trl"] / 2**20,
        "peak_memory": peaks["evoplane"] / peaks["trl"] if peaks["trl"] > 0 else None,
    }


def run(model: Path, *, quick: bool, threads: int = 2, say: Say) -> dict[str, Any]:
    """All figures; `quick` measures tiny batches, whose speed says little."""
    from benchmarks.train import losses, trl_losses

    compared = losses.compare() | {f"{name} (TRL)": found for name, found in trl_losses.compare().items()}
    say(f"{len(compared)} losses compared")
    main = QUICK if quick else [GRPO, SFT]
    steps = []
    for work in main:  # processes of its own for each: what an earlier one kept of its memory would hide a peak
        with _sides(model, threads) as both:
            steps.append(measure(both, work, 1 if quick else ROUNDS, say))
    grpo, sft = steps
    growth: list[dict[str, Any]] = []
    if not quick:
        with _sides(model, threads) as both:
            growth = [measure(both, work, 1, say) for work in GROWTH]
    return {
        "max_loss_difference": max(loss for loss, _ in compared.values()),
        "max_gradient_difference": max(gradient for _, gradient in compared.values()),
        "grpo_tokens_per_s_vs_trl": grpo["times_as_fast"],
        "sft_tokens_per_s_vs_trl": sft["times_as_fast"],
        "peak_memory_vs_trl": max(grpo["peak_memory"], sft["peak_memory"]),
        "load_average": load_average(),
        "steps": [grpo, sft, *growth],
        "losses": {name: {"loss": loss, "gradient": gradient} for name, (loss, gradient) in compared.items()},
    }
