"""One life: customers come through the real gateway, the monitor looks, and an evolution may change something."""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.monitor.client import running
from benchmarks.monitor.desk import Desk
from benchmarks.monitor.language import understood
from benchmarks.monitor.model import Abilities, Habit, Model
from benchmarks.monitor.scenarios import Scenario
from benchmarks.monitor.server import ModelServer
from benchmarks.monitor.world import BASE, Phase, World
from evaluators import corrections, dataset, quality, watching
from evaluators.cases import Case
from evaluators.decision import NO_OP
from evoplane.settings import Settings
from examples.support.scenario import TENANTS, fact_sentence, requests
from flows import evolution, snapshot
from flows.answering import answer_cases
from flows.interventions import Proposal
from flows.outcomes import newly_judged
from registry import control, pointers, tenant_policy, tenants
from registry.manifest import AgentVersion, Manifest, MemoryItem, Policy
from services.gateway.app import create_app
from services.proxy.store import open_reader

AGENT = "support"
_MORE, _LONGER = 90, 4
"""Sessions between further looks, and how many there are, in every life in which the monitor has seen nothing."""
_LEARNED_AT = 10
"""Demonstrations of one kind after which trained weights do it as well as they ever will."""


@dataclass(frozen=True)
class Ended:
    """What became of a life."""

    scenario: str
    seed: int
    right: str
    chosen: str
    """The surface; `no-op` also where the monitor saw nothing."""
    alarm: str
    """The monitor's reason, empty without an alarm."""
    why: str
    clusters: tuple[tuple[str, str], ...]
    """(name, surface) of what the diagnosis found."""
    candidates: tuple[tuple[str, float, str], ...]
    """(name, score, why) of everything compared."""

    @property
    def correct(self) -> bool:
        return self.chosen == self.right


def live(scenario: Scenario, seed: int, server: ModelServer, folder: Path) -> Ended:
    """One life of a scenario's world, from its first customer to a decision."""
    rng = random.Random(f"{scenario.name}/{seed}")
    world = scenario.world(rng)
    var = Path(tempfile.mkdtemp(dir=folder))
    try:
        config = Settings.model_validate(
            {"paths": {"var": str(var)}, "worker": {"vllm_port": server.port}, "evolve": {"replay_cases": 240}}
        )
        model = Model(dict(world.weights), world.office.procedures, wordy=world.wordy, seed=seed)
        server.model = model
        alarm = asyncio.run(_serve(config, world, seed))
        if not alarm:
            return Ended(scenario.name, seed, scenario.right, NO_OP, "", "no alarm", (), ())
        found = evolution.run(config, control.connect(config.control_db), AGENT, alarm, _work(model))
        return _ended(scenario, seed, alarm, found)
    finally:
        shutil.rmtree(var, ignore_errors=True)


def look(config: Settings) -> str:
    """The monitor's look at the agent, by the monitor's own functions: why it should be evolved, or nothing."""
    reader = open_reader(config)
    champion = pointers.read_route(control.connect(config.control_db), AGENT).champion
    with watching.memo(config.var, AGENT) as memo:
        for judged, cursor in newly_judged(reader, AGENT, champion, memo.cursor):
            watching.take(memo, champion, judged, config.monitor)
            memo.cursor = cursor
        watching.take(memo, champion, [], config.monitor)
        cause = watching.seen(memo, config.monitor).cause
    return cause[1] if cause is not None else ""


async def _serve(config: Settings, world: World, seed: int) -> str:
    """Customers of all phases; what the monitor says after the last of them."""
    alarm = ""
    connection = control.connect(config.control_db)
    for id, name in TENANTS.items():
        tenants.create_tenant(connection, id, name, train="allow")
        tenant_policy.put(connection, id, tenant_policy.TenantPolicy(pooling=True), "bench")
    tenants.create_agent(connection, AGENT, BASE, None, ())
    keys = {t: tenants.create_key(connection, t, AGENT, "serve", owner="bench")[1] for t in TENANTS}
    label = _champion(connection, world, world.phases[0], None)
    async with running(create_app(config)) as client:
        for number, phase in enumerate(world.phases):
            if number and phase.weights != world.phases[number - 1].weights:
                label = _champion(connection, world, phase, label)
                await asyncio.sleep(0.3)  # until the gateway has looked at the control database again
            desk = Desk(client, keys, BASE, world.tools, world.office, world.facts, world.rule, world.judge,
                        world.outcomes, seed=seed)  # fmt: skip
            await desk.serve(requests("train", phase.sessions, seed * 10 + number, phase.questions))
            alarm = look(config)
        for more in range(_LONGER):
            if alarm:
                break
            await desk.serve(requests("train", _MORE, 1000 + seed * 10 + more, world.phases[-1].questions))
            alarm = look(config)
    connection.close()
    return alarm


