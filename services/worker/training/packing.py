"""Packing: a batch of examples as one sequence in which every shared prefix is computed once.

Requests to one agent begin alike (tool definitions, system text), and the answers of a group have one
prompt. The prompts of a pack form a tree: `[common][group 1][answer][answer]…[group 2]…`. Every token
attends to the shared segments above it and to its own sample, causally, and never to another sample;
positions go on from the prefix. There is no padding: only attention computes samples of unequal length as
a rectangle. The result equals computing every example alone, up to rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from services.worker.training.attention import Look, PackedAttention
from services.worker.training.examples import Example

ATTENTION = "shared_prefix"
"""Name of the attention function below; load the model with `attn_implementation=ATTENTION`."""

_MIN_SHARED = 8
"""Below the common prefix, fewer shared tokens than this are computed again: another segment costs more."""


@dataclass(frozen=True)
class Block:
    """R sequences of at most L tokens with the same C tokens before them; in the pack they lie one after the other."""

    context: torch.Tensor
    """[C] index in T of each token of the shared segments above."""
    grid: torch.Tensor
    """[R, L] index in T of each own token; rows are padded at the end with index 0."""
    slots: torch.Tensor
    """[own tokens] where in the flattened grid each of them sits: the inverse of `grid`."""
    mask: torch.Tensor | None
    """[1, 1, L, C + L] who a token may look at: padding comes last, so causality hides it. None: plain causal."""


@dataclass(frozen=True)
class Pack:
    """T tokens of S samples."""

    input_ids: torch.Tensor
    """[1, T]"""
    position_ids: torch.Tensor
    """[1, T]"""
    blocks: tuple[Block, ...]
    """In the order of their tokens."""
    looks: tuple[Look, ...]
    """The same, stretch by stretch: what CPUs compute attention by."""
    predict_at: torch.Tensor
    """[N] index in T of the token that predicts each target."""
    targets: torch.Tensor
    """[N] completion token ids, example after example."""
    steps_at: torch.Tensor
    """[K] index in T of the last token of each process reward's step."""

    @property
    def tokens(self) -> int:
        return self.input_ids.shape[1]

    def to(self, device: torch.device | str) -> Pack:
        blocks = tuple(
            Block(
                b.context.to(device),
                b.grid.to(device),
                b.slots.to(device),
                None if b.mask is None else b.mask.to(device),
            )
            for b in self.blocks
        )
        tensors = ("input_ids", "position_ids", "predict_at", "targets", "steps_at")
        return replace(self, blocks=blocks, **{name: getattr(self, name).to(device) for name in tensors})


def pack(examples: Sequence[Example]) -> Pack:
    """Pack a non-empty batch. A shared prefix stops one token short of the shortest prompt in it, so that each
    sample keeps the token its first target is predicted from."""
    layout = _Layout(examples)
    layout.place(list(range(len(examples))), 0, [])
    predict_at: list[int] = []
    steps_at: list[int] = []
    for example, first in zip(examples, layout.first_target, strict=True):
        predict_at.extend(range(first - 1, first - 1 + len(example.completion_token_ids)))
        steps_at.extend(first + step.end - 1 for step in example.steps or ())
    return Pack(
        input_ids=torch.tensor([layout.ids]),
        position_ids=torch.tensor([layout.positions]),
        blocks=tuple(layout.blocks),
        looks=tuple(layout.looks),
        predict_at=torch.tensor(predict_at),
        targets=torch.tensor([t for e in examples for t in e.completion_token_ids]),
        steps_at=torch.tensor(steps_at, dtype=torch.long),
    )


def packed_length(examples: Sequence[Example]) -> int:
    """Tokens computed for these examples when packed together, at most: one shared prefix counted once."""
    common = _common_prefix([e.prompt_token_ids for e in examples], 0)
    return common + sum(e.length - common for e in examples)


