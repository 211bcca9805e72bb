"""Adapters that differ from each other, with what they answer: random, so that making one costs no training."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.worker.policies import policy_digest

_RANK = 8
_SPREAD = 0.02
"""Standard deviation of the random weights: enough that two adapters give clearly different log-probabilities."""


@dataclass
class Adapter:
    name: str
    path: Path
    digest: str
    probe: dict[str, Any]


class Trainer:
    """The trainer's side: a transformers model that carries any number of adapters, and scores tokens under each."""

    def __init__(self, base: Path) -> None:
        import torch
        from peft import LoraConfig, get_peft_model
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(1)
        model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, local_files_only=True)
        self._config = LoraConfig(
            r=_RANK, lora_alpha=_RANK, target_modules=["q_proj", "v_proj", "down_proj"], task_type="CAUSAL_LM"
        )
        self._model = get_peft_model(model, self._config, adapter_name="none").eval()

    def make(self, name: str, seed: int, folder: Path, probe_ids: tuple[list[int], list[int]]) -> Adapter:
        """A new adapter on disk, and its probe."""
        import torch

        self._model.add_adapter(name, self._config)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for key, weights in self._model.named_parameters():
                if f".{name}." in key and "lora_B" in key:
                    weights.copy_(torch.randn(weights.shape, generator=generator) * _SPREAD)
        self._model.save_pretrained(str(folder), selected_adapters=[name], save_embedding_layers=False)
        path = folder / name
        (folder / "README.md").unlink(missing_ok=True)
        prompt, completion = probe_ids
        probe = {
            "prompt_token_ids": prompt,
            "completion_token_ids": completion,
            "logprobs": self.score(name, prompt, completion),
        }
        return Adapter(name, path, policy_digest(path), probe)

    def score(self, name: str, prompt: list[int], completion: list[int]) -> list[float]:
        """Log-probability, nats, of each completion token under the adapter."""
        import torch

        self._model.set_adapter(name)
        with torch.no_grad():
            logits = self._model(input_ids=torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1]
            logprobs = torch.log_softmax(logits.float(), dim=-1)
        return logprobs[torch.arange(len(completion)), torch.tensor(completion)].tolist()


def damaged(adapter: Adapter, name: str, folder: Path) -> Adapter:
    """A copy with one tensor overwritten, declared as what it is: its digest is right, its weights are not."""
    from safetensors.torch import load_file, save_file

    path = folder / name
    shutil.copytree(adapter.path, path)
    file = path / "adapter_model.safetensors"
    tensors = load_file(file)
    spoiled = max(tensors, key=lambda key: (key.endswith("lora_B.weight"), key))
    tensors[spoiled] = tensors[spoiled].flip(0).contiguous()
    save_file(tensors, file)
    return Adapter(name, path, policy_digest(path), adapter.probe)
