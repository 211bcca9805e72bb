"""One batch as an algorithm sees it: N completion tokens of S samples, flat, and what is known of each.

An optimiser step may be computed in several batches (packs), on several devices. `totals` counts over all
of them, so that losses and their gradients simply add up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from services.worker.training.examples import Example, own_tokens


@dataclass(frozen=True)
class Totals:
    """Sums over one whole optimiser step."""

    weight: float
    """Σ w_i"""
    tokens: float
    """Σ w_i |c_i|, the policy's own tokens only"""
    pairs: int
    steps: float
    """Σ w_i × process rewards of i"""


@dataclass(frozen=True)
class Scores:
    """What one set of weights says about a batch."""

    logprobs: torch.Tensor
    """[N] log-probability of each completion token, nats, at the job's temperature."""
    entropy: torch.Tensor | None = None
    """[N] of the distribution each token was predicted from, nats; no gradient."""
    step_logits: torch.Tensor | None = None
    """[K] the reward head's logit at each process reward."""


@dataclass(frozen=True)
class Batch:
    owners: torch.Tensor
    """[N] the sample of each token, 0 to S−1."""
    mask: torch.Tensor
    """[N] 1 where the token is the policy's own choice, else 0."""
    weights: torch.Tensor
    """[S]"""
    lengths: torch.Tensor
    """[S] own tokens of each sample, at least 1."""
    advantages: torch.Tensor
    """[S]"""
    rewards: torch.Tensor
    """[S] NaN where there is none."""
    totals: Totals
    behaviour: torch.Tensor | None = None
    """[N] captured log-probabilities."""
    start: torch.Tensor | None = None
    """[N] log-probabilities under the weights the job started from."""
    teacher: torch.Tensor | None = None
    """[N]"""
    staleness: torch.Tensor | None = None
    """[N] versions between the weights that sampled each token and those the job started from."""
    chosen: torch.Tensor | None = None
    """[P] samples, and their counterparts:"""
    rejected: torch.Tensor | None = None
    """[P]"""
    step_owners: torch.Tensor | None = None
    """[K] the sample of each process reward."""
    step_rewards: torch.Tensor | None = None
    """[K]"""

    def old(self, policy: Scores) -> torch.Tensor:
        """[N] log-probabilities importance ratios are taken against: the behaviour's where captured, else the
        policy's own without gradient (exactly on policy: every ratio is 1)."""
        return self.behaviour if self.behaviour is not None else policy.logprobs.detach()

    def per_token(self, samples: torch.Tensor) -> torch.Tensor:
        """[S] → [N]: each token gets its sample's value."""
        return samples[self.owners]

    def sums(self, tokens: torch.Tensor) -> torch.Tensor:
        """[N] → [S]: sums over each sample's own tokens."""
        return torch.zeros_like(self.weights, dtype=tokens.dtype).index_add(0, self.owners, tokens * self.mask)

    def means(self, tokens: torch.Tensor) -> torch.Tensor:
        """[N] → [S]: means over each sample's own tokens."""
        return self.sums(tokens) / self.lengths

    def token_mean(self, tokens: torch.Tensor) -> torch.Tensor:
        """Σ_i w_i Σ_t x_it / Σ_i w_i |c_i|: long samples count more."""
        return (tokens * self.mask * self.per_token(self.weights)).sum() / self.totals.tokens

    def sample_mean(self, samples: torch.Tensor) -> torch.Tensor:
        """Σ_i w_i x_i / Σ_i w_i"""
        return (samples * self.weights).sum() / self.totals.weight

    def to(self, target: torch.device | torch.dtype | str) -> Batch:
        """Tensors moved to a device, or floating-point ones to a dtype."""
        moved: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            whole = isinstance(value, torch.Tensor) and not value.is_floating_point()
            if isinstance(value, torch.Tensor) and not (whole and isinstance(target, torch.dtype)):
                moved[field.name] = value.to(target)
        return replace(self, **moved)


@dataclass(frozen=True)
class Known:
    """What is computed about a row before it is trained on."""

    advantage: float = 0.0
    start: torch.Tensor | None = None
    """[C]"""
    teacher: torch.Tensor | None = None
    """[C]"""


def totals(examples: Sequence[Example], *, forced: bool) -> Totals:
    """Over all examples of an optimiser step; `forced` tokens count as the policy's own or not."""
    lengths = [max(1, sum(own_tokens(e, forced=forced))) for e in examples]
    return Totals(
        weight=sum(e.weight for e in examples),
        tokens=sum(e.weight * length for e, length in zip(examples, lengths, strict=True)),
        pairs=sum(e.role == "chosen" for e in examples),
        steps=sum(e.weight * len(e.steps or ()) for e in examples),
    )


def collate(
    examples: Sequence[Example],
    known: Sequence[Known],
    total: Totals,
    *,
    forced: bool = False,
    policy_version: int | None = None,
) -> Batch:
    """The batch of some examples, in their order. What only some of them have is left out."""
    counts = torch.tensor([len(e.completion_token_ids) for e in examples])
    masks = [own_tokens(e, forced=forced) for e in examples]
    chosen = {e.pair: i for i, e in enumerate(examples) if e.role == "chosen"}
    rejected = {e.pair: i for i, e in enumerate(examples) if e.role == "rejected"}
    pairs = [pair for pair in chosen if pair in rejected]
    steps = [(i, step) for i, e in enumerate(examples) for step in e.steps or ()]
    return Batch(
        owners=torch.arange(len(examples)).repeat_interleave(counts),
        mask=torch.tensor([float(own) for mask in masks for own in mask]),
        weights=torch.tensor([e.weight for e in examples]),
        lengths=torch.tensor([float(max(1, sum(mask))) for mask in masks]),
        advantages=torch.tensor([k.advantage for k in known]),
        rewards=torch.tensor([float("nan") if e.reward is None else e.reward for e in examples]),
        totals=total,
        behaviour=_flat([e.logprobs for e in examples]),
        start=_flat([k.start for k in known]),
        teacher=_flat(
            [
                k.teacher if e.teacher_logprobs is None else e.teacher_logprobs
                for e, k in zip(examples, known, strict=True)
            ]
        ),
        staleness=_flat([_staleness(e, policy_version) for e in examples]),
        chosen=torch.tensor([chosen[p] for p in pairs]) if pairs else None,
        rejected=torch.tensor([rejected[p] for p in pairs]) if pairs else None,
        step_owners=torch.tensor([i for i, _ in steps]) if steps else None,
        step_rewards=torch.tensor([step.reward for _, step in steps]) if steps else None,
    )


def _flat(rows: Sequence[Sequence[float] | torch.Tensor | None]) -> torch.Tensor | None:
    if any(row is None for row in rows):
        return None
    return torch.cat([torch.as_tensor(row, dtype=torch.float32) for row in rows if row is not None])


def _staleness(example: Example, current: int | None) -> list[float] | None:
    if current is None or example.policy_versions is None:
        return None
    behind = [0.0] * len(example.completion_token_ids)
    for span in example.policy_versions:
        behind[span.start : span.end] = [float(current - span.version)] * (span.end - span.start)
    return behind
