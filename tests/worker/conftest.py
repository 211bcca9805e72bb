"""A tiny random llama and made-up examples: real parts at a size a test can afford."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from services.worker.training.examples import Example

VOCABULARY = 128


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers, hidden 32, grouped-query attention, random weights from a fixed seed."""
    return _llama(tmp_path_factory.mktemp("tiny"), tied=True)


@pytest.fixture(scope="session")
def untied_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with a projection to the vocabulary of its own, as the engine can reload."""
    return _llama(tmp_path_factory.mktemp("untied"), tied=False)


def _llama(directory: Path, *, tied: bool) -> Path:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=tied,
    )
    LlamaForCausalLM(config).save_pretrained(directory)
    return directory


@pytest.fixture
def examples() -> list[Example]:
    """24 examples of unequal length and weight whose prompts begin alike."""
    return [
        Example(
            prompt_token_ids=[1, 5, 9, 13, 20 + i % 7, *([40 + i] * (i % 4))],
            completion_token_ids=[60 + i % 5] * (1 + i % 3) + [2],
            weight=1.0 + (i % 2),
        )
        for i in range(24)
    ]


@pytest.fixture
def job_file(tmp_path: Path, tiny_model: Path, examples: list[Example]) -> Path:
    """A job over those examples: 8 optimiser steps, a checkpoint after every third."""
    return write_job(tmp_path, tiny_model, examples)


def write_job(directory: Path, base: Path, examples: list[Example], **changes: object) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    rows = "".join(
        json.dumps(
            {
                "prompt_token_ids": e.prompt_token_ids,
                "completion_token_ids": e.completion_token_ids,
                "weight": e.weight,
            }
        )
        + "\n"
        for e in examples
    )
    (directory / "examples.jsonl").write_text(rows)
    (directory / "heldout.jsonl").write_text("".join(rows.splitlines(keepends=True)[:6]))
    job = {
        "base": str(base),
        "examples": str(directory / "examples.jsonl"),
        "heldout": str(directory / "heldout.jsonl"),
        "output": str(directory / "out"),
        "epochs": 2,
        "batch_size": 6,
        "lora_rank": 4,
        "learning_rate": 0.01,
        "checkpoint_every": 3,
        "threads": 1,
    }
    file = directory / "job.json"
    file.write_text(json.dumps(job | changes))
    return file
