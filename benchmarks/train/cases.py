"""Small batches and a small random model on which every algorithm's loss is computed twice."""

from __future__ import annotations

import random
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.train import references
from services.worker.training.packing import ATTENTION

VOCABULARY = 96
_GROUPS = 3
_GROUP_SIZE = 4


def model(attention: str = ATTENTION, *, seed: int = 0, dtype: torch.dtype = torch.float64) -> Any:
    """Two layers, hidden 32, grouped-query attention; the same weights for the same seed."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        initializer_range=0.2,
    )
    torch.manual_seed(seed)
    found = LlamaForCausalLM(config)
    found.set_attn_implementation(attention)
    return torch.nn.Module.to(found, dtype=dtype)


def rows(seed: int = 0) -> list[dict[str, Any]]:
    """Three groups of four answers with rewards, pairs, versions, steps, hints and behaviour log-probabilities that
    are near the model's own, so that some ratios are clipped and others are not."""
    draw = random.Random(seed)
    found: list[dict[str, Any]] = []
    for group in range(_GROUPS):
        prompt = [1, 4, 9, *(draw.randrange(3, VOCABULARY) for _ in range(9 + group))]
        for member in range(_GROUP_SIZE):
            answer = [draw.randrange(3, VOCABULARY) for _ in range(2 + (5 * member + group) % 7)] + [2]
            half = len(answer) // 2
            found.append(
                {
                    "prompt_token_ids": prompt,
                    "completion_token_ids": answer,
                    "reward": draw.choice([0.0, 0.25, 0.5, 1.0]),
                    "group": f"g{group}",
                    "pair": f"g{group}-{member // 2}",
                    "role": "rejected" if member % 2 else "chosen",
                    "hint_prompt_token_ids": [*prompt, 7, 8, 11],
                    "policy_versions": [
                        {"version": 3, "start": 0, "end": half},
                        {"version": 5, "start": half, "end": len(answer)},
                    ],
                    "steps": [{"end": half, "reward": draw.random()}, {"end": len(answer), "reward": 1.0}],
                }
            )
    noise = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for row, own in zip(found, references.token_logprobs(model("sdpa"), found), strict=True):
            shaken = own + 0.3 * torch.randn(len(own), generator=noise, dtype=torch.float64)
            row["logprobs"] = shaken.clamp(max=0).tolist()
    return found
