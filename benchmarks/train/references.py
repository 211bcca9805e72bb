"""Each algorithm's loss once more: float64, row by row, token by token, written from the papers' formulas.

Nothing of the trainer is used: rows are computed one at a time by the model's own forward pass. `rows` are
training rows as dictionaries; the model is any causal language model in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

import torch

Rows = Sequence[Mapping[str, Any]]
Logprobs = Sequence[torch.Tensor]
"""Of each row, [C]"""


def token_logprobs(model: torch.nn.Module, rows: Rows, prompt: str = "prompt_token_ids") -> list[torch.Tensor]:
    """log π(c_t | p, c_<t) of each row's completion tokens."""
    found = []
    for row in rows:
        ids = torch.tensor([[*row[prompt], *row["completion_token_ids"]]])
        first = len(row[prompt])
        table = torch.log_softmax(model(input_ids=ids).logits[0], -1)
        found.append(torch.stack([table[t - 1, ids[0, t]] for t in range(first, ids.shape[1])]))
    return found


def group_advantages(rows: Rows, kind: str) -> list[float]:
    """`standardised` (GRPO), `centred` (Dr. GRPO), `batch` (Lite PPO), `left_out` (RLOO), `baseline` (REINFORCE)."""
    everyone = [row["reward"] for row in rows]
    found = []
    for i, row in enumerate(rows):
        group = [other["reward"] for other in rows if other["group"] == row["group"]]
        others = [o["reward"] for j, o in enumerate(rows) if o["group"] == row["group"] and j != i]
        centred = row["reward"] - fmean(group)
        found.append(
            {
                "standardised": centred / (stdev(group) + 1e-4),
                "centred": centred,
                "batch": centred / (stdev(everyone) + 1e-4),
                "left_out": row["reward"] - fmean(others),
                "baseline": row["reward"] - fmean(everyone),
            }[kind]
        )
    return found


def _clip(ratio: torch.Tensor, advantage: torch.Tensor | float, low: float, high: float) -> torch.Tensor:
    return torch.minimum(ratio * advantage, torch.clip(ratio, 1 - low, 1 + high) * advantage)


def _old(rows: Rows) -> list[torch.Tensor]:
    return [torch.tensor(row["logprobs"], dtype=torch.float64) for row in rows]


def sft(policy: Logprobs, rows: Rows) -> torch.Tensor:
    total = sum(row.get("weight", 1.0) * len(row["completion_token_ids"]) for row in rows)
    return -torch.stack([row.get("weight", 1.0) * p.sum() for p, row in zip(policy, rows, strict=True)]).sum() / total


def _pairs(policy: Logprobs, reference: Logprobs, rows: Rows, length: Callable[[int], float]) -> list[torch.Tensor]:
    """Margins h(chosen) − h(rejected), log-ratios divided by `length` of the completion."""
    h = {
        (row["pair"], row["role"]): (p.sum() - r.sum()) / length(len(p))
        for p, r, row in zip(policy, reference, rows, strict=True)
    }
    return [h[pair, "chosen"] - h[pair, "rejected"] for pair, role in h if role == "chosen"]


def dpo(policy: Logprobs, reference: Logprobs, rows: Rows, beta: float = 0.1) -> torch.Tensor:
    margins = _pairs(policy, reference, rows, lambda _: 1.0)
    return -torch.stack([torch.log(1 / (1 + torch.exp(-beta * m))) for m in margins]).mean()


def ipo(policy: Logprobs, reference: Logprobs, rows: Rows, beta: float = 0.1) -> torch.Tensor:
    margins = _pairs(policy, reference, rows, float)
    return torch.stack([(m - 1 / (2 * beta)) ** 2 for m in margins]).mean()


def reinforce(policy: Logprobs, rows: Rows) -> torch.Tensor:
    gains = [a * p.sum() for a, p in zip(group_advantages(rows, "baseline"), policy, strict=True)]
    return -torch.stack(gains).mean()


