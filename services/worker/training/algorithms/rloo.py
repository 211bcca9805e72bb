"""RLOO: REINFORCE whose baseline is the mean reward of the other answers to the same task.

    A_i = r_i − 1/(G−1) Σ_{j≠i} r_j
    L(θ) = − Σ_i w_i min( ρ_i A_i, clip(ρ_i, 1−ε, 1+ε) A_i ) / Σ_i w_i,   ρ_i = π_θ(c_i)/π_old(c_i)

ratios of whole completions. On policy ρ_i = 1 and its gradient is REINFORCE's. Source: Ahmadian et al.,
Back to Basics: Revisiting REINFORCE Style Optimization, 2024 (arXiv:2402.14740), equations 6 and 7; the
clipped ratio for reused samples as in TRL.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from services.worker.training.algorithms.base import Algorithm, Needs, clipped
from services.worker.training.algorithms.grouped import grouped
from services.worker.training.examples import Example

if TYPE_CHECKING:
    import torch

    from services.worker.training.batch import Batch, Scores


class RLOO(Algorithm, frozen=True, kw_only=True):
    needs: ClassVar[Needs] = Needs(reward=True, groups=True)
    clip: float = 0.2
    """ε"""

    def advantages(self, examples: Sequence[Example]) -> list[float]:
        return grouped(examples, lambda rewards: [_left_out(rewards, i) for i in range(len(rewards))])

    def loss(
        self, batch: Batch, policy: Scores, reference: Scores | None
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        ratio = batch.sums(policy.logprobs - batch.old(policy)).exp()
        gain, cut = clipped(ratio, batch.advantages, self.clip, self.clip)
        return -batch.sample_mean(gain), {"clipped": batch.sample_mean(cut)}


def _left_out(rewards: Sequence[float], i: int) -> float:
    return rewards[i] - (sum(rewards) - rewards[i]) / (len(rewards) - 1)
