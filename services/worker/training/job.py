"""What a training run is told: a `Job`, read from JSON and checked before anything heavy loads."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated, Literal

import msgspec

Positive = Annotated[int, msgspec.Meta(ge=1)]


class JobError(Exception):
    """The job can't be trained as given; the message says what to change."""


class Job(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One training job. Paths are resolved against the working directory."""

    base: Path
    """Directory of the base model (safetensors, transformers layout)."""
    examples: Path
    """JSON lines of `{"prompt_token_ids", "completion_token_ids", "weight"}`."""
    heldout: Path | None = None
    """The same form; measured before and after, never trained on."""
    output: Path
    """Receives `adapter/`, `metrics.jsonl`, `result.json` and, while running, `checkpoint/`."""
    algorithm: Literal["sft"] = "sft"
    epochs: Positive = 4
    batch_size: Positive = 16
    """Examples per optimiser step."""
    learning_rate: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1e-3
    lora_rank: Positive = 16
    max_length: Positive = 1024
    """Longest prompt plus completion, tokens; longer examples are dropped and counted."""
    min_examples: Positive = 8
    """Fewer usable examples than this are refused."""
    checkpoint_every: Positive = 10
    """Optimiser steps between checkpoints: at most this many are repeated after a crash."""
    seed: int = 0
    threads: Positive = 2

    def fingerprint(self) -> str:
        """Digest of everything that decides the result: a checkpoint of another job is not resumed.

        Where the result is written, how often it is saved and how many threads compute it are left out.
        """
        free = {"output", "checkpoint_every", "threads", "base", "examples", "heldout"}
        told = {name: getattr(self, name) for name in self.__struct_fields__ if name not in free}
        hasher = hashlib.sha256(msgspec.json.encode(told, order="sorted"))
        hasher.update((self.base / "config.json").read_bytes())
        for file in (self.examples, self.heldout):
            hasher.update(b"\0" + (file.read_bytes() if file else b""))
        return "sha256:" + hasher.hexdigest()


def read_job(path: Path) -> Job:
    """Read and check a job file; raises `JobError` naming the wrong key or the missing file."""
    try:
        job = msgspec.json.decode(path.read_bytes(), type=Job, dec_hook=_decode_path)
    except OSError as error:
        raise JobError(f"cannot read the job file {path}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise JobError(f"{path}: {error}") from error
    if not (job.base / "config.json").is_file():
        raise JobError(f"base: {job.base} holds no model (no config.json); `make model` makes the default one")
    for name, file in (("examples", job.examples), ("heldout", job.heldout)):
        if file is not None and not file.is_file():
            raise JobError(f"{name}: no such file {file}")
    return job


def _decode_path(kind: type, value: object) -> object:
    if kind is Path and isinstance(value, str):
        return Path(value)
    raise msgspec.ValidationError(f"expected {kind.__name__}, got {type(value).__name__}")
