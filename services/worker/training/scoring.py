"""What is computed about the rows before training: log-probabilities under the starting and reference weights,
and under the teacher (the starting weights, told a hint).

They are kept beside the checkpoint: a resumed run's weights are no longer those it started from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from accelerate import Accelerator
from msgspec.structs import replace
from safetensors import safe_open
from safetensors.torch import save_file

from services.worker.training.algorithms import Needs
from services.worker.training.batches import packs, units
from services.worker.training.examples import Example
from services.worker.training.job import Job
from services.worker.training.packing import pack

_FILE = "scores.safetensors"


@dataclass
class Scored:
    """By row number, [C] each; rows that needed none are absent."""

    start: dict[int, torch.Tensor] = field(default_factory=dict)
    reference: dict[int, torch.Tensor] = field(default_factory=dict)
    teacher: dict[int, torch.Tensor] = field(default_factory=dict)


def score_rows(
    job: Job,
    policy: torch.nn.Module,
    accelerator: Accelerator,
    examples: Sequence[Example],
    needs: Needs,
    first_step: Sequence[int],
    say: Callable[[str], None],
) -> Scored:
    """Everything the algorithm and the agreement check need; read back if this job computed it before."""
    file = job.output / _FILE
    fingerprint = job.fingerprint()
    if (known := _read(file, fingerprint)) is not None:
        return known
    captured = {i for i, e in enumerate(examples) if e.logprobs is not None}
    start = set(range(len(examples))) if needs.start else set()
    if job.logprob_check != "off":
        start |= captured if job.logprob_check == "every" else captured & set(first_step)
    reference = set(range(len(examples))) if needs.reference else set()
    hinted = {i: _hinted(e) for i, e in enumerate(examples) if needs.teacher and e.teacher_logprobs is None}
    wanted = len(start) + len(reference) + len(hinted)
    found = Scored()
    if not wanted:
        return found
    say(f"scoring {wanted} rows under the starting weights")
    rows = dict(enumerate(examples))
    found.start = _score(job, policy, accelerator, {i: rows[i] for i in sorted(start)})
    found.teacher = _score(job, policy, accelerator, {i: e for i, e in hinted.items() if e is not None})
    if job.initial_adapter is None and reference <= start:
        found.reference = {i: found.start[i] for i in reference}
    else:
        with accelerator.unwrap_model(policy).as_reference():
            found.reference = _score(job, policy, accelerator, {i: rows[i] for i in sorted(reference)})
    if accelerator.is_main_process:
        _write(file, fingerprint, found)
    accelerator.wait_for_everyone()
    return found


def _hinted(example: Example) -> Example | None:
    if example.hint_prompt_token_ids is None:
        return None
    return replace(example, prompt_token_ids=example.hint_prompt_token_ids)


def _score(
    job: Job, policy: torch.nn.Module, accelerator: Accelerator, rows: dict[int, Example]
) -> dict[int, torch.Tensor]:
    """Every process scores all rows: its weights may be a shard, and all of them are needed to compute anything."""
    numbers, examples = list(rows), list(rows.values())
    found: dict[int, torch.Tensor] = {}
    training = policy.training
    policy.eval()
    with torch.no_grad():
        for members in packs(examples, units(examples, pairs=False), job.pack_tokens, ranks=1)[0] if examples else []:
            batch = [examples[i] for i in members]
            output = policy(pack(batch).to(accelerator.device), job.temperature)
            lengths = [len(e.completion_token_ids) for e in batch]
            for i, logprobs in zip(members, output[0].cpu().split(lengths), strict=True):
                found[numbers[i]] = logprobs.clone()
    policy.train(training)
    return found


def _write(file: Path, fingerprint: str, scored: Scored) -> None:
    tensors = {f"{name}.{i}": logprobs.clone() for name, rows in vars(scored).items() for i, logprobs in rows.items()}
    fresh = file.with_suffix(".new")
    save_file(tensors, fresh, metadata={"fingerprint": fingerprint})
    fresh.rename(file)


def _read(file: Path, fingerprint: str) -> Scored | None:
    if not file.is_file():
        return None
    with safe_open(file, "pt") as tensors:
        if (tensors.metadata() or {}).get("fingerprint") != fingerprint:
            return None
        found = Scored()
        for key in tensors.keys():  # noqa: SIM118  safetensors' handle is no mapping
            name, number = key.split(".")
            getattr(found, name)[int(number)] = tensors.get_tensor(key)
    return found


def comparable(example: Example, policy_version: int | None) -> list[bool]:
    """Tokens whose captured log-probability must equal the starting weights': the policy's own, not forced by a
    grammar, sampled by exactly these weights. Rows that don't say by which are taken to be."""
    own = [True] * len(example.completion_token_ids)
    for start, end in [*example.observed, *example.forced]:
        own[start:end] = [False] * (end - start)
    if policy_version is not None:
        for span in example.policy_versions or ():
            if span.version != policy_version:
                own[span.start : span.end] = [False] * (span.end - span.start)
    return own


def gaps(
    examples: Iterable[tuple[int, Example]], scored: Scored, policy_version: int | None
) -> list[tuple[int, torch.Tensor]]:
    """(row number, captured − computed log-probability of each comparable token)."""
    found = []
    for i, example in examples:
        if example.logprobs is None or i not in scored.start:
            continue
        mask = torch.tensor(comparable(example, policy_version), dtype=torch.bool)
        found.append((i, (torch.tensor(example.logprobs) - scored.start[i])[mask]))
    return found
