"""metrics.jsonl and the progress lines of a run."""

from __future__ import annotations

from pathlib import Path

import msgspec

from services.worker.files import write_atomically


class Metrics(msgspec.Struct, frozen=True, kw_only=True):
    """One optimiser step; one line of metrics.jsonl."""

    step: int
    """From 1."""
    steps: int
    """Of the whole run."""
    epoch: int
    """From 0."""
    loss: float
    """Nats per completion token, before the step."""
    learning_rate: float
    grad_norm: float
    """Before clipping."""
    tokens: int
    """Computed so far."""
    seconds: float
    """Trained so far, over all starts."""


class MetricsLog:
    """The run's steps, in order; steps repeated after a crash replace their first telling."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._steps: dict[int, Metrics] = {}
        for line in file.read_bytes().splitlines() if file.exists() else []:
            metrics = msgspec.json.decode(line, type=Metrics)
            self._steps[metrics.step] = metrics

    def write(self, metrics: Metrics) -> None:
        self._steps = {step: m for step, m in self._steps.items() if step < metrics.step}
        self._steps[metrics.step] = metrics
        lines = [msgspec.json.encode(m) + b"\n" for m in self._steps.values()]
        write_atomically(self._file, b"".join(lines))
        left = metrics.seconds / metrics.step * (metrics.steps - metrics.step)
        print(
            f"step {metrics.step}/{metrics.steps}  loss {metrics.loss:.4f}  "
            f"{metrics.tokens / max(metrics.seconds, 1e-9):.0f} tokens/s  {left:.0f} s left",
            flush=True,
        )

    def loss_of_last_epoch(self) -> float:
        last = max(m.epoch for m in self._steps.values())
        losses = [m.loss for m in self._steps.values() if m.epoch == last]
        return sum(losses) / len(losses)
