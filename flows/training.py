"""From a snapshot to an adapter: `dvc repro` for the training set, then the worker's training program."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import yaml

from evoplane.settings import Settings
from flows import locks, snapshot, tenancy
from flows.training_set import MAX_EXAMPLES
from registry import control, pointers
from registry.tenants import RegistryError
from services.worker import client, process

_STAGE = Path(__file__).parents[1] / "dvc.yaml"
MAX_ROWS = 10_000
_POLL_S = 1.0
_FOLDER_WAIT_S = 60.0
"""A trainer whose parent died is told to end by the kernel, and finishes a step first."""


class TrainingFailed(Exception):
    """No adapter came out; the message says why."""


class TrainingSet(msgspec.Struct, frozen=True):
    id: str
    """DVC's directory hash of the set."""
    path: str
    train: int
    heldout: int
    dropped: dict[str, int]


class Trained(msgspec.Struct, frozen=True):
    digest: str
    path: str
    """Relative to the run-time directory."""
    result: dict[str, Any]


Kind = Literal["sft", "corrected", "hints", "rft", "groups", "preferences"]
"""Of training sets: `training_set`, `corrected_sets`, `row_sets`."""


def make_training_set(
    config: Settings,
    agent: str,
    kind: Kind = "sft",
    tenants: Sequence[str] | None = None,
    temperature: float = 1.0,
    repository: Path | None = None,
) -> TrainingSet:
    """Run the training-set stage on the agent's current snapshot, in the deployment's repository unless another is
    given; unchanged inputs cost nothing.

    `tenants` are those whose data may be in one set (`flows.tenancy` says who); None leaves that to `tenancy`, too.
    Raises `TrainingFailed`, also for a snapshot that the data gate has not passed.
    """
    root = snapshot.prepare(config, repository)
    folder = root / agent
    _require_gate(folder)
    shutil.copy(_STAGE, folder / "dvc.yaml")
    params = {
        "python": sys.executable,
        "model_dir": str(config.model_dir.resolve()),
        "heldout_share": config.evolve.heldout_share,
        "limit": MAX_EXAMPLES if kind in ("sft", "corrected", "hints") else MAX_ROWS,
        "kind": kind,
        "tenants": list(_together(config, folder) if tenants is None else tenants),
        "versions": weights_served(config, agent),
        "temperature": temperature,
    }
    (folder / "params.yaml").write_text(yaml.safe_dump({"training_set": params}))
    # DVC's stage cache takes the working directory for a part of the repository
    with snapshot.writer_lock(root), contextlib.chdir(folder):
        from dvc.exceptions import DvcException
        from dvc.repo import Repo

        try:
            with Repo(str(root)) as repo:
                repo.reproduce("dvc.yaml:training-set")
        except DvcException as error:
            raise TrainingFailed(f"the training set could not be made: {error}") from error
    output = folder / "training-set"
    id = snapshot.directory_hash(output)
    locked = yaml.safe_load((folder / "dvc.lock").read_text())["stages"]["training-set"]["outs"][0]["md5"]
    if locked != id:
        raise TrainingFailed(f"dvc.lock names the training set {locked}, its content hashes to {id}")
    report = json.loads((output / "report.json").read_text())
    return TrainingSet(id, str(output), report["train"], report["heldout"], report["dropped"])


def weights_served(config: Settings, agent: str) -> list[str]:
    """Names of the weights this agent has been served with, oldest first: their positions are the version numbers
    that training counts staleness by."""
    known = pointers.versions(control.connect(config.control_db), agent)
    names = [config.model.name, *(version.manifest.policy.served_name for version in known.values())]
    return list(dict.fromkeys(names))


def _together(config: Settings, folder: Path) -> list[str]:
    try:
        return tenancy.together(config, folder / "trajectories")
    except RegistryError as error:
        raise TrainingFailed(str(error)) from error


def _require_gate(folder: Path) -> None:
    file = folder / snapshot.GATE
    verdict = json.loads(file.read_text()) if file.exists() else None
    if verdict is None or verdict["snapshot"] != snapshot.directory_hash(folder / "trajectories"):
        raise TrainingFailed(f"the data gate has not judged the present snapshot of {folder.name}")
    if not verdict["passed"]:
        raise TrainingFailed(f"the data gate refused the snapshot of {folder.name}: {verdict['summary']}")


