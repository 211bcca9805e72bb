"""Batches that training is measured on: random ids in the shapes of agents' traffic."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Workload:
    """`groups` × `group_size` rows; group_size 1 is demonstrations without anything in common."""

    name: str
    algorithm: str
    groups: int
    group_size: int
    prompt: int
    """Tokens; demonstrations' prompts vary around it."""
    longest: int
    """Completion tokens, at most; the shortest is an eighth of it."""

    @property
    def tokens(self) -> int:
        """Of all rows, each counted whole: what a trainer that shares nothing computes without padding."""
        return sum(len(r["prompt_token_ids"]) + len(r["completion_token_ids"]) for r in self.rows())

    def rows(self) -> list[dict[str, Any]]:
        """The same every time."""
        draw = random.Random(self.name)
        found: list[dict[str, Any]] = []
        for group in range(self.groups):
            length = self.prompt if self.group_size > 1 else draw.randint(self.prompt // 3, self.prompt * 5 // 3)
            prompt = [draw.randrange(3, 49_000) for _ in range(length)]
            for member in range(self.group_size):
                count = draw.randint(self.longest // 8, self.longest)
                found.append(
                    {
                        "prompt_token_ids": prompt,
                        "completion_token_ids": [*(draw.randrange(3, 49_000) for _ in range(count - 1)), 2],
                        "logprobs": [-draw.uniform(9, 12) for _ in range(count)],
                        "reward": float(member % 3 == 0),
                        "group": f"g{group}",
                    }
                )
        return found


GRPO = Workload("grpo", "grpo", groups=1, group_size=8, prompt=128, longest=48)
SFT = Workload("sft", "sft", groups=6, group_size=1, prompt=72, longest=48)
QUICK = [
    Workload("quick-grpo", "grpo", groups=1, group_size=4, prompt=48, longest=16),
    Workload("quick-sft", "sft", groups=4, group_size=1, prompt=36, longest=16),
]
GROWTH = [
    Workload("group of 4", "grpo", groups=1, group_size=4, prompt=128, longest=48),
    Workload("group of 16", "grpo", groups=1, group_size=16, prompt=128, longest=48),
    Workload("prompt of 32", "grpo", groups=1, group_size=8, prompt=32, longest=48),
    Workload("prompt of 384", "grpo", groups=1, group_size=8, prompt=384, longest=48),
]
