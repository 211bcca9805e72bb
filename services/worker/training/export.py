"""What a run leaves behind: a PEFT adapter, or a whole model, in a directory that vLLM can serve."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

import torch
from accelerate import Accelerator
from peft import PeftModel
from safetensors.torch import save_file

from services.worker.policies import model_digest, policy_digest
from services.worker.training.job import Job

_BESIDE_WEIGHTS = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")
"""What serving needs of the base model's directory besides config and weights."""

REWARD_HEAD = "reward_head.safetensors"
"""A process reward model's head, beside the weights whose last hidden state it reads."""


class Exported(NamedTuple):
    kind: str
    """`adapter` or `model`"""
    directory: Path
    digest: str


def export(job: Job, accelerator: Accelerator, policy: torch.nn.Module) -> Exported:
    """Write the trained weights; every process takes part (they may hold shards), the main one writes."""
    kind = "model" if job.weights == "full" else "adapter"
    directory, fresh = job.output / kind, job.output / f"{kind}.new"
    bare = accelerator.unwrap_model(policy)
    state = accelerator.get_state_dict(policy)
    if accelerator.is_main_process:
        shutil.rmtree(fresh, ignore_errors=True)
        _write(job, bare.model, _below(state, "model."), fresh)
        if bare.reward_head is not None:
            save_file({k: v.contiguous() for k, v in _below(state, "reward_head.").items()}, fresh / REWARD_HEAD)
        shutil.rmtree(directory, ignore_errors=True)
        fresh.rename(directory)
    accelerator.wait_for_everyone()
    return Exported(kind, directory, policy_digest(directory) if kind == "adapter" else model_digest(directory))


def _write(job: Job, model: torch.nn.Module, state: dict[str, torch.Tensor], directory: Path) -> None:
    if isinstance(model, PeftModel):
        model.save_pretrained(str(directory), state_dict=state, save_embedding_layers=False)  # "auto" asks the hub
        (directory / "README.md").unlink(missing_ok=True)  # PEFT's empty model card
        return
    model.save_pretrained(str(directory), state_dict=state)
    for name in _BESIDE_WEIGHTS:
        if (job.base / name).is_file():
            shutil.copy(job.base / name, directory / name)


def _below(state: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    return {name.removeprefix(prefix): weight for name, weight in state.items() if name.startswith(prefix)}