def train(
    config: Settings,
    agent: str,
    training_set: TrainingSet,
    on_metrics: Callable[[dict[str, Any]], None],
    options: Mapping[str, Any] | None = None,
    scratch: Path | None = None,
) -> Trained:
    """Train an adapter (by SFT unless `options`, fields of the job, say otherwise); `on_metrics` receives every line of
    metrics as it is written. With `scratch`, a folder within the run-time directory, everything is left there, also an
    adapter that is not among the policies yet.

    An interrupted run of the same set goes on from its checkpoint; the trainer never outlives this process.
    Raises `TrainingFailed`.
    """
    kept = config.var / "training" / agent / training_set.id.removesuffix(".dir")[:16]
    work = (scratch or kept).resolve()
    work.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(locks.exclusive(work / ".lock", _FOLDER_WAIT_S))
        except locks.Busy as error:
            raise TrainingFailed(f"another process trains in {work}: {error}") from error
        return _train(config, training_set, work, on_metrics, options or {}, keep=scratch is None)


def _train(
    config: Settings,
    training_set: TrainingSet,
    work: Path,
    on_metrics: Callable[[dict[str, Any]], None],
    more: Mapping[str, Any],
    keep: bool,
) -> Trained:
    data = Path(training_set.path)
    evolve = config.evolve
    options = {
        "algorithm": "sft",
        "epochs": evolve.epochs,
        "batch_size": evolve.batch_size,
        "learning_rate": evolve.learning_rate,
        "lora_rank": evolve.lora_rank,
        "seed": 0,
        "threads": config.worker.threads,
        **more,
    }
    heldout = data / "heldout.jsonl" if training_set.heldout else None
    return run_job(config, work, data / "train.jsonl", heldout, options, on_metrics, keep=keep)


def run_job(
    config: Settings,
    work: Path,
    examples: Path,
    heldout: Path | None,
    options: Mapping[str, Any],
    on_metrics: Callable[[dict[str, Any]], None],
    keep: bool = True,
) -> Trained:
    """Run the worker's training program in `work` and `keep` the adapter among the policies. `options` are fields of
    `services.worker.training.job.Job`. Raises `TrainingFailed` with the trainer's own reason.
    """
    job = {
        "base": str(config.model_dir.resolve()),
        "examples": str(examples.resolve()),
        "heldout": str(heldout.resolve()) if heldout else None,
        "output": str(work.resolve()),
        "max_length": config.worker.max_model_len,
        **options,
    }
    (work / "job.json").write_text(json.dumps(job))
    command = [sys.executable, "-m", "services.worker.training.run", "--job", str(work / "job.json")]
    log = work / "training.log"
    log.unlink(missing_ok=True)
    metrics = work / "metrics.jsonl"
    before = _stamp(metrics)
    trainer = process.start(command, env=os.environ, log=log)
    try:
        _follow(trainer, metrics, before, on_metrics)
    finally:
        process.stop(trainer)
    if trainer.returncode != 0 or not (work / "result.json").exists():
        raise TrainingFailed(f"training ended with status {trainer.returncode}: {process.tail(log)}")
    result = json.loads((work / "result.json").read_text())
    target = client.directory(config, result["digest"])
    if not keep and not target.exists():
        target = work / "adapter"
    elif not target.exists():
        _keep(work / "adapter", target)
    return Trained(result["digest"], str(target.resolve().relative_to(config.var.resolve())), result)


def _keep(adapter: Path, target: Path) -> None:
    """Copy an adapter; whatever dies meanwhile, nothing that is not whole has its name."""
    fresh = target.with_name(f"{target.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    shutil.copytree(adapter, fresh)
    fresh.rename(target)


def _stamp(file: Path) -> tuple[int, int] | None:
    """What a file's replacement changes."""
    stat = file.stat() if file.exists() else None
    return None if stat is None else (stat.st_ino, stat.st_mtime_ns)


def _follow(
    trainer: subprocess.Popen[bytes],
    file: Path,
    before: tuple[int, int] | None,
    on_metrics: Callable[[dict[str, Any]], None],
) -> None:
    """Hand over each step's metrics once, until the process has ended and all are read.

    The file is replaced as a whole after every step; steps repeated after a crash are told once. One that is as it was
    `before` may be another job's with the same rows: it counts when the trainer found nothing left to do.
    """
    told = 0
    ended = False
    while not ended:
        try:
            trainer.wait(timeout=_POLL_S)
            ended = True
        except subprocess.TimeoutExpired:
            pass
        if _stamp(file) == before and trainer.returncode != 0:
            continue
        for line in file.read_bytes().splitlines() if file.exists() else []:
            metrics = json.loads(line)
            if metrics["step"] > told:
                told = metrics["step"]
                on_metrics(metrics)
