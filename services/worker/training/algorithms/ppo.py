"""Decoupled PPO: the clip is around a proximal policy, and old samples are re-weighted to it.

    L(θ) = − Σ_i w_i Σ_t m_it min( r_it A_i, clip(r_it, 1−ε_low, 1+ε_high) A_i ) / Σ_i w_i |c_i|
    r_it = π_θ(c_it)/π_prox(c_it),   m_it = π_prox(c_it)/π_behave(c_it), truncated at κ or masked above it

π_prox are the weights the job starts from. `recomputed`: a forward pass over the rows before training.
`interpolated`: log π_prox ≈ log π_behave + α (log π_θ − log π_behave), α = s/(s+1) for a token that was
sampled s versions before the start (without gradient). With s = 0, or `proximal = "behaviour"`, it is PPO.

Sources: Hilton et al., Batch size-invariance for policy optimization, 2021 (arXiv:2110.00641), equation 4;
Fu et al., AReaL, 2025 (arXiv:2505.24298), equation 5; interpolation and masking as in AReaL's documentation
(Proximal Log-Probability Approximation).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from services.worker.training.algorithms.base import Algorithm, Needs, clipped, k3
from services.worker.training.algorithms.grouped import grouped, standardised
from services.worker.training.examples import Example

if TYPE_CHECKING:
    import torch

    from services.worker.training.batch import Batch, Scores


class PPO(Algorithm, frozen=True, kw_only=True):
    needs: ClassVar[Needs] = Needs(reward=True, groups=True, behaviour=True)
    clip_low: float = 0.2
    clip_high: float = 0.2
    proximal: Literal["recomputed", "interpolated", "behaviour"] = "recomputed"
    importance: Literal["truncated", "masked"] = "truncated"
    importance_cap: float = 5.0
    """κ"""
    kl_weight: float = 0.0

    def required(self) -> Needs:
        return Needs(
            reward=True,
            groups=True,
            behaviour=True,
            reference=self.kl_weight > 0,
            start=self.proximal == "recomputed",
            versions=self.proximal == "interpolated",
        )

    def advantages(self, examples: Sequence[Example]) -> list[float]:
        return grouped(examples, standardised)

    def loss(
        self, batch: Batch, policy: Scores, reference: Scores | None
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        assert batch.behaviour is not None
        proximal = self._proximal(batch, policy)
        importance = (proximal - batch.behaviour).exp()
        over = (importance > self.importance_cap).to(importance.dtype)
        if self.importance == "truncated":
            importance = importance.clamp(max=self.importance_cap)
        else:
            importance = importance * (1 - over)
        ratio = (policy.logprobs - proximal).exp()
        gain, cut = clipped(ratio, batch.per_token(batch.advantages), self.clip_low, self.clip_high)
        gain = importance * gain
        if self.kl_weight and reference is not None:
            gain = gain - self.kl_weight * k3(policy.logprobs, reference.logprobs)
        return -batch.token_mean(gain), {
            "clipped": batch.token_mean(cut),
            "importance": batch.token_mean(importance),
            "importance_over_cap": batch.token_mean(over),
        }

    def _proximal(self, batch: Batch, policy: Scores) -> torch.Tensor:
        """[N] log π_prox, no gradient."""
        assert batch.behaviour is not None
        if self.proximal == "behaviour":
            return batch.behaviour
        if self.proximal == "recomputed":
            assert batch.start is not None
            return batch.start
        assert batch.staleness is not None
        share = batch.staleness / (batch.staleness + 1)
        return batch.behaviour + share * (policy.logprobs.detach() - batch.behaviour)
