"""The model that is trained: transformers weights, an adapter or all of them trainable, scored on packs.

`Policy.forward` is the only way in, so that whatever Accelerate wraps around it (DDP, FSDP) sees every use.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging as transformers_logging

from services.worker.policies import LORA_TARGETS
from services.worker.training.job import Job
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
    """The job's starting weights, fp32."""
    transformers_logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(
        job.base, dtype=torch.float32, attn_implementation=ATTENTION, local_files_only=True
    )
    if job.weights == "full":
        policy = Policy(model, reward_head=reward_head)
    elif job.initial_adapter is not None:
        policy = Policy(
            PeftModel.from_pretrained(model, job.initial_adapter, is_trainable=True), reward_head=reward_head
        )
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
