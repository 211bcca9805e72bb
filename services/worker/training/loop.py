"""The training loop: LoRA over a frozen base, AdamW, linear warm-up and decay, fp32, by Accelerate.

One optimiser step is one packed batch. A run killed at any moment and started again ends with the
weights of an uninterrupted one.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from accelerate import Accelerator
from peft import LoraConfig, PeftModel, get_peft_model
from torch.optim.lr_scheduler import LambdaLR
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging as transformers_logging

from services.worker.training.checkpoint import Checkpoint, Progress
from services.worker.training.examples import Example
from services.worker.training.job import Job
from services.worker.training.metrics import Metrics
from services.worker.training.packing import ATTENTION, pack
from services.worker.training.sft import sft_loss, target_logits

_WARMUP_STEPS = 4
_FINAL_SHARE = 0.1
"""The learning rate decays linearly to this share of its peak."""
_MAX_GRAD_NORM = 1.0
_LORA_TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


Report = Callable[[Metrics], None]


@dataclass(frozen=True)
class Heldout:
    """What held-out examples say. `exact` is the share whose every token is the model's first choice:
    those that greedy decoding would reproduce."""

    loss: float
    exact: float


@dataclass(frozen=True)
class Trained:
    model: PeftModel
    progress: Progress
    heldout: Heldout | None


def train(job: Job, examples: Sequence[Example], heldout: Sequence[Example], report: Report) -> Trained:
    """Train from the job's last checkpoint, or from scratch; calls `report` after every optimiser step."""
    torch.set_num_threads(job.threads)
    torch.manual_seed(job.seed)
    accelerator = Accelerator(mixed_precision="no")
    model = _with_lora(job)
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=job.learning_rate, weight_decay=0.0)
    per_epoch = -(-len(examples) // job.batch_size)
    steps = per_epoch * job.epochs
    schedule = LambdaLR(optimizer, lambda step: _learning_rate_share(step, steps))
    model, optimizer, schedule = accelerator.prepare(model, optimizer, schedule)

    checkpoint = Checkpoint(job.output / "checkpoint", accelerator, model)
    fingerprint = job.fingerprint()
    progress = checkpoint.load(fingerprint) or Progress(fingerprint=fingerprint)
    base = cast(PreTrainedModel, model.get_base_model())
    if heldout and progress.heldout_loss_before is None:
        progress.heldout_loss_before = measure(base, heldout, job.batch_size).loss

    model.train()
    started = time.monotonic() - progress.seconds
    for step, batch in _batches(examples, job, start=progress.step):
        packed = pack(batch, accelerator.device)
        loss = sft_loss(base, packed)
        accelerator.backward(loss)
        norm = accelerator.clip_grad_norm_(trainable, _MAX_GRAD_NORM)
        rate = schedule.get_last_lr()[0]
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        progress.step = step + 1
        progress.tokens += packed.tokens
        progress.seconds = time.monotonic() - started
        report(
            Metrics(
                step=progress.step,
                steps=steps,
                epoch=step // per_epoch,
                loss=loss.item(),
                learning_rate=rate,
                grad_norm=float(norm),
                tokens=progress.tokens,
                seconds=round(progress.seconds, 2),
            )
        )
        if progress.step % job.checkpoint_every == 0 or progress.step == steps:
            checkpoint.save(progress)
    return Trained(
        model=model,
        progress=progress,
        heldout=measure(base, heldout, job.batch_size) if heldout else None,
    )


def measure(model: PreTrainedModel, examples: Sequence[Example], batch_size: int) -> Heldout:
    """Token-weighted loss and exact-match share, in evaluation mode; the mode is restored."""
    was_training = model.training
    model.eval()
    loss = weight = 0.0
    exact = 0
    with torch.no_grad():
        for start in range(0, len(examples), batch_size):
            packed = pack(examples[start : start + batch_size], model.device)
            logits = target_logits(model, packed)
            nll = torch.nn.functional.cross_entropy(logits, packed.targets, reduction="none")
            loss += float((packed.weights * nll).sum())
            weight += float(packed.weights.sum())
            wrong = logits.argmax(-1) != packed.targets
            samples = packed.grid.shape[0]
            exact += samples - len(packed.owners[wrong].unique())
    model.train(was_training)
    return Heldout(loss=loss / weight, exact=exact / len(examples))


def _with_lora(job: Job) -> PeftModel:
    transformers_logging.disable_progress_bar()
    base = AutoModelForCausalLM.from_pretrained(
        job.base, dtype=torch.float32, attn_implementation=ATTENTION, local_files_only=True
    )
    config = LoraConfig(
        r=job.lora_rank, lora_alpha=2 * job.lora_rank, target_modules=_LORA_TARGETS, task_type="CAUSAL_LM"
    )
    model = get_peft_model(base, config)
    # the adapter is named by its digest, which must not depend on where the base model lies
    config.base_model_name_or_path = Path(job.base).name
    return model


def _learning_rate_share(step: int, steps: int) -> float:
    warm = min(1.0, (step + 1) / _WARMUP_STEPS)
    return warm * (1 - (1 - _FINAL_SHARE) * step / steps)


def _batches(examples: Sequence[Example], job: Job, *, start: int) -> Iterator[tuple[int, list[Example]]]:
    """(step, batch) from `start` on. Every epoch is its own permutation, a function of seed and epoch."""
    step = 0
    for epoch in range(job.epochs):
        order = list(range(len(examples)))
        random.Random(f"{job.seed}:{epoch}").shuffle(order)  # noqa: S311  a permutation, not a secret
        for first in range(0, len(order), job.batch_size):
            if step >= start:
                yield step, [examples[i] for i in order[first : first + job.batch_size]]
            step += 1
