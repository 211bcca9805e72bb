"""Packing changes how much is computed, not what."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from services.worker.training.algorithms import algorithm
from services.worker.training.batch import Known, Scores, collate, totals
from services.worker.training.examples import Example
from services.worker.training.packing import ATTENTION, blockwise_attention, pack, shared_prefix_attention
from services.worker.training.policy import Policy


def load(model: Path, attention: str) -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation=attention)


def packed_loss(model: torch.nn.Module, examples: list[Example]) -> torch.Tensor:
    batch = collate(examples, [Known()] * len(examples), totals(examples, forced=True), forced=True)
    output = Policy(model)(pack(examples))
    return algorithm("sft").loss(batch, Scores(output.logprobs), None)[0]


def one_by_one(model: torch.nn.Module, examples: list[Example]) -> torch.Tensor:
    """The loss by its definition, each example alone, with the library's own attention."""
    total = sum(e.weight * len(e.completion_token_ids) for e in examples)
    loss = torch.zeros(())
    for example in examples:
        ids = torch.tensor([example.prompt_token_ids + example.completion_token_ids])
        logprobs = torch.log_softmax(model(input_ids=ids).logits[0], dim=-1)
        first = len(example.prompt_token_ids) - 1
        for offset, token in enumerate(example.completion_token_ids):
            loss = loss - example.weight * logprobs[first + offset, token] / total
    return loss


@pytest.mark.parametrize("case", ["shared prefix", "no shared prefix", "same prompt", "one example", "groups"])
def test_packed_loss_and_gradients_equal_those_of_single_examples(
    tiny_model: Path, examples: list[Example], case: str
) -> None:
    batch = {
        "shared prefix": examples[:7],
        "no shared prefix": [Example(prompt_token_ids=[i + 1, 4, i], completion_token_ids=[i, 2]) for i in range(4)],
        "same prompt": [Example(prompt_token_ids=[3, 4], completion_token_ids=[i] * i) for i in range(1, 4)],
        "one example": examples[:1],
        "groups": grouped(),
    }[case]
    packed_model, plain_model = load(tiny_model, ATTENTION), load(tiny_model, "sdpa")

    packed = packed_loss(packed_model, batch)
    plain = one_by_one(plain_model, batch)
    packed.backward()
    plain.backward()

    assert packed.item() == pytest.approx(plain.item(), abs=1e-5)
    for mine, theirs in zip(packed_model.parameters(), plain_model.parameters(), strict=True):
        assert torch.allclose(mine.grad, theirs.grad, atol=1e-5)


def test_attention_stretch_by_stretch_equals_attention_on_padded_rectangles() -> None:
    packed = pack(grouped())
    torch.manual_seed(0)
    tensors = [torch.randn(1, heads, packed.tokens, 8, requires_grad=True) for heads in (4, 2, 2)]
    toward = torch.randn(1, packed.tokens, 4, 8)

    stretches, _ = shared_prefix_attention(torch.nn.Identity(), *tensors, None, packed=packed)
    rectangles = blockwise_attention(*tensors, packed, None)

    assert torch.allclose(stretches, rectangles, atol=1e-5)
    mine, theirs = (torch.autograd.grad((out * toward).sum(), tensors) for out in (stretches, rectangles))
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(mine, theirs, strict=True))


def test_a_pack_computes_the_prefix_of_all_and_the_prompt_of_each_group_once(examples: list[Example]) -> None:
    assert pack(examples[:7]).tokens == sum(e.length for e in examples[:7]) - 4 * 6

    batch = grouped()
    answers = sum(len(e.completion_token_ids) + 1 for e in batch)  # with the token each is predicted from

    assert pack(batch).tokens == 6 + 3 * 11 + answers


def grouped() -> list[Example]:
    """Three groups of four answers; six tokens common to all prompts, eleven more (less the last) to a group's."""
    return [
        Example(
            prompt_token_ids=[1, 5, 9, 13, 17, 21, *range(30 + 12 * g, 42 + 12 * g)],
            completion_token_ids=[90 + g + a] * (1 + (a * 5 + g) % 4) + [2],
            weight=1.0 + a,
        )
        for a in range(4)
        for g in range(3)
    ]
