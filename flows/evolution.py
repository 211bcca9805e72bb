"""Evolution without Prefect: the steps from a snapshot to a decision, as plain functions over what is passed in.

    snapshot → quality → diagnose → propose → (train, replay) of each candidate → decide

The flow (`flows.evolve`), `evoplane evolve --dry-run` (`python -m flows.evolution`) and `evoplane bench monitor` all
run `run`; they differ in `Work`: where snapshots come from, who answers, who trains.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from atdp.ids import new_id
from dashboards.reading import served
from evaluators import corrections, dataset, diagnosis, gates, quality, replay
from evaluators.cases import Action, Case, Key
from evaluators.decision import NO_OP, Evaluated, decide, simultaneous_alpha
from evaluators.diagnosis.belief import believed
from evaluators.replay.safety import on_cases
from evoplane.settings import Settings
from flows import evidence_record, locks, pages, tenancy
from flows.budget import over_budget
from flows.interventions import Evidence, Proposal, interventions
from flows.probes import probes, probes_lost, tests_failed
from flows.proposing import propose
from flows.snapshot import Snapshot
from registry import decisions, pointers
from registry.manifest import AgentVersion, Manifest

_LOCK_WAIT_S = 5.0
T = TypeVar("T")
Answers = Mapping[Key, Action | None]
State = Literal[
    "Quality gate failed", "Delivery in progress", "Over budget", "Nothing to propose", "No change", "Accepted"
]


class CandidateFailed(Exception):
    """A candidate could not be made or served; the message says why."""


def _at_once(name: str, step: Callable[..., T], *args: Any) -> T:
    return step(*args)


@dataclass(frozen=True)
class Work:
    """What an evolution needs others for."""

    snapshot: Callable[[Settings, str], tuple[Snapshot, list[Case]]]
    quality: Callable[[Settings, str, list[Case]], quality.QualityResult]
    answer: Callable[[Settings, Manifest, Sequence[Case]], Answers]
    train: Callable[[Settings, str, Proposal], dict[str, Any]]
    """Raises `CandidateFailed`; what `Intervention.apply` needs of it, `digest` and `path` among it."""
    serve: Callable[[Settings, Manifest, dict[str, Any]], None] = lambda config, manifest, made: None
    """Load what was trained, beside what serves. Raises `CandidateFailed`."""
    withdraw: Callable[[Settings, Manifest], None] = lambda config, manifest: None
    """A loaded candidate is not needed any longer."""
    step: Callable[..., Any] = _at_once
    """Runs a named step: `step(name, function, *arguments)`."""
    show: Callable[[str, str], None] = lambda key, page: None
    """Somebody may want to read this page."""


@dataclass(frozen=True)
class Evolved:
    """How an evolution ended."""

    state: State
    message: str
    decision_id: str = ""
    record: dict[str, Any] = field(default_factory=dict)
    made: dict[str, Any] = field(default_factory=dict)
    """Of the accepted candidate: `manifest`, `proposal`, and what training gave."""


def run(
    config: Settings, connection: sqlite3.Connection, agent: str, reason: str, work: Work, *, dry: bool = False
) -> Evolved:
    """One evolution of one agent; raises `locks.Busy` while another one runs.

    A dry run decides in the same way, but nothing of it stays: no record, no version, nothing loaded.
    """
    folder = config.var / "evolve"
    folder.mkdir(parents=True, exist_ok=True)
    with locks.exclusive(folder / f"{agent}.lock", _LOCK_WAIT_S):
        return _run(config, connection, agent, reason, work, dry)


def _run(config: Settings, connection: sqlite3.Connection, agent: str, reason: str, work: Work, dry: bool) -> Evolved:
    spent = None if dry else over_budget(config, connection, agent)
    if spent:
        return Evolved("Over budget", spent)
    champion = pointers.versions(connection, agent)[pointers.read_route(connection, agent).champion]
    taken, cases = work.step("snapshot", work.snapshot, config, agent)
    gate = work.step("quality", work.quality, config, agent, cases)
    work.show(f"data-gate-{agent}", pages.quality_page(gate))
    if not gate.passed:
        return Evolved("Quality gate failed", f"snapshot {taken.id}: {gate.summary}", record={"snapshot": taken.id})
    earlier = before(pointers.versions(connection, agent), cases, champion.version)
    found = work.step("diagnose", gather, config, agent, taken.id, cases, champion, earlier)
    work.show(f"diagnosis-{agent}", diagnosis.page(agent, champion.version, found.diagnosis))
    proposals, skipped = work.step("propose", propose, config, found, champion.version)
    population = comparable(found, proposals)
    evaluated, made = evaluate(config, found, proposals, population, work)
    evaluated += [Evaluated(p.name, p.surface, p.cost, None, why, risk=p.risk_penalty) for p, why in skipped]
    decision = decide(
        evaluated,
        max_regression=config.evolve.max_regression,
        doubts=doubts(found.diagnosis),
        gates=gates.installed(),
    )
    id = new_id("dec")
    record = evidence_record.record(reason, champion.version, taken, gate, found, proposals, skipped, evaluated,
                                    made, decision)  # fmt: skip
    work.show(f"decision-{agent}", pages.decision_page(id, record))
    for name, entry in made.items():
        if dry or name != decision.chosen:
            work.withdraw(config, entry["manifest"])
    if not dry:
        decisions.put(connection, id, agent, record)
    if decision.chosen != NO_OP:
        return Evolved("Accepted", decision.ranking[0].why, id, record, made[decision.chosen])
    state: State = "No change" if evaluated else "Nothing to propose"
    return Evolved(state, decision.ranking[0].why, id, record)


def before(known: Mapping[str, AgentVersion], cases: Sequence[Case], champion: str) -> list[AgentVersion]:
    """The champion and the versions that served before it, as the cases show, newest first."""
    last: dict[str, str] = {}
    for case in served(list(cases)):
        last[case.agent_version] = max(case.at, last.get(case.agent_version, ""))
    last.pop(champion, None)
    labels = [champion, *sorted(last, key=lambda label: last[label], reverse=True)]
    return [known[label] for label in labels if label in known]


def gather(
    config: Settings,
    agent: str,
    snapshot_id: str,
    cases: list[Case],
    champion: AgentVersion,
    versions: Sequence[AgentVersion] = (),
) -> Evidence:
    """The evidence of a snapshot: its facts, its diagnosis, and what is held out."""
    facts = corrections.established(cases)
    current = served(cases, champion.version)
    previous = versions[1].version if len(versions) > 1 else None
    found = diagnosis.diagnose(
        current,
        facts,
        config.monitor.alpha,
        before=served(cases, previous) if previous else (),
        tolerated=1 - config.monitor.target_success,
    )
    return Evidence(
        agent=agent,
        snapshot=snapshot_id,
        cases=believed(cases, found.disbelief),
        current=believed(current, found.disbelief),
        manifest=champion.manifest,
        facts=facts,
        diagnosis=found,
        split=dataset.split(cases, config.evolve.heldout_share),
        learnable=tenancy.learnable(config, sorted({c.tenant for c in cases})),
        versions=tuple(versions),
    )


def comparable(evidence: Evidence, proposals: Sequence[Proposal]) -> list[Case]:
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
    config: Settings, evidence: Evidence, proposals: Sequence[Proposal], population: list[Case], work: Work
) -> tuple[list[Evaluated], dict[str, dict[str, Any]]]:
    """Each proposal made, applied and replayed on the same cases; what was made of it, by name."""
    cases = replay.select(population, config.evolve.replay_cases)
    older = probes(evidence, cases, config.evolve.probe_cases)
    alpha = simultaneous_alpha(config.monitor.alpha, len(proposals))
    evaluated: list[Evaluated] = []
    made: dict[str, dict[str, Any]] = {}
    for proposal in proposals:
        try:
            trained = (
                work.step(f"train {proposal.name}", work.train, config, evidence.agent, proposal)
                if proposal.surface == "policy"
                else {}
            )
            candidate = interventions()[proposal.surface].apply(evidence.manifest, proposal, trained)
            if trained:
                work.serve(config, candidate, trained)
        except CandidateFailed as error:
            evaluated.append(
                Evaluated(proposal.name, proposal.surface, proposal.cost, None, str(error), risk=proposal.risk_penalty)
            )
            continue
        made[proposal.name] = {"manifest": candidate, "proposal": proposal, **trained}
        shown = (cases, older, population)
        evaluated.append(
            work.step(f"replay {proposal.name}", _replayed, config, evidence, proposal, candidate, shown, alpha, work)
        )
    return evaluated, made


def _replayed(
    config: Settings,
    evidence: Evidence,
    proposal: Proposal,
    manifest: Manifest,
    shown: tuple[list[Case], list[Case], list[Case]],
    alpha: float,
    work: Work,
) -> Evaluated:
    """One candidate's answers, judged: at 1 - alpha/K for the choice, at 1 - alpha for everything else.

    `shown` are the replayed cases, the probes, and the population the cases were selected from.
    """
    cases, older, population = shown
    tests = [c for c in evidence.cases if c.key in proposal.tests]
    asked = {c.key: c for c in (*cases, *older, *tests)}
    answers = work.answer(config, manifest, list(asked.values()))
    name, surface, cost, risk = proposal.name, proposal.surface, proposal.cost, proposal.risk_penalty
    if asked and all(answers.get(key) is None for key in asked):
        return Evaluated(name, surface, cost, None, "the model server answered nothing", risk=risk)
    single = {key: [answer] for key, answer in answers.items()}
    safety = on_cases(cases, single, config.replay.protected_tools, config.monitor.alpha)
    compared = replay.compare(cases, answers, config.monitor.alpha, population, safety=safety)
    strict = replay.compare(cases, answers, alpha, population)
    return Evaluated(
        name,
        surface,
        cost,
        compared,
        risk=risk,
        simultaneous=strict.improvement,
        probes_lost=probes_lost(older, answers, config.monitor.alpha),
        tests=len(tests),
        failed_tests=tests_failed(tests, answers),
    )


def doubts(found: diagnosis.Diagnosis) -> list[str]:
    """What speaks for doing nothing, whatever the candidates show."""
    said = []
    if found.disbelief is not None:
        said.append(f"rewards of {found.disbelief.judge} are not believed: {'; '.join(found.disbelief.why)}")
    unexplained = sum(len(c.events) for c in found.clusters if c.symptom == "unexplained")
    if found.failures and unexplained > found.failures / 2:
        said.append(f"nobody explained {unexplained} of {found.failures} failures")
    if found.judged and found.clusters and found.calls_for_nothing:
        said.append(f"{found.failures} failures of {found.judged} fall together no more than by chance")
    if found.shift is not None and found.shift.within.low <= 0 <= found.shift.within.high and found.shift.mix < -0.02:
        said.append(f"another mix of work accounts for {found.shift.mix:+.2f}, no kind of work got worse")
    return said
