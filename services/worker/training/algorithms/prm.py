"""Process reward model: a head on the last hidden state says after each step whether it was a good one.

    L(θ) = − Σ_i w_i Σ_k [ y_ik log σ(z_ik) + (1−y_ik) log(1−σ(z_ik)) ] / Σ_i w_i K_i

z_ik is the head's logit at the last token of step k, y_ik in [0, 1] its process reward. Sources: Lightman et
al., Let's Verify Step by Step, 2023 (arXiv:2305.20050); Wang et al., Math-Shepherd, 2023 (arXiv:2312.08935),
equation 2, soft labels included.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from services.worker.training.algorithms.base import Algorithm, Needs

if TYPE_CHECKING:
    import torch

    from services.worker.training.batch import Batch, Scores


class PRM(Algorithm, frozen=True, kw_only=True):
    needs: ClassVar[Needs] = Needs(steps=True)
    imitates: ClassVar[bool] = True
    trains_reward_head: ClassVar[bool] = True

    def loss(
        self, batch: Batch, policy: Scores, reference: Scores | None
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        from torch.nn.functional import binary_cross_entropy_with_logits

        assert policy.step_logits is not None and batch.step_owners is not None and batch.step_rewards is not None
        logits, labels = policy.step_logits, batch.step_rewards
        weights = batch.weights[batch.step_owners] / batch.totals.steps
        losses = binary_cross_entropy_with_logits(logits, labels, reduction="none")
        right = ((logits > 0) == (labels > 0.5)).to(weights.dtype)
        return (weights * losses).sum(), {"accuracy": (weights * right).sum()}
