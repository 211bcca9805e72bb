"""`python -m services.worker.training.run --job job.json`: one training job, start to adapter.

Prints one line per optimiser step and a last line of JSON. Exit 0: `result.json` is written. Exit 2: the
job is refused, with the reason on stderr. Killed at any moment, the same command continues; finished,
it answers from `result.json` at once.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import msgspec

from services.worker.files import write_atomically
from services.worker.policies import policy_digest
from services.worker.training.algorithms import algorithm
from services.worker.training.examples import Example, read_examples
from services.worker.training.job import Job, JobError, read_job
from services.worker.training.metrics import MetricsLog

REFUSED = 2

# Two compute threads beside other processes wait for each other thousands of times a step. Waiting by
# spinning (libgomp's default) then costs ten times the computation; read before torch is first imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def run(job: Job) -> dict[str, Any]:
    """Train and write the adapter, the metrics and `result.json`; returns the latter."""
    result_file = job.output / "result.json"
    fingerprint = job.fingerprint()
    if (done := _finished(result_file, fingerprint)) is not None:
        return done
    algorithm(job.algorithm, job.hyperparameters)
    if job.algorithm != "sft":
        raise JobError(f"algorithm: {job.algorithm} is defined, but the loop trains sft only so far")
    vocab_size = _vocab_size(job.base)
    examples, dropped = read_examples(job.examples, max_length=job.max_length, vocab_size=vocab_size)
    heldout: list[Example] = []
    heldout_dropped: dict[str, int] = {}
    if job.heldout is not None:
        heldout, heldout_dropped = read_examples(job.heldout, max_length=job.max_length, vocab_size=vocab_size)
    if len(examples) < job.min_examples:
        reasons = ", ".join(f"{count} {reason}" for reason, count in dropped.items()) or "none dropped"
        raise JobError(
            f"examples: {len(examples)} usable of {len(examples) + sum(dropped.values())} ({reasons}); "
            f"min_examples is {job.min_examples}"
        )
    job.output.mkdir(parents=True, exist_ok=True)

    from services.worker.training.loop import train  # torch and transformers: seconds, after the checks
    from services.worker.training.probe import make_probe

    metrics = MetricsLog(job.output / "metrics.jsonl")
    trained = train(job, examples, heldout, metrics.write)
    adapter = job.output / "adapter"
    fresh = job.output / "adapter.new"
    shutil.rmtree(fresh, ignore_errors=True)
    trained.model.save_pretrained(str(fresh), save_embedding_layers=False)  # "auto" asks the hub
    (fresh / "README.md").unlink(missing_ok=True)  # PEFT's empty model card
    shutil.rmtree(adapter, ignore_errors=True)
    fresh.rename(adapter)
    result = {
        "fingerprint": fingerprint,
        "digest": policy_digest(adapter),
        "adapter": str(adapter),
        "algorithm": job.algorithm,
        "steps": trained.progress.step,
        "tokens": trained.progress.tokens,
        "seconds": round(trained.progress.seconds, 1),
        "examples": len(examples),
        "dropped": dropped,
        "heldout_examples": len(heldout),
        "heldout_dropped": heldout_dropped,
        "train_loss": metrics.loss_of_last_epoch(),
        "heldout_loss_before": trained.progress.heldout_loss_before,
        "heldout_loss": trained.heldout.loss if trained.heldout else None,
        "heldout_exact": trained.heldout.exact if trained.heldout else None,
        "resumed_from": trained.progress.resumed_from,
        "probe": make_probe(trained.model, heldout or examples),
    }
    write_atomically(result_file, msgspec.json.encode(result))
    for leftover in job.output.glob("checkpoint*"):
        shutil.rmtree(leftover)
    return result


def _finished(file: Path, fingerprint: str) -> dict[str, Any] | None:
    if not file.is_file():
        return None
    result: dict[str, Any] = msgspec.json.decode(file.read_bytes())
    whole = result.get("fingerprint") == fingerprint and Path(result["adapter"]).is_dir()
    return result if whole else None


def _vocab_size(base: Path) -> int:
    return int(msgspec.json.decode((base / "config.json").read_bytes())["vocab_size"])


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m services.worker.training.run", description=__doc__)
    parser.add_argument("--job", type=Path, required=True, help="the job file (JSON)")
    parser.add_argument("--threads", type=int, help="compute threads, instead of the job's")
    options = parser.parse_args(argv)
    try:
        job = read_job(options.job)
        if options.threads:
            job = msgspec.structs.replace(job, threads=options.threads)
        result = run(job)
    except JobError as error:
        print(f"job refused: {error}", file=sys.stderr)
        return REFUSED
    print(msgspec.json.encode({k: v for k, v in result.items() if k != "probe"}).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
