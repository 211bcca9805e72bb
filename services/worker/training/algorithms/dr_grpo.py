"""Dr. GRPO: GRPO without its two normalisations, which favour short right answers, long wrong ones and
tasks that are nearly always or nearly never solved.

    A_i = r_i − mean_g r
    L(θ) = − 1/(Σw · L_max) Σ_i w_i Σ_t min( ρ_it A_i, clip(ρ_it, 1−ε_low, 1+ε_high) A_i )

Source: Liu et al., Understanding R1-Zero-Like Training: A Critical Perspective, 2025 (arXiv:2503.20783),
section 3.2; the constant is its code's longest completion.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from services.worker.training.algorithms.grouped import centred, grouped
from services.worker.training.algorithms.grpo import GRPO
from services.worker.training.examples import Example

if TYPE_CHECKING:
    import torch

    from services.worker.training.batch import Batch


class DrGRPO(GRPO, frozen=True, kw_only=True):
    longest: int = 256
    """L_max: the longest completion sampling allows, tokens. A constant: only the step size depends on it."""

    def advantages(self, examples: Sequence[Example]) -> list[float]:
        return grouped(examples, centred)

    def aggregate(self, batch: Batch, gain: torch.Tensor) -> torch.Tensor:
        return batch.sample_mean(batch.sums(gain)) / self.longest
