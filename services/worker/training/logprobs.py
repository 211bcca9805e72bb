"""Log-probabilities of target tokens without the [N, vocabulary] logits in memory.

The vocabulary projection is the dearest layer of a small model and its output the largest tensor of all. It
is computed at target positions only, a chunk of them at a time. While the projection is frozen (LoRA), the
gradient of a log-probability with respect to its hidden state,

    ∂ log π(c) / ∂h = ( W_c − Σ_v π(v) W_v ) / T

is a vector of the hidden size: it is kept instead of the logits, and the backward pass is one product.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.utils.checkpoint import checkpoint

_CHUNK = 128
"""Targets at a time: with a vocabulary of 49,152 their logits take 25 MB in fp32."""


class TokenScores(NamedTuple):
    logprobs: torch.Tensor
    """[N] nats"""
    entropy: torch.Tensor
    """[N] nats, no gradient"""
    greedy: torch.Tensor
    """[N] whether the target is the most likely token"""


def token_scores(
    hidden: torch.Tensor, head: torch.nn.Module, targets: torch.Tensor, temperature: float = 1.0
) -> TokenScores:
    """Scores of `targets` [N], predicted from `hidden` [N, H] through the output embeddings `head`."""
    weight: torch.Tensor = head.weight
    if getattr(head, "bias", None) is None and not weight.requires_grad:
        return TokenScores(*_FrozenHead.apply(hidden, weight, targets, temperature))
    chunks = []
    for h, t in zip(hidden.split(_CHUNK), targets.split(_CHUNK), strict=True):
        chunks.append(checkpoint(_through_head, h, head, t, temperature, use_reentrant=False))
    return TokenScores(*(torch.cat(parts) for parts in zip(*chunks, strict=True)))


def _through_head(
    hidden: torch.Tensor, head: torch.nn.Module, targets: torch.Tensor, temperature: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    logits = head(hidden).float() / temperature
    logprobs = logits.log_softmax(-1)
    chosen = logprobs.gather(-1, targets[:, None])[:, 0]
    with torch.no_grad():
        entropy = -(logprobs.exp() * logprobs).sum(-1)
        greedy = logits.argmax(-1) == targets
    return chosen, entropy, greedy


class _FrozenHead(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, temperature: float
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        kind = torch.promote_types(hidden.dtype, torch.float32)
        logprobs, entropy = (torch.empty(len(targets), dtype=kind, device=hidden.device) for _ in range(2))
        greedy = torch.empty(len(targets), dtype=torch.bool, device=hidden.device)
        slopes = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        for start in range(0, len(targets), _CHUNK):
            part = slice(start, start + _CHUNK)
            logits = (hidden[part] @ weight.T).to(kind)
            if temperature != 1:
                logits /= temperature
            chosen = logits.gather(-1, targets[part, None])[:, 0]
            largest = logits.amax(-1)
            logits -= largest[:, None]
            shares = logits.exp()
            total = shares.sum(-1)
            logprobs[part] = chosen - largest - total.log()
            shares /= total[:, None]
            entropy[part] = total.log() - torch.linalg.vecdot(shares, logits)
            greedy[part] = chosen == largest
            if slopes is not None:
                slopes[part] = (weight[targets[part]] - shares.to(weight.dtype) @ weight) / temperature
        if slopes is not None:
            ctx.save_for_backward(slopes)
        ctx.mark_non_differentiable(entropy, greedy)
        return logprobs, entropy, greedy

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, *_: Any) -> tuple[torch.Tensor, None, None, None]:
        (slopes,) = ctx.saved_tensors
        return grad[:, None].to(slopes.dtype) * slopes, None, None, None
