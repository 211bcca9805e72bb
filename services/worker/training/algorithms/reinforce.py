"""REINFORCE with a baseline: the score-function estimate of the policy gradient.

    L(θ) = − Σ_i w_i A_i Σ_t log π_θ(c_it) / Σ_i w_i,   A_i = r_i − b,   b = mean reward of the job's rows

It needs no groups: the baseline is what all tasks have in common. Source: Williams, Simple Statistical
Gradient-Following Algorithms for Connectionist Reinforcement Learning, 1992, section 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from services.worker.training.algorithms.base import Algorithm, Needs
from services.worker.training.examples import Example

if TYPE_CHECKING:
    import torch

    from services.worker.training.batch import Batch, Scores


class Reinforce(Algorithm, frozen=True, kw_only=True):
    needs: ClassVar[Needs] = Needs(reward=True)
    baseline: float | None = None
    """b, where something better than the rows' mean is known (the last rounds' mean reward)."""

    def advantages(self, examples: Sequence[Example]) -> list[float]:
        rewards = [e.reward for e in examples if e.reward is not None]
        mean = sum(rewards) / len(rewards) if rewards else 0.0
        baseline = mean if self.baseline is None else self.baseline
        return [e.reward - baseline if e.reward is not None else e.advantage or 0.0 for e in examples]

    def loss(
        self, batch: Batch, policy: Scores, reference: Scores | None
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        return -batch.sample_mean(batch.advantages * batch.sums(policy.logprobs)), {}
