"""Packing: a batch of examples as one sequence whose common prefix is computed once.

Requests to one agent begin alike (tool definitions, system text). A pack is `[prefix][s1][s2]…`:
every sample attends to the prefix and to itself, causally, and never to another sample; positions
continue from the prefix for each. Attention is computed per sample, so its cost is
O(samples · length · (prefix + length)) and not quadratic in the pack. The result equals computing
every example alone, up to rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from services.worker.training.examples import Example

ATTENTION = "shared_prefix"
"""Name of the attention function below; load the model with `attn_implementation=ATTENTION`."""


@dataclass(frozen=True)
class Pack:
    """T tokens, the first `prefix` of which are common to S samples of at most L further tokens."""

    input_ids: torch.Tensor
    """[1, T]"""
    position_ids: torch.Tensor
    """[1, T]"""
    prefix: int
    grid: torch.Tensor
    """[S, L] index in T of each sample's tokens; rows are padded at the end with index 0."""
    slots: torch.Tensor
    """[T - prefix] where in the flattened grid each sample token sits: the inverse of `grid`."""
    mask: torch.Tensor
    """[1, 1, L, prefix + L] who a sample's token may look at. Padding comes last, so causality hides it."""
    predict_at: torch.Tensor
    """[N] index in T of the token that predicts each target."""
    targets: torch.Tensor
    """[N] completion token ids, example after example."""
    owners: torch.Tensor
    """[N] which example of the batch each target belongs to."""
    weights: torch.Tensor
    """[N] the owner's weight."""

    @property
    def tokens(self) -> int:
        return self.input_ids.shape[1]


def pack(examples: Sequence[Example], device: torch.device | str = "cpu") -> Pack:
    """Pack a non-empty batch. The prefix stops one token short of the shortest prompt, so that each
    sample keeps the token its first target is predicted from."""
    prefix = _common_prefix([e.prompt_token_ids for e in examples])
    ids = list(examples[0].prompt_token_ids[:prefix])
    positions = list(range(prefix))
    rows: list[list[int]] = []
    predict_at: list[int] = []
    for example in examples:
        own = example.prompt_token_ids[prefix:] + example.completion_token_ids
        start = len(ids)
        rows.append(list(range(start, start + len(own))))
        first = start + len(example.prompt_token_ids) - prefix - 1
        predict_at.extend(range(first, first + len(example.completion_token_ids)))
        positions.extend(range(prefix, prefix + len(own)))
        ids.extend(own)
    longest = max(map(len, rows))
    grid = [row + [0] * (longest - len(row)) for row in rows]
    slots = [s * longest + i for s, row in enumerate(rows) for i in range(len(row))]
    mask = torch.ones(longest, prefix + longest, dtype=torch.bool).tril(diagonal=prefix)
    counts = torch.tensor([len(e.completion_token_ids) for e in examples])
    return Pack(
        input_ids=torch.tensor([ids], device=device),
        position_ids=torch.tensor([positions], device=device),
        prefix=prefix,
        grid=torch.tensor(grid, device=device),
        slots=torch.tensor(slots, device=device),
        mask=mask[None, None].to(device),
        predict_at=torch.tensor(predict_at, device=device),
        targets=torch.tensor([t for e in examples for t in e.completion_token_ids], device=device),
        owners=torch.arange(len(examples)).repeat_interleave(counts).to(device),
        weights=torch.tensor([e.weight for e in examples]).repeat_interleave(counts).to(device),
    )


def _common_prefix(prompts: Sequence[Sequence[int]]) -> int:
    columns = zip(*prompts, strict=False)
    alike = sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, columns))
    return min(alike, min(map(len, prompts)) - 1)


def shared_prefix_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    packed: Pack,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **_: object,
) -> tuple[torch.Tensor, None]:
    """Attention over one pack. query [1, H, T, D]; key and value [1, H/g, T, D]; returns [1, T, H, D]."""
    if sliding_window is not None or softcap is not None:
        raise NotImplementedError("packed training knows neither sliding windows nor soft-capped attention")
    groups = query.shape[1] // key.shape[1]
    q, k, v = query[0], key[0].repeat_interleave(groups, 0), value[0].repeat_interleave(groups, 0)
    prefix, samples = packed.prefix, packed.grid.shape[0]
    parts = []
    if prefix:
        head_q, head_k, head_v = (x[None, :, :prefix] for x in (q, k, v))
        parts.append(scaled_dot_product_attention(head_q, head_k, head_v, is_causal=True, scale=scaling)[0])
    own_q, own_k, own_v = (x[:, packed.grid].transpose(0, 1) for x in (q, k, v))
    seen_k, seen_v = (
        torch.cat([x[None, :, :prefix].expand(samples, -1, -1, -1), own], dim=2) for x, own in ((k, own_k), (v, own_v))
    )
    answer = scaled_dot_product_attention(own_q, seen_k, seen_v, attn_mask=packed.mask, scale=scaling)
    parts.append(answer.transpose(0, 1).flatten(1, 2)[:, packed.slots])
    return torch.cat(parts, dim=1).transpose(0, 1)[None], None


AttentionInterface.register(ATTENTION, shared_prefix_attention)
