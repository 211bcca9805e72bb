"""Supervised fine-tuning: maximum likelihood of the demonstrated completions.

    L(θ) = − Σ_i w_i Σ_t log π_θ(c_it | p_i, c_i,<t)  /  Σ_i w_i |c_i|

the weighted mean over completion tokens of one optimiser step's batch; prompts carry no loss. Logits
are computed at target positions only: the vocabulary projection is the dearest layer of a small model.
"""

from __future__ import annotations

import torch
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from services.worker.training.packing import Pack


def target_logits(model: PreTrainedModel, packed: Pack) -> torch.Tensor:
    """[N, vocabulary] logits that predict the pack's targets.

    `model` is the transformers model itself (with LoRA layers injected, not PEFT's wrapper).
    """
    hidden = model.base_model(
        input_ids=packed.input_ids, position_ids=packed.position_ids, use_cache=False, packed=packed
    ).last_hidden_state
    return model.get_output_embeddings()(hidden[0, packed.predict_at]).float()


def target_logprobs(model: PreTrainedModel, packed: Pack) -> torch.Tensor:
    """[N] log-probability of each target, nats."""
    return -cross_entropy(target_logits(model, packed), packed.targets, reduction="none")


def sft_loss(model: PreTrainedModel, packed: Pack) -> torch.Tensor:
    """The loss above, a scalar."""
    return -(packed.weights * target_logprobs(model, packed)).sum() / packed.weights.sum()
