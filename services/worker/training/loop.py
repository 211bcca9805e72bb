"""The training loop: AdamW, linear warm-up and decay, fp32, by Accelerate, on one device or many.

One optimiser step is one batch of rows, computed in as many packs as memory asks for; losses are sums over
packs and devices divided by the step's totals, so neither changes the result. A run killed at any moment and
started again ends with the weights of an uninterrupted one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from math import isfinite
from typing import Any

import torch
from accelerate import Accelerator
from torch.optim.lr_scheduler import LambdaLR

from services.worker.training.agreement import check
from services.worker.training.algorithms import Algorithm
from services.worker.training.algorithms.base import k3
from services.worker.training.batch import Batch, Known, Scores, Totals, collate, totals
from services.worker.training.batches import packs, schedule
from services.worker.training.checkpoint import Checkpoint, Progress
from services.worker.training.examples import Example
from services.worker.training.job import Job, JobError
from services.worker.training.metrics import Metrics
from services.worker.training.packing import Pack, pack
from services.worker.training.policy import load_policy
from services.worker.training.scoring import Scored, gaps, score_rows

_FINAL_SHARE = 0.1
"""The learning rate decays linearly to this share of its peak."""
_MAX_GRAD_NORM = 1.0

Report = Callable[[Metrics], None]


@dataclass(frozen=True)
class Heldout:
    """What held-out examples say. `exact` is the share whose every token is the model's first choice:
    those that greedy decoding would reproduce."""

    loss: float
    exact: float


@dataclass(frozen=True)
class Trained:
    accelerator: Accelerator
    policy: torch.nn.Module
    """As wrapped by Accelerate."""
    progress: Progress
    heldout: Heldout | None
    logprob_gap: tuple[float, float] | None
    """Mean and max absolute difference of captured and computed log-probabilities before training, nats."""


class Trainer:
    """One run of a job: `train` does all of it, `prepare` and `step` are its parts."""

    def __init__(
        self,
        job: Job,
        algorithm: Algorithm,
        examples: Sequence[Example],
        report: Report,
        say: Callable[[str], None] = print,
    ) -> None:
        self._job, self._algorithm, self._examples, self._report, self._say = job, algorithm, examples, report, say
        torch.set_num_threads(job.threads)
        torch.manual_seed(job.seed)
        # a schedule counts optimiser steps; Accelerate would otherwise advance it once for each process
        self._accelerator = Accelerator(mixed_precision="no", step_scheduler_with_optimizer=False)
        policy = load_policy(job, reward_head=algorithm.trains_reward_head)
        self._steps = list(schedule(examples, job, pairs=algorithm.required().pairs))
        # FSDP re-registers parameters, so it must wrap the policy before the optimiser sees them
        self.policy: torch.nn.Module = self._accelerator.prepare(policy)
        self._trainable = [p for p in self.policy.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(self._trainable, lr=job.learning_rate, weight_decay=0.0)
        rates = LambdaLR(optimizer, lambda step: learning_rate_share(step, len(self._steps), job.warmup_steps))
        self._optimizer, self._rates = self._accelerator.prepare(optimizer, rates)
        self._known: list[Known] = []
        self._scored = Scored()

    def train(self, heldout: Sequence[Example]) -> Trained:
        """Train from the job's last checkpoint, or from the start; reports after every optimiser step."""
        job, accelerator = self._job, self._accelerator
        gap = self.prepare()
        checkpoint = Checkpoint(job.output / "checkpoint", accelerator, self.policy)
        fingerprint = job.fingerprint()
        progress = checkpoint.load(fingerprint) or Progress(fingerprint=fingerprint)
        if heldout and progress.heldout_loss_before is None:
            progress.heldout_loss_before = self._measure(heldout).loss
        self.policy.train()
        started = time.monotonic() - progress.seconds
        for step in range(progress.step, len(self._steps)):
            metrics = self.step(step)
            progress.step = step + 1
            progress.tokens += metrics.pop("computed_tokens")
            progress.seconds = time.monotonic() - started
            if accelerator.is_main_process:
                self._report(
                    Metrics(
                        step=progress.step,
                        steps=len(self._steps),
                        epoch=self._steps[step][0],
                        tokens=progress.tokens,
                        seconds=round(progress.seconds, 2),
                        **metrics,
                    )
                )
            if progress.step % job.checkpoint_every == 0 or progress.step == len(self._steps):
                checkpoint.save(progress)
        return Trained(
            accelerator=accelerator,
            policy=self.policy,
            progress=progress,
            heldout=self._measure(heldout) if heldout else None,
            logprob_gap=gap,
        )

    def prepare(self) -> tuple[float, float] | None:
        """Advantages, and scores under the starting weights; stops when those aren't the weights that sampled."""
        job, examples = self._job, self._examples
        first = [i for unit in self._steps[0][1] for i in unit]
        self._scored = score_rows(
            job, self.policy, self._accelerator, examples, self._algorithm.required(), first, self._say
        )
        found = gaps(enumerate(examples), self._scored, job.policy_version)
        check(job, examples, found)
        advantages = self._algorithm.advantages(examples)
        self._known = [
            Known(advantage=a, start=self._scored.start.get(i), teacher=self._scored.teacher.get(i))
            for i, a in enumerate(advantages)
        ]
        return _mean_and_max([gap for _, gap in found])

    def step(self, step: int) -> dict[str, Any]:
        """One optimiser step; its figures, summed over packs and processes.

        Raises `JobError`, with the weights as they were, for a gradient that is no number.
        """
        job, accelerator = self._job, self._accelerator
        units = self._steps[step][1]
        rows = [i for unit in units for i in unit]
        total = totals([self._examples[i] for i in rows], forced=self._algorithm.imitates)
        shares = packs(self._examples, units, job.pack_tokens, accelerator.num_processes)
        mine = shares[accelerator.process_index]
        sums: dict[str, torch.Tensor] = {}
        for number, members in enumerate(mine):
            last = number == len(mine) - 1
            with nullcontext() if last else accelerator.no_sync(self.policy):
                loss, figures = self._loss(members or rows[:1], total)
                if not members:  # this process only keeps the others company
                    loss, figures = loss * 0, {name: value * 0 for name, value in figures.items()}
                accelerator.backward(loss * accelerator.num_processes)  # gradients are averaged over processes
            for name, value in figures.items():
                sums[name] = sums[name] + value if name in sums else value
        norm = float(accelerator.clip_grad_norm_(self._trainable, _MAX_GRAD_NORM))
        if not isfinite(norm):
            raise JobError(
                f"step {step + 1} would leave weights that are no numbers (its gradient's norm is {norm}): look at the "
                "weights, rewards and log-probabilities of its rows, or lower learning_rate"
            )
        rate = self._rates.get_last_lr()[0]
        self._optimizer.step()
        self._rates.step()
        self._optimizer.zero_grad()
        reduced = accelerator.reduce(torch.stack([value.float() for value in sums.values()]))
        told = dict(zip(sums, reduced.tolist(), strict=True))
        known: dict[str, Any] = {
            name: told.pop(name) for name in ("loss", "entropy", "kl", "staleness") if name in told
        }
        gap = _mean_and_max(
            [g for _, g in gaps(((i, self._examples[i]) for i in rows), self._scored, job.policy_version)]
        )
        rewards = [r for i in rows if (r := self._examples[i].reward) is not None]
        return {
            "computed_tokens": int(told.pop("computed_tokens")),
            **known,
            "logprob_gap_mean": gap[0] if gap else None,
            "logprob_gap_max": gap[1] if gap else None,
            "reward": sum(rewards) / len(rewards) if rewards else None,
            "learning_rate": rate,
            "grad_norm": norm,
            "figures": told,
        }

    def _loss(self, members: Sequence[int], total: Totals) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        batch, packed = self._collate(members, total)
        output = self.policy(packed, self._job.temperature)
        policy = Scores(output[0], output[1], output[3])
        reference = self._reference(members, output[0].device)
        loss, figures = self._algorithm.loss(batch, policy, reference)
        with torch.no_grad():
            figures = {
                **{name: value.detach() for name, value in figures.items()},
                "loss": loss.detach(),
                "entropy": batch.token_mean(output[1]),
                "computed_tokens": torch.tensor(float(packed.tokens), device=loss.device),
            }
            if reference is not None:
                figures["kl"] = batch.token_mean(k3(output[0].detach(), reference.logprobs))
            if batch.staleness is not None:
                figures["staleness"] = batch.token_mean(batch.staleness)
        return loss, figures

    def _collate(self, members: Sequence[int], total: Totals) -> tuple[Batch, Pack]:
        rows = [self._examples[i] for i in members]
        device = self._accelerator.device
        batch = collate(
            rows,
            [self._known[i] for i in members],
            total,
            forced=self._algorithm.imitates,
            policy_version=self._job.policy_version,
        )
        return batch.to(device), pack(rows).to(device)

    def _reference(self, members: Sequence[int], device: torch.device) -> Scores | None:
        """Of rows scored beforehand; without an adapter to begin with, the starting weights are the reference."""
        scored = self._scored.reference
        if not scored and self._job.initial_adapter is None:
            scored = self._scored.start
        if any(i not in scored for i in members):
            return None
        return Scores(torch.cat([scored[i] for i in members]).to(device))

    def _measure(self, examples: Sequence[Example]) -> Heldout:
        """Token-weighted loss and exact-match share, in evaluation mode."""
        loss = weight = 0.0
        exact = 0
        self.policy.eval()
        with torch.no_grad():
            for start in range(0, len(examples), self._job.batch_size):
                rows = examples[start : start + self._job.batch_size]
                batch = collate(rows, [Known()] * len(rows), totals(rows, forced=True), forced=True)
                output = self.policy(pack(rows).to(self._accelerator.device))
                own = batch.mask * batch.per_token(batch.weights)
                loss -= float((own * output[0].cpu()).sum())
                weight += float(own.sum())
                wrong = ~output[2].cpu() & (batch.mask > 0)
                exact += len(rows) - len(batch.owners[wrong].unique())
        self.policy.train()
        return Heldout(loss=loss / weight, exact=exact / len(examples))


def _mean_and_max(gaps: Sequence[torch.Tensor]) -> tuple[float, float] | None:
    flat = torch.cat(list(gaps)).abs() if gaps else torch.empty(0)
    return (flat.mean().item(), flat.max().item()) if flat.numel() else None


def learning_rate_share(step: int, steps: int, warmup: int) -> float:
    """Of the peak learning rate, at a step from 0."""
    warm = min(1.0, (step + 1) / warmup) if warmup else 1.0
    return warm * (1 - (1 - _FINAL_SHARE) * step / steps)
