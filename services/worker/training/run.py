"""`python -m services.worker.training.run --job job.json`: one training job, start to adapter.

Prints one line per optimiser step and a last line of JSON. Exit 0: `result.json` is written. Exit 2: the
job is refused, or can't be gone on with, with the reason on stderr. Killed at any moment, the same command
continues; finished, it answers from `result.json` at once.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from evoplane.files import write_durably
from services.worker.training.algorithms import Algorithm, algorithm
from services.worker.training.examples import Example, read_examples
from services.worker.training.job import Job, JobError, read_job
from services.worker.training.metrics import MetricsLog
from services.worker.training.returns import discount
from services.worker.training.reward_watch import Watch, watch
from services.worker.training.staleness import drop_stale

REFUSED = 2

# Two compute threads beside other processes wait for each other thousands of times a step. Waiting by
# spinning (libgomp's default) then costs ten times the computation; read before torch is first imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def run(job: Job) -> dict[str, Any]:
    """Train and write the adapter or model, the metrics and `result.json`; returns the latter."""
    result_file = job.output / "result.json"
    fingerprint = job.fingerprint()
    if (done := _finished(result_file, fingerprint)) is not None:
        return done
    chosen = algorithm(job.algorithm, job.hyperparameters)
    examples, dropped, ages = _training_rows(job, chosen)
    watched = _watch(job)
    vocab_size = _vocab_size(job.base)
    heldout: list[Example] = []
    heldout_dropped: dict[str, int] = {}
    if job.heldout is not None:
        heldout, heldout_dropped = read_examples(job.heldout, max_length=job.max_length, vocab_size=vocab_size)
    job.output.mkdir(parents=True, exist_ok=True)

    from services.worker.training.export import export  # torch and transformers: seconds, after the checks
    from services.worker.training.loop import Trainer
    from services.worker.training.probe import make_probe

    metrics = MetricsLog(job.output / "metrics.jsonl")
    trained = Trainer(job, chosen, examples, metrics.write).train(heldout)
    probe = make_probe(trained.accelerator, trained.policy, heldout or examples)
    exported = export(job, trained.accelerator, trained.policy)
    result = {
        "fingerprint": fingerprint,
        "digest": exported.digest,
        exported.kind: str(exported.directory),
        "algorithm": job.algorithm,
        "steps": trained.progress.step,
        "tokens": trained.progress.tokens,
        "seconds": round(trained.progress.seconds, 1),
        "examples": len(examples),
        "dropped": dropped,
        "staleness": ages,
        "reward": _mean_reward(examples),
        "reward_watch": msgspec.to_builtins(watched),
        "logprob_gap_mean": trained.logprob_gap[0] if trained.logprob_gap else None,
        "logprob_gap_max": trained.logprob_gap[1] if trained.logprob_gap else None,
        "heldout_examples": len(heldout),
        "heldout_dropped": heldout_dropped,
        "heldout_loss_before": trained.progress.heldout_loss_before,
        "heldout_loss": trained.heldout.loss if trained.heldout else None,
        "heldout_exact": trained.heldout.exact if trained.heldout else None,
        "resumed_from": trained.progress.resumed_from,
        "probe": probe,
    }
    if trained.accelerator.is_main_process:
        result["train_loss"] = metrics.loss_of_last_epoch()
        write_durably(result_file, msgspec.json.encode(result))
        for leftover in [*job.output.glob("checkpoint*"), *job.output.glob("scores.*")]:
            shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
    trained.accelerator.wait_for_everyone()
    return result


def _training_rows(job: Job, chosen: Algorithm) -> tuple[list[Example], dict[str, int], dict[str, int]]:
    """(usable rows, how many were dropped by reason, all rows by age). Raises `JobError` when too few are left."""
    examples, dropped = read_examples(job.examples, max_length=job.max_length, vocab_size=_vocab_size(job.base))
    examples, stale, ages = drop_stale(examples, job.policy_version, job.max_staleness)
    if job.turn_discount is not None:
        examples = discount(examples, job.turn_discount)
    examples, lacking = chosen.select(examples)
    dropped = dict(Counter(dropped) + Counter(stale) + Counter(lacking))
    if len(examples) < job.min_examples:
        reasons = ", ".join(f"{count} {reason}" for reason, count in dropped.items()) or "none dropped"
        raise JobError(
            f"examples: {len(examples)} usable of {len(examples) + sum(dropped.values())} ({reasons}); "
            f"min_examples is {job.min_examples}"
        )
    return examples, dropped, ages


def _watch(job: Job) -> Watch:
    """The reward-hack watch over earlier rounds; raises `JobError` when it stops training."""
    watched = watch(job.history)
    if watched.verdict == "suspected" and job.stop_on_reward_hacking:
        raise JobError(
            f"reward hacking suspected: {watched.detail}. Look at what is rewarded; "
            "stop_on_reward_hacking = false trains nevertheless"
        )
    return watched


def _mean_reward(examples: Sequence[Example]) -> float | None:
    rewards = [e.reward for e in examples if e.reward is not None]
    return sum(rewards) / len(rewards) if rewards else None


def _finished(file: Path, fingerprint: str) -> dict[str, Any] | None:
    if not file.is_file():
        return None
    result: dict[str, Any] = msgspec.json.decode(file.read_bytes())
    directory = result.get("adapter") or result.get("model")
    whole = result.get("fingerprint") == fingerprint and directory and Path(directory).is_dir()
    return result if whole else None


class _Config(msgspec.Struct):
    vocab_size: int


def _vocab_size(base: Path) -> int:
    try:
        return msgspec.json.decode((base / "config.json").read_bytes(), type=_Config).vocab_size
    except msgspec.DecodeError as error:
        raise JobError(f"base: {base / 'config.json'} is no language model's: {error}") from error


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m services.worker.training.run",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
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
