"""Checkpoints: everything a run needs to continue as if it had never stopped.

One directory holds the adapter's weights, optimiser, schedule, random state (by Accelerate) and the
progress. It is written beside the last one and swapped in by renames, so a kill at any moment leaves a
whole checkpoint. The order of the data is a function of seed and epoch, and needs no state.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import msgspec
from accelerate import Accelerator
from peft import PeftModel, get_peft_model_state_dict, set_peft_model_state_dict
from safetensors.torch import load_file, save_file

_PROGRESS = "progress.json"
_ADAPTER = "adapter.safetensors"


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
    """The one checkpoint of a run, in `directory`."""

    def __init__(self, directory: Path, accelerator: Accelerator, model: PeftModel) -> None:
        self._directory = directory
        self._accelerator = accelerator
        self._model = model
        accelerator.register_save_state_pre_hook(self._save_adapter_only)
        accelerator.register_load_state_pre_hook(self._load_adapter_only)

    def save(self, progress: Progress) -> None:
        fresh, old = self._directory.with_suffix(".new"), self._directory.with_suffix(".old")
        shutil.rmtree(fresh, ignore_errors=True)
        self._accelerator.save_state(str(fresh))
        (fresh / _PROGRESS).write_bytes(msgspec.json.encode(progress))
        for file in fresh.iterdir():
            with file.open("rb") as stream:
                os.fsync(stream.fileno())
        shutil.rmtree(old, ignore_errors=True)
        if self._directory.exists():
            self._directory.rename(old)
        fresh.rename(self._directory)
        shutil.rmtree(old, ignore_errors=True)

    def load(self, fingerprint: str) -> Progress | None:
        """Restore the newest whole checkpoint of this job and return its progress, or None."""
        for directory in (self._directory, self._directory.with_suffix(".old")):
            file = directory / _PROGRESS
            if not file.is_file():
                continue
            progress = msgspec.json.decode(file.read_bytes(), type=Progress)
            if progress.fingerprint == fingerprint:
                self._accelerator.load_state(str(directory))
                progress.resumed_from = progress.step
                return progress
        return None

    def _save_adapter_only(self, _models: list, weights: list, directory: str) -> None:
        weights.clear()  # the base model is frozen; saving it would make every checkpoint 500 MB
        state = get_peft_model_state_dict(self._model, save_embedding_layers=False)
        save_file(state, Path(directory) / _ADAPTER)

    def _load_adapter_only(self, models: list, directory: str) -> None:
        models.clear()
        set_peft_model_state_dict(self._model, load_file(Path(directory) / _ADAPTER))
