"""Lite PPO: the two tricks that suffice: centre by group, scale by the whole batch, and average over tokens.

    A_i = (r_i − mean_g r) / (std over all rows r + ε)
    L(θ) = − Σ_i w_i Σ_t min( ρ_it A_i, clip(ρ_it, 1−ε_low, 1+ε_high) A_i ) / Σ_i w_i |c_i|

Source: Liu et al., Part I: Tricks or Traps? A Deep Dive into RL for LLM Reasoning, 2025 (arXiv:2508.08221),
section 5. The batch is the job's rows: what was sampled for this update.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from services.worker.training.algorithms.grouped import EPSILON, centred, deviation, grouped
from services.worker.training.algorithms.grpo import GRPO
from services.worker.training.examples import Example

if TYPE_CHECKING:
    import torch

    from services.worker.training.batch import Batch


class LitePPO(GRPO, frozen=True, kw_only=True):
    def advantages(self, examples: Sequence[Example]) -> list[float]:
        scale = deviation([e.reward for e in examples if e.reward is not None]) + EPSILON
        return grouped(examples, lambda rewards: [reward / scale for reward in centred(rewards)])

    def aggregate(self, batch: Batch, gain: torch.Tensor) -> torch.Tensor:
        return batch.token_mean(gain)
