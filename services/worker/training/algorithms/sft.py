"""Supervised fine-tuning: maximum likelihood of demonstrated completions.

    L(θ) = − Σ_i w_i Σ_t log π_θ(c_it | p_i, c_i,<t)  /  Σ_i w_i |c_i|

the weighted mean over completion tokens of one optimiser step; prompts and observed tokens carry no loss.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from services.worker.training.algorithms.base import Algorithm

if TYPE_CHECKING:
    import torch

    from services.worker.training.batch import Batch, Scores


class SFT(Algorithm, frozen=True, kw_only=True):
    imitates: ClassVar[bool] = True

    def loss(
        self, batch: Batch, policy: Scores, reference: Scores | None
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        return -batch.token_mean(policy.logprobs), {}
