"""An adapter may change what it was trained to change, whatever its configuration looks like."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from services.worker.policies import PolicyError, check_targets


def checked(folder: Path, written: bytes | dict[str, Any]) -> None:
    content = written if isinstance(written, bytes) else json.dumps(written).encode()
    (folder / "adapter_config.json").write_bytes(content)
    check_targets(folder)


@pytest.mark.parametrize("targets", ["q_proj", ["q_proj", "down_proj"], ["model.layers.0.self_attn.v_proj"]])
def test_modules_that_training_changes_are_served(tmp_path: Path, targets: Any) -> None:
    checked(tmp_path, {"target_modules": targets, "modules_to_save": None, "trainable_token_indices": None})


@pytest.mark.parametrize(
    "written",
    [
        {"target_modules": ["q_proj", "lm_head"]},
        {"target_modules": "lm_head|x.q_proj"},
        {"target_modules": "(embed_tokens|.*).q_proj"},
        {"target_modules": "all-linear"},
        {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]},
        {"target_modules": ["q_proj"], "target_parameters": ["lm_head.weight"]},
        {"target_modules": ["q_proj"], "trainable_token_indices": [1, 2]},
        {"target_modules": ["q_proj"], "trainable_token_indices": {"embed_tokens": [1]}},
        {"target_modules": [None]},
        {"target_modules": None},
        b"[]",
        b"",
        b'\xef\xbb\xbf{"target_modules":["q_proj"]}',
        b'{"deep":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
    ids=range(14),
)
def test_anything_else_is_refused_as_an_adapter(tmp_path: Path, written: Any) -> None:
    with pytest.raises(PolicyError):
        checked(tmp_path, written)
