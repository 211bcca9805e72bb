"""Averaging adapters: federated learning of a policy, without one tenant's rows in the job of another.

FedAvg (McMahan et al. 2017) averages updates. An adapter's update of a layer is ΔW = s·B·A with s = alpha/rank;
averaging the A and the B apart averages something else (Wang et al. 2024, "FLoRA"). Here the exact average
Σᵢ wᵢ sᵢ BᵢAᵢ is formed as one product of stacked factors and cut back to `rank` by its singular values, which is the
nearest adapter of that rank (Eckart and Young 1936). How much the cut lost is told.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from services.worker.policies import ADAPTER_FILES, PolicyError, policy_digest

if TYPE_CHECKING:
    import torch

_A, _B = ".lora_A.weight", ".lora_B.weight"


def average(adapters: Sequence[Path], weights: Sequence[float], output: Path, rank: int) -> dict[str, str | float]:
    """Write the weighted average of PEFT LoRA adapters; gives its digest and the share of its norm the cut lost.

    Weights are made to sum to 1. Raises `PolicyError` when the adapters are not of one form.
    """
    import torch
    from safetensors.torch import load_file, save_file

    if not adapters or len(adapters) != len(weights) or min(weights) < 0 or not sum(weights) > 0:
        raise PolicyError("an average needs adapters, and as many weights that are not all 0")
    configs = [json.loads((path / ADAPTER_FILES[0]).read_text()) for path in adapters]
    states = [load_file(path / ADAPTER_FILES[1]) for path in adapters]
    names = sorted(states[0])
    for path, config, state in zip(adapters, configs, states, strict=True):
        if sorted(state) != names or config.get("use_rslora") or config.get("rank_pattern"):
            raise PolicyError(f"{path} does not change the same layers in the same way as {adapters[0]}")
    shares = [weight / sum(weights) for weight in weights]
    scales = [share * config["lora_alpha"] / config["r"] for share, config in zip(shares, configs, strict=True)]
    out: dict[str, torch.Tensor] = {}
    lost = total = 0.0
    for name in (n.removesuffix(_A) for n in names if n.endswith(_A)):
        b = torch.cat([scale * state[name + _B] for scale, state in zip(scales, states, strict=True)], dim=1)
        a = torch.cat([state[name + _A] for state in states], dim=0)
        out[name + _B], out[name + _A], cut, norm = _cut(b, a, rank)
        lost, total = lost + cut, total + norm
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    save_file(out, output / ADAPTER_FILES[1])
    (output / ADAPTER_FILES[0]).write_text(json.dumps({**configs[0], "r": rank, "lora_alpha": rank}, indent=2))
    return {"digest": policy_digest(output), "lost": (lost / total) ** 0.5 if total else 0.0}


def _cut(b: torch.Tensor, a: torch.Tensor, rank: int) -> tuple[torch.Tensor, torch.Tensor, float, float]:
    """`b @ a` as factors of `rank`, and the squared norms of what was lost and of the whole.

    The product is never formed: its singular values are those of the small middle of two QR decompositions.
    """
    import torch

    qb, rb = torch.linalg.qr(b.double())
    qa, ra = torch.linalg.qr(a.double().T)
    u, s, vh = torch.linalg.svd(rb @ ra.T)
    kept = min(rank, len(s))
    root = s[:kept].sqrt()
    left, right = (qb @ u[:, :kept]) * root, (root[:, None] * vh[:kept]) @ qa.T
    if kept < rank:
        left = torch.nn.functional.pad(left, (0, rank - kept))
        right = torch.nn.functional.pad(right, (0, 0, 0, rank - kept))
    whole = float((s**2).sum())
    return left.float().contiguous(), right.float().contiguous(), float((s[kept:] ** 2).sum()), whole
