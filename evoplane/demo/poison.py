"""A bad candidate on purpose: an adapter whose weights are noise."""

from __future__ import annotations

import shutil
from pathlib import Path

NOISE = 0.15
"""Standard deviation of the noise: enough to turn every answer into babble."""


def poison_adapter(healthy: Path, into: Path, seed: int = 13) -> Path:
    """Copy a PEFT adapter and put noise in place of what it learned."""
    import torch
    from safetensors.torch import load_file, save_file

    shutil.copytree(healthy, into, dirs_exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    file = into / "adapter_model.safetensors"
    noise = {
        name: torch.randn(weights.shape, generator=generator) * NOISE if "lora_B" in name else weights
        for name, weights in load_file(file).items()
    }
    save_file(noise, file, metadata={"format": "pt"})
    return into
