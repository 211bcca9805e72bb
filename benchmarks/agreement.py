"""`evoplane bench agreement`: captured log-probabilities against a trainer's, for each dtype at either end."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from math import exp
from pathlib import Path
from typing import Any

from benchmarks.live import Say, live
from benchmarks.swap.traffic import Traffic
from registry.manifest import Manifest, Policy
from services.proxy.store import open_reader

DTYPES = ("float32", "bfloat16")
_ANSWERS, _TOKENS = 48, 16
_AGENT, _TENANT = "talker", "northwind"

Captured = tuple[list[int], list[int], list[float]]
"""Prompt ids, completion ids, captured log-probabilities."""


def run(var: Path, *, say: Say) -> list[dict[str, Any]]:
    """A row for each pair of dtypes."""
    bench = var.absolute() / "bench"
    bench.mkdir(parents=True, exist_ok=True)
    rows = []
    for server in DTYPES:
        folder = Path(tempfile.mkdtemp(prefix="agreement-", dir=bench))
        try:
            captured, base = _captured(folder, server, say)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        for trainer in DTYPES:
            say(f"scoring in {trainer} what was sampled in {server}")
            gaps = _gaps(base, trainer, captured)
            sizes = [abs(gap) for gap in gaps]
            rows.append(
                {
                    "server": server,
                    "trainer": trainer,
                    "tokens": len(gaps),
                    "mean": sum(sizes) / len(sizes),
                    "max": max(sizes),
                    "ratio_low": exp(min(gaps)),
                    "ratio_high": exp(max(gaps)),
                }
            )
    return rows


def _captured(folder: Path, dtype: str, say: Say) -> tuple[list[Captured], Path]:
    with live(folder / "var", say, environment={"worker.dtype": dtype}) as stack:
        stack.agent(_AGENT)
        name = stack.config.model.name
        version = stack.register(_AGENT, Manifest(policy=Policy(base=name, served_name=name)))
        stack.flip(_AGENT, version.version, "the first")
        traffic = Traffic(stack.base_url, stack.key(_AGENT), name, _ANSWERS, 8, _TOKENS)
        asyncio.run(traffic.run())
        if traffic.failed:
            raise RuntimeError(traffic.failed[0])
        reader = open_reader(stack.config)
        found = []
        for id in traffic.events:
            record = reader.record(_TENANT, id)
            assert record is not None, id
            tokens = reader.resolve(_TENANT, record)["tokens"]
            found.append((tokens["prompt_token_ids"], tokens["completion_token_ids"], tokens["logprobs"]))
        reader.close()
        return found, stack.config.model_dir


def _gaps(base: Path, dtype: str, captured: list[Captured]) -> list[float]:
    """Trainer's minus captured log-probability of every sampled token, nats."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=getattr(torch, dtype), local_files_only=True).eval()
    gaps: list[float] = []
    with torch.no_grad():
        for prompt, completion, logprobs in captured:
            logits = model(input_ids=torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1]
            scored = torch.log_softmax(logits.float(), -1)[torch.arange(len(completion)), torch.tensor(completion)]
            gaps += (scored - torch.tensor(logprobs)).tolist()
    return gaps
