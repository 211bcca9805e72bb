"""Rejection-sampled fine-tuning: SFT on the policy's own answers that were good enough, each once.

    L(θ) = SFT on { (p_i, c_i) : r_i ≥ τ }, without repeated answers to the same prompt

Source: Yuan et al., Scaling Relationship on Learning Mathematical Reasoning with LLMs, 2023
(arXiv:2308.01825), section 3.3.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import ClassVar

from services.worker.training.algorithms.base import Needs
from services.worker.training.algorithms.sft import SFT
from services.worker.training.examples import Example
from services.worker.training.job import JobError


class RFT(SFT, frozen=True, kw_only=True):
    needs: ClassVar[Needs] = Needs(reward=True)
    threshold: float = 1.0
    """τ"""

    def select(self, examples: Sequence[Example]) -> tuple[list[Example], dict[str, int]]:
        able, without = super().select(examples)
        dropped = Counter(without)
        kept: list[Example] = []
        seen: set[tuple[tuple[int, ...], tuple[int, ...]]] = set()
        for example in able:
            answer = (tuple(example.prompt_token_ids), tuple(example.completion_token_ids))
            reward = example.reward if example.reward is not None else example.advantage
            if reward is None or reward < self.threshold:
                dropped[f"reward below {self.threshold:g}"] += 1
            elif answer in seen:
                dropped["repeated answer to the same prompt"] += 1
            else:
                seen.add(answer)
                kept.append(example)
        if able and not kept:
            raise JobError(f"RFT: no row of {len(examples)} has a reward of at least {self.threshold:g}")
        return kept, dict(dropped)
