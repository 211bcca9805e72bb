"""The probe: log-probabilities of one example under the trained adapter.

The serving side scores the same tokens; agreement within `worker.probe_tolerance` shows that it serves
these weights and not the base model, another adapter or a damaged file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from peft import PeftModel
from transformers import PreTrainedModel

from services.worker.training.examples import Example
from services.worker.training.packing import pack
from services.worker.training.sft import target_logprobs

_CANDIDATES = 8
"""Examples tried: enough to find one that tells the adapter from its base, cheap to compute."""


def make_probe(model: PeftModel, examples: Sequence[Example]) -> dict[str, list[int] | list[float]]:
    """The example, among the first few, on which the adapter differs most from the base model."""
    tried = examples[:_CANDIDATES]
    with torch.no_grad():
        trained = [_logprobs(model, example) for example in tried]
        with model.disable_adapter():
            base = [_logprobs(model, example) for example in tried]
    gaps = [max(abs(a - b) for a, b in zip(t, u, strict=True)) for t, u in zip(trained, base, strict=True)]
    best = max(range(len(tried)), key=gaps.__getitem__)
    return {
        "prompt_token_ids": tried[best].prompt_token_ids,
        "completion_token_ids": tried[best].completion_token_ids,
        "logprobs": trained[best],
    }


def _logprobs(model: PeftModel, example: Example) -> list[float]:
    base = cast(PreTrainedModel, model.get_base_model())
    return target_logprobs(base, pack([example], base.device)).tolist()
