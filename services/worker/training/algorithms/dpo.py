"""Direct preference optimisation: the policy's own log-ratio to the reference is the reward model.

    L(θ) = − mean over pairs of  log σ( β [ log π_θ(c⁺)/π_ref(c⁺) − log π_θ(c⁻)/π_ref(c⁻) ] )

log-probabilities summed over the completion's own tokens. Source: Rafailov et al., Direct Preference
Optimization, 2023 (arXiv:2305.18290), equation 7.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from services.worker.training.algorithms.base import Algorithm, Needs

if TYPE_CHECKING:
    import torch

    from services.worker.training.batch import Batch, Scores


class DPO(Algorithm, frozen=True, kw_only=True):
    needs: ClassVar[Needs] = Needs(pairs=True, reference=True)
    beta: float = 0.1
    """β: how dear it is to leave the reference."""

    def loss(
        self, batch: Batch, policy: Scores, reference: Scores | None
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        from torch.nn.functional import logsigmoid

        assert reference is not None and batch.chosen is not None and batch.rejected is not None
        scores = batch.sums(policy.logprobs - reference.logprobs)
        margin = scores[batch.chosen] - scores[batch.rejected]
        pairs = batch.totals.pairs
        return -logsigmoid(self.beta * margin).sum() / pairs, {
            "preferred": (margin > 0).sum() / pairs,
            "margin": self.beta * margin.sum() / pairs,
        }
