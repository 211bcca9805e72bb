"""On-policy distillation from a teacher that was told a hint: the policy itself, knowing what came after.

    A_it = log π_T(c_it | p_i with hint, c_i,<t) − log π_old(c_it | p_i, c_i,<t)  +  ρ A_i
    L(θ) = − Σ_i w_i Σ_t min( ρ_it A_it, clip(ρ_it, 1−ε_low, 1+ε_high) A_it ) / Σ_i w_i |c_i|

a number for every token where a reward gives one for the whole answer. The teacher is the weights the job
starts from, given `hint_prompt_token_ids`, unless rows bring `teacher_logprobs`. Source: Wang et al.,
OpenClaw-RL: Train Any Agent Simply by Talking, 2026 (hindsight-guided on-policy distillation, and its
combination with rewards); the per-token reverse KL as advantage from Lu, On-Policy Distillation, Thinking
Machines, 2025.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from services.worker.training.algorithms.base import Algorithm, Needs, clipped
from services.worker.training.algorithms.grouped import grouped, standardised
from services.worker.training.examples import Example

if TYPE_CHECKING:
    import torch

    from services.worker.training.batch import Batch, Scores


class OPD(Algorithm, frozen=True, kw_only=True):
    needs: ClassVar[Needs] = Needs(teacher=True)
    clip_low: float = 0.2
    clip_high: float = 0.28
    reward_weight: float = 0.0
    """ρ of A_i, the group-standardised reward."""

    def required(self) -> Needs:
        return Needs(teacher=True, reward=self.reward_weight > 0, groups=self.reward_weight > 0)

    def advantages(self, examples: Sequence[Example]) -> list[float]:
        return grouped(examples, standardised) if self.reward_weight else [0.0] * len(examples)

    def loss(
        self, batch: Batch, policy: Scores, reference: Scores | None
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        assert batch.teacher is not None
        old = batch.old(policy)
        lead = batch.teacher - old
        advantages = lead + self.reward_weight * batch.per_token(batch.advantages)
        gain, cut = clipped((policy.logprobs - old).exp(), advantages, self.clip_low, self.clip_high)
        return -batch.token_mean(gain), {"clipped": batch.token_mean(cut), "teacher_lead": batch.token_mean(lead)}
