"""Loss and gradients of each algorithm, here and by an independent implementation, on the same batch.

Here: fp32, packed, with shared prefixes, as the loop computes them. There: `references` (float64, row by row).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import msgspec
import torch

from benchmarks.train import references
from benchmarks.train.cases import model, rows
from services.worker.training.algorithms import algorithm
from services.worker.training.batch import Known, Scores, collate, totals
from services.worker.training.examples import Example
from services.worker.training.packing import pack
from services.worker.training.policy import Policy

POLICY_VERSION = 5


@dataclass(frozen=True)
class Computed:
    loss: float
    gradients: dict[str, torch.Tensor]


@dataclass(frozen=True)
class Case:
    """One algorithm with hyper-parameters, and its reference."""

    algorithm: str
    hyperparameters: dict[str, Any]
    reference: Callable[[torch.nn.Module, list[dict[str, Any]]], torch.Tensor]
    """(float64 model with a reward head `reward_head`, rows) → loss"""

    @property
    def name(self) -> str:
        told = [f"{k}={v}" for k, v in self.hyperparameters.items()]
        return " ".join([self.algorithm, *told])


def _other(seed: int, told: list[dict[str, Any]], prompt: str = "prompt_token_ids") -> list[torch.Tensor]:
    """Log-probabilities under other weights: a reference, a teacher, a starting point."""
    return list(_logprobs(seed, tuple((tuple(r[prompt]), tuple(r["completion_token_ids"])) for r in told)))


@cache
def _logprobs(seed: int, told: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]) -> list[torch.Tensor]:
    """Of (prompt, completion) pairs; every case asks for the same ones."""
    given = [{"prompt_token_ids": prompt, "completion_token_ids": completion} for prompt, completion in told]
    with torch.no_grad():
        return references.token_logprobs(model("sdpa", seed=seed), given)


REFERENCE_SEED, START_SEED = 1, 2


def _near(told: list[dict[str, Any]]) -> list[torch.Tensor]:
    """Starting weights near the behaviour: so that importance weights are neither all 1 nor all cut."""
    return [0.7 * torch.tensor(row["logprobs"]) + 0.3 * other for row, other in zip(told, _other(2, told), strict=True)]


def _by_logprobs(loss: Callable[..., torch.Tensor], **told: Any) -> Callable[..., torch.Tensor]:
    return lambda m, r: loss(references.token_logprobs(m, r), r, **told)


def _against_reference(loss: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    return lambda m, r: loss(references.token_logprobs(m, r), _other(REFERENCE_SEED, r), r)


def _ppo(**told: Any) -> Callable[..., torch.Tensor]:
    return lambda m, r: references.ppo(
        references.token_logprobs(m, r), r, _near(r), policy_version=POLICY_VERSION, **told
    )


CASES = [
    Case("sft", {}, _by_logprobs(references.sft)),
    Case("rft", {"threshold": 0.0}, _by_logprobs(references.sft)),
    Case("dpo", {}, _against_reference(references.dpo)),
    Case("ipo", {}, _against_reference(references.ipo)),
    Case("reinforce", {}, _by_logprobs(references.reinforce)),
    Case("rloo", {}, _by_logprobs(references.rloo)),
    Case("grpo", {}, _by_logprobs(references.grpo)),
    Case(
        "grpo",
        {"kl_weight": 0.1},
        lambda m, r: references.grpo(references.token_logprobs(m, r), r, _other(REFERENCE_SEED, r), 0.1),
    ),
    Case("dr_grpo", {"longest": 12}, _by_logprobs(references.dr_grpo, longest=12)),
    Case("lite_ppo", {}, _by_logprobs(references.lite_ppo)),
    Case("gspo", {}, _by_logprobs(references.gspo)),
    Case("gspo", {"clip_low": 0.2, "clip_high": 0.2}, _by_logprobs(references.gspo, low=0.2, high=0.2)),
    Case("ppo", {}, _ppo(proximal="recomputed", importance="truncated", cap=5.0)),
    Case(
        "ppo",
        {"importance": "masked", "importance_cap": 1.1},
        _ppo(proximal="recomputed", importance="masked", cap=1.1),
    ),
    Case("ppo", {"proximal": "interpolated"}, _ppo(proximal="interpolated", importance="truncated", cap=5.0)),
    Case("ppo", {"proximal": "behaviour"}, _ppo(proximal="behaviour", importance="truncated", cap=5.0)),
    Case(
        "opd",
        {},
        lambda m, r: references.opd(references.token_logprobs(m, r), r, _other(START_SEED, r, "hint_prompt_token_ids")),
    ),
    Case("prm", {}, lambda m, r: references.prm(m, m.reward_head, r)),
]


def here(case: Case, told: list[dict[str, Any]]) -> Computed:
    """As the loop computes it, in two packs that add up."""
    chosen = algorithm(case.algorithm, case.hyperparameters)
    examples, _ = chosen.select([msgspec.convert(row, Example) for row in told])
    policy = Policy(model(dtype=torch.float32), reward_head=chosen.trains_reward_head)
    if policy.reward_head is not None:
        policy.reward_head.load_state_dict(_head().state_dict())
    advantages = chosen.advantages(examples)
    start, teacher = _near(told), _other(START_SEED, told, "hint_prompt_token_ids")
    reference = _other(REFERENCE_SEED, told)
    known = [
        Known(advantage=a, start=s.float(), teacher=t.float())
        for a, s, t in zip(advantages, start, teacher, strict=True)
    ]
    total = totals(examples, forced=chosen.imitates)
    loss = 0.0
    for part in (slice(0, 4), slice(4, len(examples))):
        batch = collate(examples[part], known[part], total, forced=chosen.imitates, policy_version=POLICY_VERSION)
        output = policy(pack(examples[part]))
        scores = Scores(output.logprobs, output.entropy, output.step_logits)
        share, _ = chosen.loss(batch, scores, Scores(torch.cat(reference[part]).float()))
        share.backward()
        loss += share.item()
    return Computed(loss, _gradients(policy.model))


def there(case: Case, told: list[dict[str, Any]]) -> Computed:
    """By the float64 reference."""
    plain = model("sdpa")
    plain.reward_head = _head().double()
    loss = case.reference(plain, told)
    loss.backward()
    return Computed(loss.item(), _gradients(plain))


def difference(a: Computed, b: Computed) -> tuple[float, float]:
    """Of losses, and the largest of any weight's gradient."""
    assert a.gradients.keys() == b.gradients.keys()
    gradients = max(float((a.gradients[name] - b.gradients[name]).abs().max()) for name in a.gradients)
    return abs(a.loss - b.loss), gradients


def compare() -> dict[str, tuple[float, float]]:
    """Differences of loss and gradients by case."""
    told = rows()
    return {case.name: difference(here(case, told), there(case, told)) for case in CASES}


def _head() -> torch.nn.Linear:
    torch.manual_seed(3)
    return torch.nn.Linear(32, 1)


def _gradients(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {
        name: weight.grad.double()
        for name, weight in module.named_parameters()
        if weight.grad is not None and not name.startswith("reward_head")
    }