def _champion(connection: Any, world: World, phase: Phase, before: str | None) -> str:
    """The version of a phase, serving; returns its label."""
    label = "1" if before is None else str(int(before) + 1)
    memory = tuple(
        MemoryItem(id=f"mem_{t}_{topic.replace(' ', '_')}", tenant=t, topic=topic, text=fact_sentence(topic, value),
                   trust="vetted", provenance=("operator",), created_at="2026-01-01T00:00:00Z")
        for t, sheet in world.remembered.items() for topic, value in sheet.items()
    )  # fmt: skip
    adapter = f"sha256:{phase.weights}" if phase.weights else None
    policy = Policy(base=BASE, served_name=phase.weights or BASE, adapter=adapter)
    manifest = Manifest(policy=policy, memory=memory, guardrails=world.guardrails)
    version = AgentVersion(
        agent=AGENT, version=label, digest=manifest.digest, manifest=manifest, parent=before,
        intervention="policy" if before else "initial",
    )  # fmt: skip
    pointers.put_version(connection, version)
    pointers.set_champion(connection, AGENT, label, "bench", "bench", expected=before)
    return label


def _work(model: Model) -> evolution.Work:
    return evolution.Work(
        snapshot=_snapshot,
        quality=_quality,
        answer=answer_cases,
        train=lambda config, agent, proposal: _train(config, agent, proposal, model),
    )


def _snapshot(config: Settings, agent: str) -> tuple[snapshot.Snapshot, list[Case]]:
    """As `snapshot.take`, without DVC's repository: the same files, the same hash, read by the same reader."""
    folder = config.snapshots_dir / agent / "trajectories"
    folder.mkdir(parents=True, exist_ok=True)
    counts = snapshot.write(config, agent, folder)
    taken = snapshot.Snapshot(snapshot.directory_hash(folder), str(folder), sum(counts.values()), tuple(sorted(counts)))
    return taken, snapshot.read(folder)


_passed_once: list[bool] = []


def _quality(config: Settings, agent: str, cases: list[Case]) -> quality.QualityResult:
    """Great Expectations once in a process; then only that there are rows enough."""
    judged = [c for c in cases if c.success is not None]
    if not _passed_once:
        found = quality.check(quality.frame(judged), config.monitor.min_outcomes)
        _passed_once.append(found.passed)
        return found
    return quality.QualityResult(len(judged) >= config.monitor.min_outcomes, len(judged), 0, 0, ())


def _train(config: Settings, agent: str, proposal: Proposal, model: Model) -> dict[str, Any]:
    """What training would make of the training set: habits of what is in it, the stronger the more often it is."""
    cases = snapshot.read(config.snapshots_dir / agent / "trajectories")
    split = dataset.split(cases, config.evolve.heldout_share)
    chosen = dataset.select(cases, split, corrections.established(cases), limit=256)
    digest = f"sha256:{proposal.fingerprint[7:23]}"
    name = f"{agent}-c-{digest.removeprefix('sha256:')[:8]}"
    base = model.weights[""]
    model.weights[name] = Abilities(base.base, base.by_subject, _habits(chosen.train))
    return {"agent": agent, "digest": digest, "path": f"policies/{name}", "result": {"rows": len(chosen.train)}}


def _habits(rows: Sequence[Case]) -> Mapping[str, Habit]:
    shown: dict[str, Counter[tuple[tuple[str, ...], str]]] = defaultdict(Counter)
    for case in rows:
        taught, meaning = case.taught, understood(case.request)
        if taught is None or not taught.calls or not meaning.tool:
            continue
        order = next((str((c.arguments or {}).get("order_id", "")) for c in taught.calls), "")
        form = order.removesuffix(meaning.order) if order.endswith(meaning.order) else ""
        shown[meaning.tool][tuple(c.name for c in taught.calls), form] += 1
    habits = {}
    for tool, counts in shown.items():
        (steps, form), _ = counts.most_common(1)[0]
        habits[tool] = Habit(0.93 * min(1.0, sum(counts.values()) / _LEARNED_AT), steps, form)
    return habits


def _ended(scenario: Scenario, seed: int, alarm: str, found: evolution.Evolved) -> Ended:
    chosen = found.record.get("chosen", NO_OP)
    surface = NO_OP if chosen == NO_OP else found.record["candidates"][chosen]["surface"]
    clusters = found.record.get("diagnosis", {}).get("clusters", ())
    ranking = found.record.get("ranking", ())
    return Ended(
        scenario.name,
        seed,
        scenario.right,
        surface,
        alarm,
        f"{found.state}: {found.message}",
        tuple((c["name"], c["surface"]) for c in clusters),
        tuple((r["name"], round(r["score"], 3), r["why"]) for r in ranking),
    )