class _Layout:
    """Where each token goes; filled by `place`, depth first."""

    def __init__(self, examples: Sequence[Example]) -> None:
        self.ids: list[int] = []
        self.positions: list[int] = []
        self.blocks: list[Block] = []
        self.looks: list[Look] = []
        self.first_target = [0] * len(examples)
        """Index in T of each sample's first completion token."""
        self._examples = examples

    def place(self, members: list[int], depth: int, context: list[int]) -> None:
        """Lay out samples whose first `depth` prompt tokens lie at `context` already."""
        prompts = [self._examples[m].prompt_token_ids for m in members]
        shared = _common_prefix(prompts, depth)
        if len(members) > 1 and shared > depth:
            own = self._append(prompts[0][depth:shared], depth)
            self._block(context, [own])
            context = context + own
        else:
            shared = depth
        alone, families = self._families(members, shared)
        rows = []
        for m in alone:
            example = self._examples[m]
            rows.append(self._append(example.prompt_token_ids[shared:] + example.completion_token_ids, shared))
            self.first_target[m] = rows[-1][0] + len(example.prompt_token_ids) - shared
        if rows:
            self._block(context, rows)
        for family in families:
            self.place(family, shared, context)

    def _families(self, members: list[int], depth: int) -> tuple[list[int], list[list[int]]]:
        """Those that share too little with any other below `depth`, and families of those that share more."""
        by_next: dict[int, list[int]] = {}
        for m in members:
            by_next.setdefault(self._examples[m].prompt_token_ids[depth], []).append(m)
        alone: list[int] = []
        families: list[list[int]] = []
        for family in by_next.values():
            prompts = [self._examples[m].prompt_token_ids for m in family]
            if len(family) > 1 and len(family) < len(members) and _common_prefix(prompts, depth) - depth >= _MIN_SHARED:
                families.append(family)
            else:
                alone.extend(family)
        return alone, families

    def _append(self, ids: Sequence[int], position: int) -> list[int]:
        start = len(self.ids)
        self.ids.extend(ids)
        self.positions.extend(range(position, position + len(ids)))
        return list(range(start, start + len(ids)))

    def _block(self, context: list[int], rows: list[list[int]]) -> None:
        ends = [i for i, token in enumerate(context) if token + 1 not in context[i + 1 : i + 2]]
        for first, last in zip([0, *(end + 1 for end in ends)], ends, strict=False):
            self.looks.append(Look(rows[0][0], rows[-1][-1] + 1, context[first], context[last] + 1))
        self.looks.extend(Look(row[0], row[-1] + 1, row[0], row[-1] + 1) for row in rows)
        longest = max(map(len, rows))
        plain = not context
        mask = None if plain else torch.ones(longest, len(context) + longest, dtype=torch.bool).tril(len(context))
        self.blocks.append(
            Block(
                context=torch.tensor(context, dtype=torch.long),
                grid=torch.tensor([row + [0] * (longest - len(row)) for row in rows]),
                slots=torch.tensor([r * longest + i for r, row in enumerate(rows) for i in range(len(row))]),
                mask=None if mask is None else mask[None, None],
            )
        )


def _common_prefix(prompts: Sequence[Sequence[int]], start: int) -> int:
    """Length of the prefix all prompts share, given that they share `start` tokens; at most the shortest less one."""
    columns = zip(*(prompt[start:] for prompt in prompts), strict=False)
    alike = start + sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, columns))
    return max(start, min(alike, min(map(len, prompts)) - 1))


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
    if query.device.type == "cpu":
        return PackedAttention.apply(query, key, value, packed.looks, scaling).transpose(1, 2), None
    return blockwise_attention(query, key, value, packed, scaling), None


def blockwise_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, packed: Pack, scaling: float | None
) -> torch.Tensor:
    """The same on any device, by PyTorch's own attention on padded rectangles; returns [1, T, H, D]."""
    groups = query.shape[1] // key.shape[1]
    q, k, v = query[0], key[0].repeat_interleave(groups, 0), value[0].repeat_interleave(groups, 0)
    return torch.cat([_block_attention(q, k, v, b, scaling) for b in packed.blocks], dim=1).transpose(0, 1)[None]


def _block_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, block: Block, scaling: float | None
) -> torch.Tensor:
    """[H, own tokens, D]"""
    rows = block.grid.shape[0]
    own_q, own_k, own_v = (x[:, block.grid].transpose(0, 1) for x in (q, k, v))
    if block.mask is None:
        answer = scaled_dot_product_attention(own_q, own_k, own_v, is_causal=True, scale=scaling)
    else:
        seen_k, seen_v = (
            torch.cat([x[None, :, block.context].expand(rows, -1, -1, -1), own], dim=2)
            for x, own in ((k, own_k), (v, own_v))
        )
        answer = scaled_dot_product_attention(own_q, seen_k, seen_v, attn_mask=block.mask, scale=scaling)
    return answer.transpose(0, 1).flatten(1, 2)[:, block.slots]


AttentionInterface.register(ATTENTION, shared_prefix_attention)
