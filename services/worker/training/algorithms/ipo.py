"""Identity preference optimisation: the margin is pulled to a fixed value instead of to infinity.

    L(θ) = mean over pairs of ( h(c⁺) − h(c⁻) − 1/(2β) )²,   h(c) = 1/|c| · log π_θ(c)/π_ref(c)

Source: Azar et al., A General Theoretical Paradigm to Understand Learning from Human Preferences, 2023
(arXiv:2310.12036), equation 17, where β is τ. Averages over tokens instead of sums are what its authors'
results were obtained with (as TRL's documentation records), and keep β independent of length.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from services.worker.training.algorithms.base import Algorithm, Needs

if TYPE_CHECKING:
    import torch

    from services.worker.training.batch import Batch, Scores


class IPO(Algorithm, frozen=True, kw_only=True):
    needs: ClassVar[Needs] = Needs(pairs=True, reference=True)
    beta: float = 0.1

    def loss(
        self, batch: Batch, policy: Scores, reference: Scores | None
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        assert reference is not None and batch.chosen is not None and batch.rejected is not None
        scores = batch.means(policy.logprobs - reference.logprobs)
        margin = scores[batch.chosen] - scores[batch.rejected]
        pairs = batch.totals.pairs
        return (margin - 1 / (2 * self.beta)).square().sum() / pairs, {
            "preferred": (margin > 0).sum() / pairs,
            "margin": margin.sum() / pairs,
        }
