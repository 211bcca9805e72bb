"""`evoplane bench swap`: 200 requests through the real gateway while the weights are changed 5 times."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from itertools import accumulate
from pathlib import Path
from statistics import median
from typing import Any

import httpx

from benchmarks.live import Live, Say, live
from benchmarks.machine import load_average
from benchmarks.swap.adapters import Adapter, Trainer, damaged
from benchmarks.swap.traffic import Traffic
from evoplane.settings import settings
from registry.manifest import Manifest, Policy
from services.proxy.store import open_reader

TOLERANCE = 1e-3
"""Nats: what a recorded and a re-scored log-probability of the same weights may differ by (fp32: 4e-5 was measured)."""
_UPDATES = 5
_CLIENTS = 8
_AGENT = "talker"


def run(var: Path, *, quick: bool, say: Say) -> dict[str, Any]:
    """The figures and what they are made of."""
    total, tokens = (40, 8) if quick else (200, 16)
    bench = var.absolute() / "bench"
    bench.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="swap-", dir=bench))
    started, load = time.monotonic(), load_average()
    try:
        say("making adapters")
        trainer = Trainer(settings().model_dir)
        probe = ([1, 4093, 198, 19556, 216, 33], [34, 35, 36, 2])
        adapters = [trainer.make(f"v{n}", n, folder / "adapters", probe) for n in range(1, _UPDATES + 2)]
        with live(folder / "var", say) as stack:
            first, *others = adapters
            stack.agent(_AGENT)
            _load(stack, first)
            stack.flip(_AGENT, _registered(stack, first), "the first")
            key, model = stack.key(_AGENT), stack.config.model.name
            traffic = Traffic(stack.base_url, key, model, total, _CLIENTS, tokens)
            refusals, swaps = asyncio.run(_swapped(stack, traffic, first, others, folder, say))
        say("scoring every token again under the version it is recorded with")
        checked = _checked(folder / "var", trainer, traffic.events, [a.name for a in adapters])
    except Exception:
        say(f"what the servers said is in {folder / 'var'}")
        raise
    shutil.rmtree(folder, ignore_errors=True)
    parts = {part: round(median(swap[part] for swap in swaps), 3) for part in swaps[0] if part != "probe_difference"}
    return {
        "failed_requests": len(traffic.failed),
        "swap_s_median": parts.pop("total"),
        "wrong_version_tokens": checked["wrong_version_tokens"],
        "probe_max_difference": max(swap["probe_difference"] for swap in swaps),
        "requests": total,
        "updates": len(swaps),
        "swap_parts_s_median": parts,
        "mixed_version_turns_unmarked": checked["mixed_unmarked"],
        **{k: checked[k] for k in ("tokens", "turns", "versions_seen", "max_difference", "least_other_difference")},
        "damaged_adapter": refusals,
        "failures": traffic.failed[:5],
        "seconds": round(time.monotonic() - started, 1),
        "load_average": [load, load_average()],
    }


async def _swapped(
    stack: Live, traffic: Traffic, first: Adapter, others: list[Adapter], folder: Path, say: Say
) -> tuple[dict[str, Any], list[dict[str, float]]]:
    running = asyncio.create_task(traffic.run())
    swaps: list[dict[str, float]] = []
    serving, refusal = first, {}
    try:
        for number, adapter in enumerate(others, 1):
            await traffic.reached(number / (len(others) + 1))
            if number == 1:
                refusal = await asyncio.to_thread(_refused, stack, damaged(adapter, "damaged", folder / "adapters"))
            swaps.append(await asyncio.to_thread(_swap, stack, serving, adapter))
            say(f"update {number}: {swaps[-1]}, {traffic.done} of {traffic.total} answered")
            serving = adapter
        await running
    finally:
        running.cancel()
    return refusal, swaps


def _swap(stack: Live, old: Adapter, new: Adapter) -> dict[str, float]:
    """Load beside, probe, flip, drain, unload: the seconds of each."""
    began = time.monotonic()
    loaded = _load(stack, new)
    flip = stack.flip(_AGENT, _registered(stack, new), "an update")
    unloading = time.monotonic()
    gone = httpx.delete(f"{stack.config.worker_url}/v1/policies/{old.name}", timeout=120)
    gone.raise_for_status()
    return {
        "load": loaded["seconds"]["loading"],
        "probe": loaded["seconds"]["probing"],
        "flip": round(flip, 4),
        "drain_and_unload": round(time.monotonic() - unloading, 4),
        "total": round(time.monotonic() - began, 4),
        "probe_difference": loaded["probe_difference"],
    }


def _load(stack: Live, adapter: Adapter) -> dict[str, Any]:
    reply = httpx.post(f"{stack.config.worker_url}/v1/policies", json=_body(adapter), timeout=180)
    if reply.is_error:
        raise RuntimeError(f"{adapter.name} was not loaded: {reply.status_code} {reply.text}")
    return dict(reply.json())


def _refused(stack: Live, adapter: Adapter) -> dict[str, Any]:
    """What the worker says to an adapter that is not what was trained; it must not be served afterwards."""
    reply = httpx.post(f"{stack.config.worker_url}/v1/policies", json=_body(adapter), timeout=180)
    served = httpx.get(f"{stack.config.worker_url}/v1/policies").json()["policies"]
    return {
        "refused": reply.status_code == 409 and adapter.name not in {policy["name"] for policy in served},
        "max_difference": reply.json().get("error", {}).get("max_difference"),
    }


def _body(adapter: Adapter) -> dict[str, Any]:
    return {"name": adapter.name, "path": str(adapter.path), "digest": adapter.digest, "probe": adapter.probe}


def _registered(stack: Live, adapter: Adapter) -> str:
    base = stack.config.model.name
    policy = Policy(base=base, served_name=adapter.name, adapter=adapter.digest, path=str(adapter.path))
    return stack.register(_AGENT, Manifest(policy=policy)).version


def _checked(var: Path, trainer: Trainer, events: list[str], names: list[str]) -> dict[str, Any]:
    """Every recorded token scored by the trainer under the version it is recorded with, and under another one."""
    from evoplane.settings import Settings

    reader = open_reader(Settings.model_validate({"paths": {"var": str(var)}}))
    wrong = mixed = count = 0
    worst, least = 0.0, float("inf")
    seen: set[str] = set()
    for id in events:
        record = reader.record("northwind", id)
        if record is None:
            raise RuntimeError(f"event {id} was told to a client and is not in the log")
        tokens = reader.resolve("northwind", record)["tokens"]
        prompt, completion = tokens["prompt_token_ids"], tokens["completion_token_ids"]
        runs = [(length, version.split("/")[0]) for length, version in tokens["policy_versions"]]
        bounds = [0, *accumulate(length for length, _ in runs)]
        bad = 0
        for (_, version), start, end in zip(runs, bounds, bounds[1:], strict=False):
            seen.add(version)
            scored = trainer.score(version, prompt, completion)[start:end]
            gaps = [abs(a - b) for a, b in zip(scored, tokens["logprobs"][start:end], strict=True)]
            worst, bad = max(worst, *gaps), bad + sum(gap > TOLERANCE for gap in gaps)
        other = names[(names.index(runs[0][1]) + 1) % len(names)]
        apart = trainer.score(other, prompt, completion)
        least = min(least, max(abs(a - b) for a, b in zip(apart, tokens["logprobs"], strict=True)))
        count, wrong = count + len(completion), wrong + bad + (len(completion) - bounds[-1])
        mixed += 0 < bad < len(completion)
    return {
        "wrong_version_tokens": wrong,
        "mixed_unmarked": mixed,
        "tokens": count,
        "turns": len(events),
        "versions_seen": sorted(seen),
        "max_difference": worst,
        "least_other_difference": least,
    }
