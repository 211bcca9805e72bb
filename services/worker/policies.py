"""A policy's directory: a PEFT adapter named by the digest of what decides its behaviour.

Training and serving agree on this identity, so a digest in a manifest, an event or a lineage record
always means the same weights.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import msgspec

ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")
"""What makes an adapter, in digest order."""


LORA_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""The modules an adapter may change; training changes all of them, and serving is set up for no others. An adapter of
the embedding or of the output layer would cost every decoded token a pass over the vocabulary."""


class PolicyError(Exception):
    """The directory does not hold a servable adapter; the message says what is missing."""


def policy_digest(directory: Path) -> str:
    """`sha256:…` over the adapter's files, each preceded by its name and length.

    Raises `PolicyError` when a file is missing or empty.
    """
    for name in ADAPTER_FILES:
        file = directory / name
        if not file.is_file() or not file.stat().st_size:
            raise PolicyError(f"{directory} is not an adapter: {name} is missing or empty")
    return _digest([directory / name for name in ADAPTER_FILES])


def check_targets(directory: Path) -> None:
    """Raises `PolicyError` when the adapter names modules that are not served, or replaces whole ones."""
    try:
        config = msgspec.json.decode((directory / ADAPTER_FILES[0]).read_bytes(), type=_Config)
    except (msgspec.DecodeError, RecursionError) as error:
        raise PolicyError(f"{directory}: {ADAPTER_FILES[0]} is not an adapter's configuration: {error}") from error
    named = [config.target_modules] if isinstance(config.target_modules, str) else config.target_modules
    others = sorted({name for name in named if not _served(name)})
    others += [*(config.modules_to_save or []), *(config.target_parameters or [])]
    others += ["single tokens' embeddings"] if config.trainable_token_indices else []
    if others:
        raise PolicyError(f"{directory} changes {', '.join(others)}; served are changes of {', '.join(LORA_TARGETS)}")


def _served(name: str) -> bool:
    """Only names: a pattern (`lm_head|x.q_proj`) may mean more modules than the one it ends with."""
    return name.rpartition(".")[-1] in LORA_TARGETS and name.replace(".", "").replace("_", "").isalnum()


class _Config(msgspec.Struct):
    target_modules: list[str] | str = []
    modules_to_save: list[str] | None = None
    target_parameters: list[str] | None = None
    trainable_token_indices: list[int] | dict[str, list[int]] | None = None


def model_digest(directory: Path) -> str:
    """The same of a whole model: its configuration and weights. Raises `PolicyError` when either is missing."""
    weights = sorted(directory.glob("*.safetensors"))
    if not (directory / "config.json").is_file() or not weights:
        raise PolicyError(f"{directory} is not a model: config.json or *.safetensors is missing")
    return _digest([directory / "config.json", *weights])


def _digest(files: Sequence[Path]) -> str:
    hasher = hashlib.sha256()
    for file in files:
        hasher.update(f"{file.name}\0{file.stat().st_size}\0".encode())
        with file.open("rb") as stream:
            while chunk := stream.read(2**20):
                hasher.update(chunk)
    return "sha256:" + hasher.hexdigest()
