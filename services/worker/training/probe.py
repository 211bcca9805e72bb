"""The probe: log-probabilities of one example under the trained adapter.

The serving side scores the same tokens; agreement within `worker.probe_tolerance` shows that it serves
these weights and not the base model, another adapter or a damaged file.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from accelerate import Accelerator
from peft import PeftModel

from services.worker.training.examples import Example
from services.worker.training.packing import pack

_CANDIDATES = 8
"""Examples tried: enough to find one that tells the adapter from its base, cheap to compute."""


def make_probe(
    accelerator: Accelerator, policy: torch.nn.Module, examples: Sequence[Example]
) -> dict[str, list[int] | list[float]]:
    """The example, among the first few, on which the adapter differs most from the base model.

    With full weights the base is no longer there to compare with: the first example.
    """
    tried = [
        Example(prompt_token_ids=e.prompt_token_ids, completion_token_ids=e.completion_token_ids)
        for e in examples[:_CANDIDATES]
    ]
    bare = accelerator.unwrap_model(policy)
    policy.eval()
    with torch.no_grad():
        trained = [_logprobs(accelerator, policy, example) for example in tried]
        best = 0
        if isinstance(bare.model, PeftModel):
            with bare.as_reference():
                base = [_logprobs(accelerator, policy, example) for example in tried]
            gaps = [max(abs(a - b) for a, b in zip(t, u, strict=True)) for t, u in zip(trained, base, strict=True)]
            best = max(range(len(tried)), key=gaps.__getitem__)
    return {
        "prompt_token_ids": tried[best].prompt_token_ids,
        "completion_token_ids": tried[best].completion_token_ids,
        "logprobs": trained[best],
    }


def _logprobs(accelerator: Accelerator, policy: torch.nn.Module, example: Example) -> list[float]:
    found: list[float] = policy(pack([example]).to(accelerator.device))[0].tolist()
    return found
