"""`python -m flows.train`: snapshot, data gate, training set, adapter; what `evoplane train` runs.

Says what it does on standard error and prints one JSON value, `{"error": …}` with exit status 1. Nothing is served by
it: an adapter becomes a version through `evoplane evolve` and its gates, or `flows.online`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from evaluators import quality
from evoplane.settings import Settings, ending_when_wrong, settings
from flows import recipes, snapshot, tenancy, training
from flows.training import Kind, Trained, TrainingFailed, TrainingSet
from registry import control, tenants, tracking
from registry.policies import Forbidden, Policies, principal, require
from registry.tenants import RegistryError
from services.worker import client
from services.worker.adapters import average
from services.worker.policies import PolicyError
from services.worker.training.algorithms import Source, algorithm, names
from services.worker.training.examples import read_examples
from services.worker.training.job import JobError, check_fields
from services.worker.training.staleness import drop_stale

KINDS: dict[Source, Kind] = {**recipes.KINDS, "pairs": "preferences"}
"""What kind of set is made of what an algorithm learns from. Pairs are attempts at one task that the declared rule
rewards differently; those of what people showed and what was done instead are `evolve`'s."""

Say = Callable[[str], None]


def take_snapshot(config: Settings, agent: str) -> dict[str, Any]:
    """A snapshot and what the data gate says of it."""
    taken = snapshot.take(config, agent)
    judged = [case for case in snapshot.read(Path(taken.path)) if case.success is not None]
    result = quality.check(quality.frame(judged), 1)
    snapshot.pass_gate(config, agent, result)
    return {
        "snapshot": taken.id,
        "path": taken.path,
        "trajectories": taken.trajectories,
        "tenants": list(taken.tenants),
        "gate": {"passed": result.passed, "summary": result.summary, "quarantined": list(result.quarantined)},
    }


def train(
    config: Settings,
    agent: str,
    name: str,
    *,
    together: tenancy.Tenancy,
    tenant: str | None,
    options: dict[str, Any],
    dry_run: bool,
    say: Say,
) -> dict[str, Any]:
    """From the log to one adapter (a tenant's, everybody's, or the average).

    Raises `TrainingFailed`, `JobError` or `RegistryError`, each with its reason.
    """
    kind = kind_of(name)
    job = {"algorithm": name, **recipes.start(config, agent, name), **options}
    check_fields(job)
    algorithm(job["algorithm"], job.get("hyperparameters"))
    taken = take_snapshot(config, agent)
    say(f"snapshot {taken['snapshot']}: {taken['trajectories']} trajectories; {taken['gate']['summary']}")
    if not taken["trajectories"]:
        raise TrainingFailed(
            f"nobody has judged one of the newest {config.monitor.window} trajectories a tenant has with {agent!r}: "
            "tell what came of them (docs/feedback.md), or look further back (`monitor.window`)"
        )
    sets = tenancy.sets(config, Path(taken["path"]), together, tenant)
    made: list[dict[str, Any]] = []
    adapters: list[Trained] = []
    for members in sets:
        chosen = training.make_training_set(config, agent, kind, members)
        entry = {"tenants": members, "training_set": chosen.id, "path": chosen.path, "train": chosen.train,
                 "heldout": chosen.heldout, "dropped": chosen.dropped,
                 **_usable(config, chosen, job)}  # fmt: skip
        say(f"training set {chosen.id} of {', '.join(members)}: {chosen.train} rows, {entry['usable']} usable")
        if not dry_run:
            trained, run = _trained(config, agent, chosen, job, say)
            adapters.append(trained)
            entry |= {"adapter": trained.digest, "adapter_path": trained.path, "mlflow_run": run}
        made.append(entry)
    out: dict[str, Any] = {"agent": agent, "algorithm": name, "tenancy": together, **taken, "sets": made}
    if adapters:
        out["adapter"], out["adapter_path"] = adapters[0].digest, adapters[0].path
    if len(adapters) > 1:
        out |= _averaged(config, adapters, [entry["usable"] for entry in made])
    return out


def kind_of(name: str) -> Kind:
    """The kind of set an algorithm learns from. Raises `JobError` for an unknown one and `TrainingFailed` for one that
    learns from what no snapshot holds."""
    source = algorithm(name).learns_from()
    if source not in KINDS:
        able = [known for known in names() if algorithm(known).learns_from() in KINDS]
        raise TrainingFailed(
            f"{name} learns from {source} with rewards of their own, and no training set of a snapshot has these: "
            f"give it rows of your own (docs/learning.md). These learn from a snapshot: {', '.join(able)}"
        )
    return KINDS[source]


