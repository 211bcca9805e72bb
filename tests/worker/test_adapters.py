"""The average of adapters is the average of what they do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from services.worker.adapters import average
from services.worker.policies import PolicyError

LAYER = "base_model.model.model.layers.0.self_attn.q_proj"


def adapter(folder: Path, seed: int, rank: int = 2, alpha: int = 4, name: str = LAYER) -> Path:
    generator = torch.Generator().manual_seed(seed)
    folder.mkdir()
    state = {
        f"{name}.lora_A.weight": torch.randn(rank, 8, generator=generator),
        f"{name}.lora_B.weight": torch.randn(6, rank, generator=generator),
    }
    save_file(state, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({"r": rank, "lora_alpha": alpha, "peft_type": "LORA"}))
    return folder


def update(folder: Path) -> torch.Tensor:
    config = json.loads((folder / "adapter_config.json").read_text())
    state = load_file(folder / "adapter_model.safetensors")
    scale = config["lora_alpha"] / config["r"]
    return scale * state[f"{LAYER}.lora_B.weight"] @ state[f"{LAYER}.lora_A.weight"]


def test_with_room_for_all_ranks_the_average_is_exact(tmp_path: Path) -> None:
    each = [adapter(tmp_path / str(n), n, rank=1 + n, alpha=2 + n) for n in range(2)]
    made = average(each, [3, 1], tmp_path / "out", rank=4)
    assert torch.allclose(update(tmp_path / "out"), 0.75 * update(each[0]) + 0.25 * update(each[1]), atol=1e-5)
    assert made["lost"] == pytest.approx(0, abs=1e-6)


def test_cut_to_a_rank_it_is_the_nearest_of_that_rank_and_says_what_it_lost(tmp_path: Path) -> None:
    each = [adapter(tmp_path / str(n), n) for n in range(3)]
    made = average(each, [1, 1, 1], tmp_path / "out", rank=2)
    exact = sum((update(path) for path in each), torch.zeros(6, 8)) / 3
    u, s, vh = torch.linalg.svd(exact)
    nearest = u[:, :2] @ torch.diag(s[:2]) @ vh[:2]
    assert torch.allclose(update(tmp_path / "out"), nearest, atol=1e-5)
    assert made["lost"] == pytest.approx(float((s[2:] ** 2).sum().sqrt() / (s**2).sum().sqrt()), abs=1e-5)


def test_adapters_of_different_layers_are_refused(tmp_path: Path) -> None:
    each = [adapter(tmp_path / "a", 1), adapter(tmp_path / "b", 2, name="another.layer")]
    with pytest.raises(PolicyError, match="same layers"):
        average(each, [1, 1], tmp_path / "out", rank=2)


def test_no_weights_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="not all 0"):
        average([adapter(tmp_path / "a", 1)], [0], tmp_path / "out", rank=2)
