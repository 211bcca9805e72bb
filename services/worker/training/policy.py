"""The model that is trained: transformers weights, an adapter or all of them trainable, scored on packs.

`Policy.forward` is the only way in, so that whatever Accelerate wraps around it (DDP, FSDP) sees every use.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple

import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from safetensors import safe_open
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging as transformers_logging

from services.worker.policies import ADAPTER_FILES, LORA_TARGETS
from services.worker.training.job import Job, JobError
from services.worker.training.logprobs import token_scores
from services.worker.training.packing import ATTENTION, Pack


class Output(NamedTuple):
    """What the weights say about a pack; a tuple, since FSDP looks for tensors in outputs."""

    logprobs: torch.Tensor
    """[N]"""
    entropy: torch.Tensor
    """[N]"""
    greedy: torch.Tensor
    """[N]"""
    step_logits: torch.Tensor | None
    """[K]"""


class Policy(torch.nn.Module):
    """A causal language model, with a reward head if asked for."""

    def __init__(self, model: PreTrainedModel | PeftModel, *, reward_head: bool = False) -> None:
        super().__init__()
        self.model = model
        self.reward_head = torch.nn.Linear(self.bare.config.hidden_size, 1) if reward_head else None

    @property
    def bare(self) -> PreTrainedModel:
        """The transformers model itself, with LoRA layers injected where there are any."""
        model = self.model.get_base_model() if isinstance(self.model, PeftModel) else self.model
        assert isinstance(model, PreTrainedModel)
        return model

    def forward(self, packed: Pack, temperature: float = 1.0) -> Output:
        hidden = self.bare.base_model(
            input_ids=packed.input_ids, position_ids=packed.position_ids, use_cache=False, packed=packed
        ).last_hidden_state[0]
        scores = token_scores(hidden[packed.predict_at], self.bare.get_output_embeddings(), packed.targets, temperature)
        steps = None if self.reward_head is None else self.reward_head(hidden[packed.steps_at])[:, 0]
        return Output(*scores, steps)

    @contextmanager
    def as_reference(self) -> Iterator[None]:
        """Within, the weights the policy line began with: the base without any adapter."""
        with self.model.disable_adapter() if isinstance(self.model, PeftModel) else nullcontext():
            yield


def load_policy(job: Job, *, reward_head: bool = False) -> Policy:
    """The job's starting weights, fp32. Raises `JobError` for an adapter of another base."""
    transformers_logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(
        job.base, dtype=torch.float32, attn_implementation=ATTENTION, local_files_only=True
    )
    if job.weights == "full":
        policy = Policy(model, reward_head=reward_head)
    elif job.initial_adapter is not None:
        policy = Policy(_continued(model, job.initial_adapter), reward_head=reward_head)
    else:
        config = LoraConfig(
            r=job.lora_rank, lora_alpha=2 * job.lora_rank, target_modules=list(LORA_TARGETS), task_type="CAUSAL_LM"
        )
        policy = Policy(get_peft_model(model, config), reward_head=reward_head)
    if isinstance(policy.model, PeftModel):
        # the adapter is named by its digest, which must not depend on where the base model lies
        policy.model.peft_config["default"].base_model_name_or_path = Path(job.base).name
    if job.gradient_checkpointing:
        policy.bare.gradient_checkpointing_enable({"use_reentrant": False})
    return policy


def _continued(model: PreTrainedModel, adapter: Path) -> PeftModel:
    """The model with this adapter to be trained on. PEFT leaves out what has no place in the model without a word."""
    try:
        policy = PeftModel.from_pretrained(model, adapter, is_trainable=True)
    except RuntimeError as error:
        raise JobError(f"initial_adapter: {adapter} is of another base: {error}") from error
    with safe_open(adapter / ADAPTER_FILES[1], framework="pt") as file:
        saved = set(file.keys())
    if lacking := saved ^ set(get_peft_model_state_dict(policy, save_embedding_layers=False)):
        raise JobError(
            f"initial_adapter: {adapter} is of another base: {len(lacking)} weights are only in one of them, such as "
            f"{min(lacking)}"
        )
    return policy
