"""Attention over a pack on CPUs: each token looks at the shared segments above it and at its own row.

A row's scores over several stretches of keys are computed stretch by stretch and merged by their
log-sum-exp, as in ring attention (Liu et al., 2023, arXiv:2310.01889):

    o = Σ_s exp(l_s − l) o_s,   l = log Σ_s exp(l_s)

so no key of a shared segment is copied for each row that looks at it, nothing is padded or masked, and only
q, k, v, o and l are kept for the backward pass, which is the stretches' own with the merged o and l.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


class Look(NamedTuple):
    """Tokens `start` to `end` look at tokens `first` to `last` (ends exclusive)."""

    start: int
    end: int
    first: int
    last: int

    @property
    def causal(self) -> bool:
        """At themselves, each up to itself."""
        return self.start == self.first


class PackedAttention(torch.autograd.Function):
    """query [1, H, T, D], key and value [1, H/g, T, D] → [1, H, T, D]. `looks` cover every token's own row."""

    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        looks: Sequence[Look],
        scale: float | None,
    ) -> torch.Tensor:
        groups = query.shape[1] // key.shape[1]
        k, v = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        out = torch.empty_like(query)
        total = torch.empty(query.shape[:3], dtype=torch.float32, device=query.device)
        looked = [False] * query.shape[2]
        for look in looks:
            here, there = slice(look.start, look.end), slice(look.first, look.last)
            part, lse = _forward(query[:, :, here], k[:, :, there], v[:, :, there], 0.0, look.causal, scale=scale)
            if not looked[look.start]:
                out[:, :, here], total[:, :, here] = part, lse
                looked[here] = [True] * (look.end - look.start)
                continue
            merged = torch.logaddexp(total[:, :, here], lse)
            old, new = (total[:, :, here] - merged).exp(), (lse - merged).exp()
            out[:, :, here] = out[:, :, here] * old[..., None] + part * new[..., None]
            total[:, :, here] = merged
        ctx.save_for_backward(query, key, value, out, total)
        ctx.looks, ctx.scale = looks, scale
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query, key, value, out, total = ctx.saved_tensors
        groups = query.shape[1] // key.shape[1]
        k, v = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        grads = [torch.zeros_like(x) for x in (query, k, v)]
        grad = grad.contiguous()
        for look in ctx.looks:
            here, there = slice(look.start, look.end), slice(look.first, look.last)
            parts = _backward(
                grad[:, :, here],
                query[:, :, here],
                k[:, :, there],
                v[:, :, there],
                out[:, :, here],
                total[:, :, here].contiguous(),
                0.0,
                look.causal,
                scale=ctx.scale,
            )
            for sums, part, at in zip(grads, parts, (here, there, there), strict=True):
                sums[:, :, at] += part
        dq, dk, dv = grads
        return dq, *(x.unflatten(1, (-1, groups)).sum(2) for x in (dk, dv)), None, None
