"""GSPO: GRPO with one importance ratio for a whole completion, as its reward is for a whole completion.

    s_i = ( π_θ(c_i) / π_old(c_i) )^(1/|c_i|)
    L(θ) = − 1/Σw Σ_i w_i min( s_i A_i, clip(s_i, 1−ε_low, 1+ε_high) A_i )

Source: Zheng et al., Group Sequence Policy Optimization, 2025 (arXiv:2507.18071), equations 5 to 7, and its
clip bounds, which are much closer to 1 than a token's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.worker.training.algorithms.grpo import GRPO

if TYPE_CHECKING:
    import torch

    from services.worker.training.batch import Batch, Scores


class GSPO(GRPO, frozen=True, kw_only=True):
    clip_low: float = 3e-4
    clip_high: float = 4e-4

    def ratio(self, batch: Batch, policy: Scores) -> torch.Tensor:
        return batch.per_token(batch.means(policy.logprobs - batch.old(policy)).exp())
