"""What a training run is told: a `Job`, read from JSON and checked before anything heavy loads."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from services.worker.policies import ADAPTER_FILES, PolicyError, policy_digest

Positive = Annotated[int, msgspec.Meta(ge=1)]


class JobError(Exception):
    """The job can't be trained as given; the message says what to change."""


class Round(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an earlier round of training began with."""

    reward: float
    """Mean reward of its rows: what training optimises."""
    outcome: float
    """Share of held-out tasks solved by the policy it began with: what training is for."""


class Job(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One training job. Paths are resolved against the working directory."""

    base: Path
    """Directory of the base model (safetensors, transformers layout)."""
    examples: Path
    """JSON lines of the form in `services.worker.training.examples`."""
    heldout: Path | None = None
    """The same form; measured before and after, never trained on."""
    output: Path
    """Receives `adapter/`, `metrics.jsonl`, `result.json` and, while running, `checkpoint/`."""
    algorithm: str = "sft"
    """One of `services.worker.training.algorithms`, or of an installed package's entry points."""
    hyperparameters: dict[str, Any] = {}
    """The algorithm's own: its class's fields (`docs/learning.md`)."""
    initial_adapter: Path | None = None
    """Training goes on from this adapter instead of a fresh one."""
    weights: Literal["lora", "full"] = "lora"
    """What is trained: an adapter beside the frozen base, or every weight."""
    epochs: Positive = 4
    batch_size: Positive = 16
    """Examples per optimiser step, at least: groups and pairs stay together."""
    pack_tokens: Positive = 8192
    """Tokens computed at once, at most (a larger group is computed alone): bounds memory, changes no result."""
    learning_rate: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1e-3
    warmup_steps: Annotated[int, msgspec.Meta(ge=0)] = 4
    """Optimiser steps over which the rate rises; 0 for a job that goes on from an earlier one."""
    lora_rank: Positive = 16
    max_length: Positive = 1024
    """Longest prompt plus completion, tokens; longer examples are dropped and counted."""
    temperature: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    """Sampling temperature of the captured log-probabilities."""
    turn_discount: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    """γ per turn: rewards of later turns count this much less for the turns that led to them."""
    policy_version: Annotated[int, msgspec.Meta(ge=0)] | None = None
    """Version of the weights training starts from, counted as rows' `policy_versions` count."""
    max_staleness: Annotated[int, msgspec.Meta(ge=0)] | None = None
    """η: rows with a token sampled more than so many versions ago are dropped and counted."""
    logprob_tolerance: Annotated[float, msgspec.Meta(gt=0)] = 0.01
    """Mean difference, nats a token, between captured log-probabilities and those of the starting weights, above
    which training stops. fp32 at both ends gives 6e-6, bf16 at either 0.035 to 0.047: allow 0.1 there."""
    logprob_check: Literal["every", "first", "off"] = "every"
    """Compare them in all rows (a forward pass over them, before training), in the first step's, or not."""
    gradient_checkpointing: bool = False
    """Keep layers' inputs only and compute the rest again: less memory, a third more time."""
    history: list[Round] = []
    """Earlier rounds of this policy, oldest first: what the reward-hack watch looks at."""
    stop_on_reward_hacking: bool = True
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
        free = {"output", "checkpoint_every", "threads", "base", "examples", "heldout", "initial_adapter"}
        told = {name: getattr(self, name) for name in self.__struct_fields__ if name not in free}
        hasher = hashlib.sha256(msgspec.json.encode(told, order="sorted"))
        hasher.update((self.base / "config.json").read_bytes())
        adapter = self.initial_adapter / ADAPTER_FILES[1] if self.initial_adapter else None
        for file in (self.examples, self.heldout, adapter):
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
    if job.initial_adapter is not None:
        try:
            policy_digest(job.initial_adapter)
        except PolicyError as error:
            raise JobError(f"initial_adapter: {error}") from error
        if job.weights == "full":
            raise JobError("initial_adapter goes with weights = lora: full weights start from `base`")
    if job.max_staleness is not None and job.policy_version is None:
        raise JobError("max_staleness needs policy_version, the version training starts from")
    return job


def check_fields(told: Mapping[str, Any]) -> None:
    """Raises `JobError` for a field that a job does not have, or a value it can't have; files are not looked at."""
    try:
        msgspec.convert({"base": ".", "examples": ".", "output": ".", **told}, type=Job, dec_hook=_decode_path)
    except msgspec.ValidationError as error:
        known = ", ".join(f for f in Job.__struct_fields__ if f not in ("base", "examples", "output"))
        raise JobError(f"job: {error}; a job's fields are {known}") from error


def _decode_path(kind: type, value: object) -> object:
    if kind is Path and isinstance(value, str):
        return Path(value)
    raise msgspec.ValidationError(f"expected {kind.__name__}, got {type(value).__name__}")
