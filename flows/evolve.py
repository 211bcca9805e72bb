"""evolve: from an alert to an accepted candidate, or to the reasoned decision to change nothing.

    snapshot (DVC) → quality (Great Expectations) → diagnose → propose → train → replay → decide → register

One evolution per agent at a time. A gate that fails stops the run under the gate's name.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from atdp.ids import new_id
from dashboards.reading import served
from evaluators import corrections, dataset, diagnosis, quality, replay
from evaluators.cases import Case
from evaluators.decision import NO_OP, Decision, Evaluated, decide
from evoplane.settings import Settings, settings
from flows import (
    deliveries,
    environment,  # noqa: F401  (before prefect)
    limits,
    policies,
    reports,
    snapshot,
    training,
)
from flows.answering import answer_cases
from flows.interventions import Evidence, Proposal, interventions
from registry import alerts, audit, control, decisions, pointers, prefect_runs, tracking, versions
from registry.manifest import Manifest
from services.worker import client

from prefect import flow, get_run_logger, task  # isort: skip
from prefect.runtime import flow_run  # isort: skip
from prefect.artifacts import create_markdown_artifact  # isort: skip
from prefect.cache_policies import NO_CACHE  # isort: skip
from prefect.states import Completed, Failed  # isort: skip

ACCEPTED = "evoplane.candidate.accepted"


@flow(name="evolve", flow_run_name="evolve {agent} · {reason}", log_prints=True)
def evolve(agent: str, reason: str = "asked", evidence: dict[str, Any] | None = None, alert: str = "") -> Any:
    """Improve one agent, if that can be shown to be an improvement.

    `alert` is the alert it answers (`registry.alerts`), empty when somebody asked: an alert is answered once.
    """
    with limits.one_at_a_time(f"evolve-{agent}"), answering(alert) as mine:
        if not mine:
            return Completed(name="Already answered", message=f"another run has taken alert {alert}")
        return _evolve(settings(), agent, reason)


@contextmanager
def answering(alert: str) -> Iterator[bool]:
    """Take an alert for the block; False when another run has it."""
    connection = control.connect(settings().control_db)
    taken = alerts.take(connection, alert, str(flow_run.id)) if alert else None
    try:
        yield not alert or taken is not None
    finally:
        if taken is not None:
            alerts.end(connection, alert, "evolved")


def _evolve(config: Settings, agent: str, reason: str) -> Any:
    connection = control.connect(config.control_db)
    route = pointers.read_route(connection, agent)
    under_way = deliveries.under_way(connection, agent)
    if under_way:
        return Completed(name="Delivery in progress", message=f"version {under_way[0]} is being delivered")
    champion = pointers.versions(connection, agent)[route.champion]
    taken = take_snapshot(agent)
    cases = snapshot.read(Path(taken.path))
    gate = check_quality(agent, cases)
    if not gate.passed:
        audit.append(connection, "evolve", "data_gate.failed", agent, {"snapshot": taken.id, "why": gate.summary})
        return Failed(name="Quality gate failed", message=f"snapshot {taken.id}: {gate.summary}")
    found = diagnose(agent, taken.id, cases, champion.version, champion.manifest)
    proposals, skipped = propose(agent, champion.version, found)
    if not proposals and not skipped:
        return Completed(name="Nothing to propose", message=f"{found.diagnosis.failures} failures, no surface applies")
    population = comparable(found, proposals)
    evaluated, made = evaluate(agent, champion.manifest, proposals, population)
    evaluated += [Evaluated(p.name, p.surface, p.cost, None, why) for p, why in skipped]
    decision = decide(evaluated, max_regression=config.evolve.max_regression)
    decision_id = new_id("dec")
    record = _record(agent, reason, champion.version, taken, gate, found, proposals, skipped,
                     evaluated, made, decision)  # fmt: skip
    decisions.put(connection, decision_id, agent, record)
    create_markdown_artifact(key=f"decision-{agent}", markdown=reports.decision_page(decision_id, record))
    _retire_losers(config, connection, decision, made)
    if decision.chosen == NO_OP:
        return Completed(name="No change", message=f"decision {decision_id}: {decision.ranking[0].why}")
    version = register(agent, champion.version, decision_id, record, made[decision.chosen])
    prefect_runs.emit_event(
        config, ACCEPTED, agent, {"agent": agent, "version": version, "skip_shadow": False, "decision": decision_id}
    )
    return Completed(name="Accepted", message=f"version {version}: {decision.chosen}, decision {decision_id}")


@task(cache_policy=NO_CACHE, task_run_name="snapshot {agent}")
def take_snapshot(agent: str) -> snapshot.Snapshot:
    taken = snapshot.take(settings(), agent)
    get_run_logger().info("snapshot %s: %d trajectories of %s", taken.id, taken.trajectories, taken.tenants)
    return taken


@task(cache_policy=NO_CACHE, task_run_name="quality {agent}")
def check_quality(agent: str, cases: list[Case]) -> quality.QualityResult:
    judged = [c for c in cases if c.success is not None]
    result = quality.check(quality.frame(judged), settings().monitor.min_outcomes)
    snapshot.pass_gate(settings(), agent, result)
    create_markdown_artifact(key=f"data-gate-{agent}", markdown=reports.quality_page(result))
    return result


@task(cache_policy=NO_CACHE, task_run_name="diagnose {agent}")
def diagnose(agent: str, snapshot_id: str, cases: list[Case], champion: str, manifest: Manifest) -> Evidence:
    config = settings()
    facts = corrections.established(cases)
    current = served(cases, champion)
    found = diagnosis.diagnose(current, facts, config.monitor.alpha)
    create_markdown_artifact(key=f"diagnosis-{agent}", markdown=diagnosis.page(agent, champion, found))
    return Evidence(
        agent=agent,
        snapshot=snapshot_id,
        cases=cases,
        current=current,
        manifest=manifest,
        facts=facts,
        diagnosis=found,
        split=dataset.split(cases, config.evolve.heldout_share),
    )


@task(cache_policy=NO_CACHE, task_run_name="propose {agent}")
def propose(agent: str, champion: str, evidence: Evidence) -> tuple[list[Proposal], list[tuple[Proposal, str]]]:
    """What to try, and what not to although it was proposed, with the reason."""
    config = settings()
    connection = control.connect(config.control_db)
    lost = {
        fingerprint
        for record in decisions.list_decisions(connection, agent)
        if record["parent"] == champion
        for fingerprint in record["rejected"]
    }
    made = [p for i in interventions().values() for p in i.propose(evidence, config)]
    kept: list[Proposal] = []
    skipped: list[tuple[Proposal, str]] = []
    cheap = any(not p.uses_heldout_tasks and p.fingerprint not in lost for p in made)
    addressed = {surface: evidence.diagnosis.share(surface) for surface in ("memory", "policy")}
    for proposal in made:
        if proposal.fingerprint in lost:
            skipped.append((proposal, "lost before, and there is no new evidence"))
        elif proposal.surface == "policy" and cheap and addressed["policy"] <= addressed["memory"]:
            why = f"not trained: addresses {addressed['policy']:.0%} of the failures, memory {addressed['memory']:.0%}"
            skipped.append((proposal, why))
        else:
            kept.append(proposal)
    get_run_logger().info("proposals: %s; skipped: %s", [p.summary for p in kept], [(p.name, w) for p, w in skipped])
    return kept, skipped


def comparable(evidence: Evidence, proposals: list[Proposal]) -> list[Case]:
    """The recorded decisions all candidates and the champion can be compared on."""
    fitted = any(p.uses_heldout_tasks for p in proposals)
    return replay.usable(
        evidence.current,
        exclude_sessions={s for p in proposals for s in p.source_sessions},
        tasks=evidence.split.heldout if fitted else None,
        clusters=evidence.split.clusters,
        facts=evidence.facts,
    )


def evaluate(
    agent: str, manifest: Manifest, proposals: list[Proposal], population: list[Case]
) -> tuple[list[Evaluated], dict[str, dict[str, Any]]]:
    """Each proposal prepared, applied and replayed on the same cases; what was made of it, by name."""
    cases = replay.select(population, settings().evolve.replay_cases)
    evaluated: list[Evaluated] = []
    made: dict[str, dict[str, Any]] = {}
    for proposal in proposals:
        try:
            prepared = train_adapter(agent, proposal) if proposal.surface == "policy" else {}
            candidate = interventions()[proposal.surface].apply(manifest, proposal, prepared)
            if prepared:
                policies.claim(settings(), candidate.policy.served_name)
                client.load(settings(), candidate.policy, prepared.get("probe"))
        except (training.TrainingFailed, client.PolicyRefused) as error:
            evaluated.append(Evaluated(proposal.name, proposal.surface, proposal.cost, None, str(error)))
            continue
        made[proposal.name] = {"manifest": candidate, "proposal": proposal, **prepared}
        evaluated.append(replay_candidate(agent, proposal, candidate, cases, population))
    return evaluated, made


@task(cache_policy=NO_CACHE, task_run_name="train {agent} {proposal.name}")
def train_adapter(agent: str, proposal: Proposal) -> dict[str, Any]:
    """Train the proposed adapter; progress goes to the run page, metrics to MLflow."""
    config = settings()
    chosen = training.make_training_set(config, agent)
    run = tracking.start_run(
        config, agent, f"train {proposal.name}", {**proposal.content, "training_set": chosen.id, "rows": chosen.train}
    )
    tracking.log_folder(config, run, Path(chosen.path), "training-set")
    tracking.log_folder(config, run, Path(chosen.path).parent / "dvc.lock", "training-set")
    progress = reports.Progress(f"training-{agent}", f"{proposal.name}: {chosen.train} examples")

    def on_metrics(line: dict[str, Any]) -> None:
        step = int(line.get("step", 0))
        tracking.log_metrics(
            config, run, {k: v for k, v in line.items() if isinstance(v, int | float) and k != "step"}, step
        )
        if line.get("steps"):
            progress.set(100 * step / line["steps"])

    trained = None
    try:
        trained = training.train(config, agent, chosen, on_metrics)
    finally:
        tracking.finish_run(config, run, ok=trained is not None)
    progress.set(100)
    client.remember_probe(config, trained.digest, trained.result.get("probe"))
    return {
        "agent": agent,
        "digest": trained.digest,
        "path": trained.path,
        "training_set": chosen.id,
        "mlflow_run": run,
        "probe": trained.result.get("probe"),
        "result": {k: v for k, v in trained.result.items() if k != "probe"},
    }


@task(cache_policy=NO_CACHE, task_run_name="replay {proposal.name}")
def replay_candidate(
    agent: str, proposal: Proposal, manifest: Manifest, cases: list[Case], population: list[Case]
) -> Evaluated:
    config = settings()
    answers = answer_cases(config, manifest, cases)
    compared = replay.compare(cases, answers, config.monitor.alpha, population)
    get_run_logger().info("%s: improvement %s, fixed %s, lost %s, unknown %d", proposal.name,
                          compared.improvement, compared.fixed, compared.lost, compared.unknown)  # fmt: skip
    if cases and compared.unanswered == len(cases):
        return Evaluated(proposal.name, proposal.surface, proposal.cost, None, "the model server answered nothing")
    return Evaluated(proposal.name, proposal.surface, proposal.cost, compared)


@task(cache_policy=NO_CACHE, task_run_name="register {agent}")
def register(agent: str, parent: str, decision_id: str, record: dict[str, Any], made: dict[str, Any]) -> str:
    """The winner becomes a version; returns its label."""
    config = settings()
    connection = control.connect(config.control_db)
    proposal: Proposal = made["proposal"]
    numbers = record["candidates"][proposal.name]["replay"]
    lineage = {
        "snapshot": record["snapshot"],
        "data_gate": record["data_gate"],
        "training_set": made.get("training_set", ""),
        "replay_improvement": reports.interval_text(numbers["improvement"]),
        "replay_fixed": reports.interval_text(numbers["fixed"]),
        "replay_lost": reports.interval_text(numbers["lost"]),
        "replay_unknown": str(numbers["unknown"]),
        "decision": decision_id,
    }
    metrics = {f"replay_improvement_{k}": numbers["improvement"][k] for k in ("value", "low", "high")}
    version = versions.register(
        config,
        connection,
        agent,
        made["manifest"],
        parent=parent,
        intervention=proposal.surface,
        description=proposal.summary,
        lineage={k: v for k, v in lineage.items() if v},
        evidence=record,
        metrics=metrics,
    )
    audit.append(
        connection, "evolve", "candidate.accepted", agent, {"version": version.version, "decision": decision_id}
    )
    return version.version


def _retire_losers(
    config: Settings, connection: sqlite3.Connection, decision: Decision, made: dict[str, dict[str, Any]]
) -> None:
    for name, entry in made.items():
        if name != decision.chosen:
            policies.release(config, entry["manifest"].policy.served_name)
    policies.retire(config, connection)


def _record(
    agent: str,
    reason: str,
    parent: str,
    taken: snapshot.Snapshot,
    gate: quality.QualityResult,
    found: Evidence,
    proposals: list[Proposal],
    skipped: list[tuple[Proposal, str]],
    evaluated: list[Evaluated],
    made: dict[str, dict[str, Any]],
    decision: Decision,
) -> dict[str, Any]:
    """The decision record: everything needed to see why, including every loser."""
    by_name = {p.name: p for p in [*proposals, *(p for p, _ in skipped)]}
    return {
        "agent": agent,
        "reason": reason,
        "parent": parent,
        "snapshot": taken.id,
        "trajectories": taken.trajectories,
        "data_gate": gate.summary,
        "diagnosis": msgspec.to_builtins(found.diagnosis),
        "chosen": decision.chosen,
        "ranking": msgspec.to_builtins(decision.ranking),
        "rejected": [p.fingerprint for p in proposals if p.name != decision.chosen],
        "candidates": {
            e.name: {
                "surface": e.surface,
                "summary": by_name[e.name].summary,
                "diff": by_name[e.name].diff,
                "risk": by_name[e.name].risk,
                "cost": e.cost,
                "problem": e.problem,
                "replay": reports.finite(msgspec.to_builtins(e.replay)) if e.replay else None,
                "training": made.get(e.name, {}).get("result"),
                "training_set": made.get(e.name, {}).get("training_set"),
            }
            for e in evaluated
        },
    }
