"""What every algorithm is: hyper-parameters, declared data needs, advantages, a loss.

An algorithm is a frozen msgspec struct. Its fields are its hyper-parameters (a job sets them by name; an
unknown name is refused), `needs` says which data it can't do without, and

    loss(batch, policy, reference) -> (loss, metrics)

sees no model and no text: log-probabilities of the batch's completion tokens in, a scalar out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

import msgspec

from services.worker.training.examples import Example, groups
from services.worker.training.job import JobError

if TYPE_CHECKING:
    import torch

    from services.worker.training.batch import Batch, Scores


Source = Literal["demonstrations", "successes", "groups", "pairs", "hints", "steps"]
"""What must have been recorded: answers people showed, answers that went well, several answers to one prompt whose
rewards differ, two answers of which one is better, words about an answer, rewards of its steps."""


class Needs(msgspec.Struct, frozen=True, kw_only=True):
    """The data an algorithm can't do without. Rows that lack it are dropped and counted."""

    reward: bool = False
    """A reward or an advantage in every row."""
    groups: bool = False
    """At least two rows to a group, each with a reward: a group of one has no one to be compared with."""
    pairs: bool = False
    """One chosen and one rejected row to a pair."""
    behaviour: bool = False
    """Captured log-probabilities."""
    versions: bool = False
    """Which weights sampled each token, and the job's `policy_version`."""
    teacher: bool = False
    """A teacher's log-probabilities, or a prompt with a hint from which to compute them."""
    steps: bool = False
    """Process rewards."""
    reference: bool = False
    """Log-probabilities under the weights the policy line began with (computed here)."""
    start: bool = False
    """Log-probabilities under the weights the job starts from (computed here)."""


class Algorithm(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all algorithms."""

    needs: ClassVar[Needs] = Needs()
    imitates: ClassVar[bool] = False
    """Whether rows are answers to imitate, tokens forced by a grammar included."""
    trains_reward_head: ClassVar[bool] = False
    """Whether a reward head on the last hidden state is trained along (`batch.Scores.step_logits`)."""

    def required(self) -> Needs:
        """`needs`, given these hyper-parameters."""
        return self.needs

    def learns_from(self) -> Source:
        """What must have been recorded for there to be rows with what it needs."""
        needs = self.required()
        if needs.pairs:
            return "pairs"
        if needs.teacher:
            return "hints"
        if needs.steps:
            return "steps"
        if needs.reward:
            return "successes" if self.imitates else "groups"
        return "demonstrations"

    def passes(self) -> int:
        """How many times a row's tokens are computed for one update from it: what learning from it costs."""
        needs = self.required()
        rows = 2 if needs.pairs else 1
        return rows * (1 + needs.reference + needs.start) + needs.teacher

    def select(self, examples: Sequence[Example]) -> tuple[list[Example], dict[str, int]]:
        """The rows that have what the algorithm needs, and how many haven't by reason.

        Raises `JobError` when none is left.
        """
        lacking = lacks(examples, self.required())
        dropped = Counter(reason for reason in lacking if reason)
        kept = [example for example, reason in zip(examples, lacking, strict=True) if reason is None]
        if examples and not kept:
            reasons = "; ".join(f"{count} rows: {reason}" for reason, count in dropped.items())
            raise JobError(f"{type(self).__name__} can't learn from these {len(examples)} rows. {reasons}")
        return kept, dict(dropped)

    def advantages(self, examples: Sequence[Example]) -> list[float]:
        """A_i of each row, from all rows of the job. 0 where the algorithm uses none."""
        return [example.advantage or 0.0 for example in examples]

    def loss(
        self, batch: Batch, policy: Scores, reference: Scores | None
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """The batch's share of the loss of one optimiser step, a scalar, and figures that add up likewise."""
        raise NotImplementedError


def lacks(examples: Sequence[Example], needs: Needs) -> list[str | None]:
    """What each row lacks of the needs, in words; None for nothing."""
    reasons = [_row_lacks(example, needs) for example in examples]
    if needs.groups:
        for members in groups(examples).values():
            able = [i for i in members if reasons[i] is None]
            if len(able) == 1 and examples[able[0]].advantage is None:
                reasons[able[0]] = (
                    "a group of one: its reward is its own mean, so its advantage is always 0 "
                    "(sample more answers to each task, or use reinforce, which has a baseline over all rows)"
                )
    if needs.pairs:
        roles: dict[str | None, list[str | None]] = {}
        for example in examples:
            roles.setdefault(example.pair, []).append(example.role)
        for i, example in enumerate(examples):
            if reasons[i] is None and sorted(map(str, roles[example.pair])) != ["chosen", "rejected"]:
                reasons[i] = "not one chosen and one rejected row to its pair"
    return reasons


def _row_lacks(example: Example, needs: Needs) -> str | None:
    if needs.reward and example.reward is None and example.advantage is None:
        return "no reward"
    if needs.groups and example.group is None and example.advantage is None:
        return "no group"
    if needs.pairs and example.pair is None:
        return "no pair"
    if needs.behaviour and example.logprobs is None:
        return "no captured log-probabilities"
    if needs.versions and example.policy_versions is None:
        return "no policy versions"
    if needs.teacher and example.teacher_logprobs is None and example.hint_prompt_token_ids is None:
        return "no teacher: neither teacher_logprobs nor hint_prompt_token_ids"
    if needs.steps and not example.steps:
        return "no process rewards"
    return None


def clipped(
    ratio: torch.Tensor, advantages: torch.Tensor, low: float, high: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """min(ρA, clip(ρ, 1−low, 1+high)A), element by element, and where the clip took effect (0 or 1)."""
    unclipped, bounded = ratio * advantages, ratio.clamp(1 - low, 1 + high) * advantages
    return unclipped.minimum(bounded), (bounded < unclipped).to(ratio.dtype)


def k3(policy: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """exp(q−p) − (q−p) − 1 ≥ 0, an unbiased estimate of KL(policy‖reference) a token where p was sampled.

    Source: J. Schulman, Approximating KL Divergence, 2020.
    """
    difference = reference - policy
    return difference.exp() - difference - 1
