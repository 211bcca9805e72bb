"""metrics.jsonl and the progress lines of a run."""

from __future__ import annotations

from math import nan
from pathlib import Path
from typing import Any

import msgspec

from evoplane.files import write_durably
from services.worker.training.job import JobError


class Metrics(msgspec.Struct, frozen=True, kw_only=True):
    """One optimiser step; one line of metrics.jsonl."""

    step: int
    """From 1."""
    steps: int
    """Of the whole run."""
    epoch: int
    """From 0."""
    loss: float
    """The algorithm's, before the step; of imitation, nats per completion token."""
    learning_rate: float
    grad_norm: float
    """Before clipping."""
    tokens: int
    """Computed so far."""
    seconds: float
    """Trained so far, over all starts."""
    entropy: float | None = None
    """Mean entropy of the distributions tokens were predicted from, nats."""
    kl: float | None = None
    """To the reference (what the policy line began with), nats a token; where the job computes it."""
    reward: float | None = None
    """Mean over the step's rows."""
    staleness: float | None = None
    """Mean over its tokens: weight updates between sampling and the start of training."""
    logprob_gap_mean: float | None = None
    """Captured and computed log-probabilities of its rows, absolute difference under the starting weights, nats."""
    logprob_gap_max: float | None = None
    figures: dict[str, float] = {}
    """The algorithm's own; in metrics.jsonl they are keys of the line itself, `figures/NAME`."""


_FIGURES = "figures/"


def _encode(metrics: Metrics) -> bytes:
    line: dict[str, Any] = {k: v for k, v in msgspec.to_builtins(metrics).items() if v is not None}
    line.update({_FIGURES + name: value for name, value in line.pop("figures").items()})
    return msgspec.json.encode(line)


def _decode(line: bytes) -> Metrics:
    # a number is left out where there is none, and null where it was no number
    told: dict[str, Any] = {k: nan if v is None else v for k, v in msgspec.json.decode(line).items()}
    figures = {name: told.pop(name) for name in list(told) if name.startswith(_FIGURES)}
    told["figures"] = {name.removeprefix(_FIGURES): value for name, value in figures.items()}
    return msgspec.convert(told, type=Metrics)


class MetricsLog:
    """The run's steps, in order; steps repeated after a crash replace their first telling.

    Raises `JobError` for a file that was damaged.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._steps: dict[int, Metrics] = {}
        for line in file.read_bytes().splitlines() if file.exists() else []:
            try:
                metrics = _decode(line)
            except (msgspec.MsgspecError, AttributeError) as error:
                raise JobError(f"{file} is damaged ({error}): remove it, and the checkpoint beside it") from error
            self._steps[metrics.step] = metrics

    def write(self, metrics: Metrics) -> None:
        self._steps = {step: m for step, m in self._steps.items() if step < metrics.step}
        self._steps[metrics.step] = metrics
        lines = [_encode(m) + b"\n" for m in self._steps.values()]
        write_durably(self._file, b"".join(lines))
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
