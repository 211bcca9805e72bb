"""GRPO: PPO's clipped surrogate with advantages standardised within a group instead of a critic.

    A_i = (r_i − mean_g r) / (std_g r + ε)
    L(θ) = − 1/Σw Σ_i w_i 1/|c_i| Σ_t [ min( ρ_it A_i, clip(ρ_it, 1−ε_low, 1+ε_high) A_i ) − β k3(π_θ‖π_ref) ]
    ρ_it = π_θ(c_it)/π_old(c_it)

Source: Shao et al., DeepSeekMath, 2024 (arXiv:2402.03300), equations 3 and 4; two clip bounds from DAPO
(arXiv:2503.14476).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from services.worker.training.algorithms.base import Algorithm, Needs, clipped, k3
from services.worker.training.algorithms.grouped import grouped, standardised
from services.worker.training.examples import Example

if TYPE_CHECKING:
    import torch

    from services.worker.training.batch import Batch, Scores


class GRPO(Algorithm, frozen=True, kw_only=True):
    needs: ClassVar[Needs] = Needs(reward=True, groups=True)
    clip_low: float = 0.2
    clip_high: float = 0.2
    kl_weight: float = 0.0
    """β"""

    def required(self) -> Needs:
        return Needs(reward=True, groups=True, reference=self.kl_weight > 0)

    def advantages(self, examples: Sequence[Example]) -> list[float]:
        return grouped(examples, standardised)

    def loss(
        self, batch: Batch, policy: Scores, reference: Scores | None
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        gain, cut = clipped(self.ratio(batch, policy), batch.per_token(batch.advantages), self.clip_low, self.clip_high)
        if self.kl_weight and reference is not None:
            gain = gain - self.kl_weight * k3(policy.logprobs, reference.logprobs)
        return -self.aggregate(batch, gain), {"clipped": batch.token_mean(cut)}

    def ratio(self, batch: Batch, policy: Scores) -> torch.Tensor:
        """[N] ρ"""
        return (policy.logprobs - batch.old(policy)).exp()

    def aggregate(self, batch: Batch, gain: torch.Tensor) -> torch.Tensor:
        """[N] → scalar: the mean over samples of the mean over tokens."""
        return batch.sample_mean(batch.means(gain))