def _usable(config: Settings, chosen: TrainingSet, job: Mapping[str, Any]) -> dict[str, Any]:
    """How many rows the algorithm can learn from, and why not from the others."""
    vocabulary = int(json.loads((config.model_dir / "config.json").read_text())["vocab_size"])
    file = Path(chosen.path) / "train.jsonl"
    examples, dropped = read_examples(file, max_length=config.worker.max_model_len, vocab_size=vocabulary)
    examples, stale, _ = drop_stale(examples, job.get("policy_version"), job.get("max_staleness"))
    kept, lacking = algorithm(job["algorithm"], job.get("hyperparameters")).select(examples)
    return {"usable": len(kept), "unusable": {**dropped, **stale, **lacking}}


def _trained(
    config: Settings, agent: str, chosen: TrainingSet, job: Mapping[str, Any], say: Say
) -> tuple[Trained, str]:
    told = {"training_set": chosen.id, "rows": chosen.train, **job}
    run = tracking.start_run(config, agent, f"train {job['algorithm']}", told)
    tracking.log_folder(config, run, Path(chosen.path), "training-set")
    tracking.log_folder(config, run, Path(chosen.path).parent / "dvc.lock", "training-set")

    def on_metrics(line: dict[str, Any]) -> None:
        numbers = {k: v for k, v in line.items() if isinstance(v, int | float) and k != "step"}
        tracking.log_metrics(config, run, numbers, int(line.get("step", 0)))
        say(f"step {line.get('step')}/{line.get('steps')}: loss {line.get('loss')}")

    trained = None
    try:
        trained = training.train(config, agent, chosen, on_metrics, job)
    finally:
        tracking.finish_run(config, run, ok=trained is not None)
    client.remember_probe(config, trained.digest, trained.result.get("probe"))
    return trained, run


def _averaged(config: Settings, adapters: Sequence[Trained], sizes: Sequence[int]) -> dict[str, Any]:
    paths = [config.var / trained.path for trained in adapters]
    fresh = config.var / "policies" / "averaged.new"
    mean = average(paths, sizes, fresh, config.evolve.lora_rank)
    target = client.directory(config, str(mean["digest"]))
    if not target.exists():
        fresh.rename(target)
    return {
        "adapter": mean["digest"],
        "adapter_path": str(target.relative_to(config.var)),
        "average_lost": mean["lost"],
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m flows.train", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--agent", required=True)
    parser.add_argument("--algorithm", help="without one only a snapshot is taken")
    parser.add_argument("--tenancy", choices=["isolated", "pooled", "federated"], default="isolated")
    parser.add_argument("--tenant")
    parser.add_argument("--by", default="", help="who asks; pooling and averaging need the role of an operator")
    parser.add_argument("--options", default="{}", help="fields of a job, as JSON")
    parser.add_argument("--dry-run", action="store_true")
    told = parser.parse_args(argv)
    config = settings()

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    try:
        tenants.get_agent(control.connect(config.control_db), told.agent)
        if told.algorithm is None:
            made = take_snapshot(config, told.agent)
        else:
            if told.tenancy != "isolated":
                _may_aggregate(config, told.by)
            made = train(
                config,
                told.agent,
                told.algorithm,
                together=told.tenancy,
                tenant=told.tenant,
                options=_options(told.options),
                dry_run=told.dry_run,
                say=say,
            )
    except (TrainingFailed, JobError, RegistryError, PolicyError, snapshot.SnapshotError) as error:
        print(json.dumps({"error": str(error)}))
        return 1
    print(json.dumps(made))
    return 0


def _options(text: str) -> dict[str, Any]:
    try:
        told = json.loads(text)
    except ValueError as error:
        raise JobError(f"--options is not JSON: {error}") from error
    if not isinstance(told, dict):
        raise JobError('--options is a JSON object of a job\'s fields, such as {"epochs": 2}')
    return told


def _may_aggregate(config: Settings, name: str) -> None:
    """Raises `Forbidden` unless the person may bring tenants' data, or what was learned from it, together."""
    if not name:
        raise RegistryError("say who asks (`--by NAME`): to bring tenants together takes the role of an operator")
    connection = control.connect(config.control_db)
    who = principal(connection, name)
    policies = Policies.load(config.policies_dir)
    try:
        require(connection, policies, who, "cross_tenant_aggregate", "Tenant::all", {"pooling": True})
    except Forbidden as error:
        raise Forbidden(f"{error}; `evoplane role give {name} operator` makes them an operator") from error


if __name__ == "__main__":
    with ending_when_wrong():
        sys.exit(main())
