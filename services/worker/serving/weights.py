"""Full weights on disk: are they all there, and of the served model's form?

vLLM's reload frees the old layers before it reads the new ones: a directory with a tensor missing leaves an engine
whose next request kills it. So the directory is judged before anything is touched, by the headers alone.
"""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path
from typing import Any

import msgspec

_MOST_HEADER = 2**27
_FORM = ("architectures", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
         "num_key_value_heads", "vocab_size", "tie_word_embeddings", "rope_theta", "head_dim")  # fmt: skip
"""What two models must have in common for one engine to serve first one and then the other."""


class WeightsError(Exception):
    """The directory cannot be served in place of the base; the message says what is wrong."""


def weights_digest(directory: Path) -> str:
    """`sha256:…` over the configuration and every weights file, in name order. Raises `WeightsError`."""
    files = _files(directory)
    hasher = hashlib.sha256()
    for file in (directory / "config.json", *files):
        hasher.update(f"{file.name}\0{file.stat().st_size}\0".encode())
        with file.open("rb") as stream:
            while chunk := stream.read(2**20):
                hasher.update(chunk)
    return "sha256:" + hasher.hexdigest()


def validate(directory: Path, base: Path) -> None:
    """Raises `WeightsError` unless every tensor of `base` is in `directory`, whole and of the same shape.

    And for models whose embeddings are tied: no directory of theirs can be reloaded.
    """
    mine, theirs = _config(base), _config(directory)
    if mine.get("tie_word_embeddings"):
        # seen with vLLM 0.32: what it answers after such a reload is neither the old weights' nor the new ones'
        raise WeightsError(
            f"{base} ties its embeddings (tie_word_embeddings), which are not reloaded in place: serve an adapter"
        )
    for key in _FORM:
        if mine.get(key) != theirs.get(key):
            raise WeightsError(f"{directory}: {key} is {theirs.get(key)}, the served model's is {mine.get(key)}")
    wanted, found = _tensors(base), _tensors(directory)
    if missing := sorted(wanted.keys() - found.keys()):
        raise WeightsError(f"{directory}: {len(missing)} tensors are missing, {missing[0]} for one")
    if more := sorted(found.keys() - wanted.keys()):
        raise WeightsError(f"{directory}: {len(more)} tensors are not the served model's, {more[0]} for one")
    for name, shape in wanted.items():
        if found[name] != shape:
            raise WeightsError(f"{directory}: {name} has shape {found[name]}, the served model's has {shape}")


def _files(directory: Path) -> list[Path]:
    files = sorted(directory.glob("*.safetensors"))
    if not files or not (directory / "config.json").is_file():
        raise WeightsError(f"{directory} holds no model: config.json or *.safetensors is missing")
    return files


def _config(directory: Path) -> dict[str, Any]:
    _files(directory)
    try:
        config: dict[str, Any] = msgspec.json.decode((directory / "config.json").read_bytes(), type=dict)
    except msgspec.DecodeError as error:
        raise WeightsError(f"{directory}/config.json: {error}") from error
    return config


def _tensors(directory: Path) -> dict[str, list[int]]:
    """Name → shape, from the headers; each file must be as long as its header says."""
    found: dict[str, list[int]] = {}
    for file in _files(directory):
        size = file.stat().st_size
        with file.open("rb") as stream:
            raw = stream.read(8)
            length = struct.unpack("<Q", raw)[0] if len(raw) == 8 else _MOST_HEADER + 1
            if length > min(_MOST_HEADER, size):
                raise WeightsError(f"{file} is not a safetensors file")
            try:
                header: dict[str, Any] = msgspec.json.decode(stream.read(length), type=dict)
            except msgspec.DecodeError as error:
                raise WeightsError(f"{file} is not a safetensors file: {error}") from error
        header.pop("__metadata__", None)
        end = max((entry["data_offsets"][1] for entry in header.values()), default=0)
        if 8 + length + end != size:
            raise WeightsError(f"{file} is {size} bytes long, its header speaks of {8 + length + end}")
        found.update({name: entry["shape"] for name, entry in header.items()})
    return found
