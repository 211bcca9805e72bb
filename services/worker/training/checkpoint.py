"""Checkpoints: everything a run needs to continue as if it had never stopped.

One directory holds the trained weights, optimiser, schedule, random state (by Accelerate) and the
progress. It is written beside the last one and swapped in by renames, so a kill at any moment leaves a
whole checkpoint. The order of the data is a function of seed and epoch, and needs no state.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import msgspec
import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType
from safetensors.torch import load_file, save_file

from services.worker.training.job import JobError

_PROGRESS = "progress.json"
_TRAINED = "trained.safetensors"


class Progress(msgspec.Struct, kw_only=True):
    """How far a run is."""

    fingerprint: str
    """Of the job: a checkpoint of another job is ignored."""
    step: int = 0
    """Optimiser steps done."""
    tokens: int = 0
    """Tokens computed."""
    seconds: float = 0.0
    """Training time spent, over all starts."""
    heldout_loss_before: float | None = None
    resumed_from: int | None = None
    """Step of the last resumption, if any."""


class Checkpoint:
    """The one checkpoint of a run, in `directory`; every process of the run takes part."""

    def __init__(self, directory: Path, accelerator: Accelerator, policy: torch.nn.Module) -> None:
        self._directory = directory
        self._accelerator = accelerator
        self._policy = policy
        if accelerator.distributed_type != DistributedType.FSDP:  # there, weights are shards and Accelerate's business
            accelerator.register_save_state_pre_hook(self._save_trained_only)
            accelerator.register_load_state_pre_hook(self._load_trained_only)

    def save(self, progress: Progress) -> None:
        fresh, old = self._directory.with_suffix(".new"), self._directory.with_suffix(".old")
        if self._accelerator.is_main_process:
            shutil.rmtree(fresh, ignore_errors=True)
        self._accelerator.wait_for_everyone()
        self._accelerator.save_state(str(fresh))
        self._accelerator.wait_for_everyone()
        if not self._accelerator.is_main_process:
            return
        (fresh / _PROGRESS).write_bytes(msgspec.json.encode(progress))
        for file in filter(Path.is_file, fresh.rglob("*")):
            with file.open("rb") as stream:
                os.fsync(stream.fileno())
        shutil.rmtree(old, ignore_errors=True)
        if self._directory.exists():
            self._directory.rename(old)
        fresh.rename(self._directory)
        shutil.rmtree(old, ignore_errors=True)

    def load(self, fingerprint: str) -> Progress | None:
        """Restore the newest whole checkpoint of this job and return its progress, or None.

        Raises `JobError` for one that was damaged: what of it is loaded by then is no place to start from.
        """
        for directory in (self._directory, self._directory.with_suffix(".old")):
            file = directory / _PROGRESS
            if not file.is_file():
                continue
            try:
                progress = msgspec.json.decode(file.read_bytes(), type=Progress)
                if progress.fingerprint != fingerprint:
                    continue
                self._accelerator.load_state(str(directory))
            except Exception as error:  # of four libraries
                raise JobError(f"{directory} is damaged ({error}): without it, training begins again") from error
            progress.resumed_from = progress.step
            return progress
        return None

    def _trained(self) -> dict[str, torch.nn.Parameter]:
        policy = self._accelerator.unwrap_model(self._policy)
        return {name: weight for name, weight in policy.named_parameters() if weight.requires_grad}

    def _save_trained_only(self, _models: list, weights: list, directory: str) -> None:
        weights.clear()  # a frozen base model would make every checkpoint as large as itself
        if self._accelerator.is_main_process:
            save_file({name: w.data for name, w in self._trained().items()}, Path(directory) / _TRAINED)

    def _load_trained_only(self, models: list, directory: str) -> None:
        models.clear()
        saved = load_file(Path(directory) / _TRAINED)
        for name, weight in self._trained().items():
            weight.data.copy_(saved[name])