def rloo(policy: Logprobs, rows: Rows, clip: float = 0.2) -> torch.Tensor:
    advantages = group_advantages(rows, "left_out")
    ratios = [torch.exp(p.sum() - o.sum()) for p, o in zip(policy, _old(rows), strict=True)]
    return -torch.stack([_clip(r, a, clip, clip) for r, a in zip(ratios, advantages, strict=True)]).mean()


def grpo(
    policy: Logprobs, rows: Rows, reference: Logprobs | None = None, kl_weight: float = 0.0, clip: float = 0.2
) -> torch.Tensor:
    losses = []
    for i, (p, o, a) in enumerate(zip(policy, _old(rows), group_advantages(rows, "standardised"), strict=True)):
        gain = _clip(torch.exp(p - o), a, clip, clip)
        if reference is not None:
            d = reference[i] - p
            gain = gain - kl_weight * (torch.exp(d) - d - 1)
        losses.append(gain.mean())
    return -torch.stack(losses).mean()


def dr_grpo(policy: Logprobs, rows: Rows, longest: int, clip: float = 0.2) -> torch.Tensor:
    triples = zip(policy, _old(rows), group_advantages(rows, "centred"), strict=True)
    return -torch.cat([_clip(torch.exp(p - o), a, clip, clip) for p, o, a in triples]).sum() / (longest * len(rows))


def lite_ppo(policy: Logprobs, rows: Rows, clip: float = 0.2) -> torch.Tensor:
    triples = zip(policy, _old(rows), group_advantages(rows, "batch"), strict=True)
    return -torch.cat([_clip(torch.exp(p - o), a, clip, clip) for p, o, a in triples]).mean()


def gspo(policy: Logprobs, rows: Rows, low: float = 3e-4, high: float = 4e-4) -> torch.Tensor:
    triples = zip(policy, _old(rows), group_advantages(rows, "standardised"), strict=True)
    gains = [_clip((p.sum() - o.sum()).exp() ** (1 / len(p)), a, low, high) for p, o, a in triples]
    return -torch.stack(gains).mean()


def ppo(
    policy: Logprobs,
    rows: Rows,
    start: Logprobs,
    *,
    proximal: str,
    importance: str,
    cap: float,
    policy_version: int = 0,
    clip: float = 0.2,
) -> torch.Tensor:
    gains = []
    for i, (p, o, a) in enumerate(zip(policy, _old(rows), group_advantages(rows, "standardised"), strict=True)):
        for t in range(len(p)):
            with torch.no_grad():
                if proximal == "recomputed":
                    prox = start[i][t]
                elif proximal == "interpolated":
                    version = next(s["version"] for s in rows[i]["policy_versions"] if s["start"] <= t < s["end"])
                    alpha = (policy_version - version) / (policy_version + 1 - version)
                    prox = o[t] + alpha * (p[t] - o[t])
                else:
                    prox = o[t]
                weight = math.exp(float(prox - o[t]))
                weight = min(weight, cap) if importance == "truncated" else weight * (weight <= cap)
            gains.append(weight * _clip(torch.exp(p[t] - prox), a, clip, clip))
    return -torch.stack(gains).mean()


def opd(policy: Logprobs, rows: Rows, teacher: Logprobs, low: float = 0.2, high: float = 0.28) -> torch.Tensor:
    gains = [_clip(torch.exp(p - o), t - o, low, high) for p, o, t in zip(policy, _old(rows), teacher, strict=True)]
    return -torch.cat(gains).mean()


def prm(model: Any, head: Any, rows: Rows) -> torch.Tensor:
    losses = []
    for row in rows:
        ids = torch.tensor([[*row["prompt_token_ids"], *row["completion_token_ids"]]])
        hidden = model.base_model(input_ids=ids).last_hidden_state[0]
        for step in row["steps"]:
            good = 1 / (1 + torch.exp(-head(hidden[len(row["prompt_token_ids"]) + step["end"] - 1])))
            y = step["reward"]
            losses.append(-(y * torch.log(good) + (1 - y) * torch.log(1 - good)))
    return torch.stack(losses).mean()
