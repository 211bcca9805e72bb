"""An evolution without Prefect: what it decides, what it keeps, and what stays when it was dry."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from evaluators import corrections
from evaluators.cases import Action
from evaluators.quality import Finding, QualityResult
from evoplane.settings import Settings
from flows import evolution, locks
from flows.snapshot import Snapshot
from registry import control, decisions, pointers, tenant_policy, tenants
from registry.manifest import AgentVersion, Manifest, Policy
from tests.evaluators.conftest import make_case
from tests.surfaces.making import of
from tests.surfaces.test_policy_and_rollback import unable

AGENT = "support"


@pytest.fixture
def config(tmp_path) -> Settings:
    made = Settings.model_validate({"paths": {"var": str(tmp_path)}})
    connection = control.connect(made.control_db)
    tenants.create_agent(connection, AGENT, "m", None, ())
    manifest = Manifest(policy=Policy(base="m", served_name="m"))
    pointers.put_version(connection, AgentVersion(agent=AGENT, version="1", digest=manifest.digest, manifest=manifest))
    pointers.set_champion(connection, AGENT, "1", "first", "test")
    return made


def missing_fact() -> list[Any]:
    told = [make_case("How long is the warranty?", corrections=["The warranty is 24 months."], text="?")
            for _ in range(30)]  # fmt: skip
    return told + [make_case("How long is delivery?", reward=1.0, text="4 days") for _ in range(60)]


class World:
    """Somebody who reads the notes, and remembers what was asked of them."""

    def __init__(self, cases: list[Any], passed: bool = True) -> None:
        self.cases, self.passed = cases, passed
        self.withdrawn: list[str] = []
        self.pages: dict[str, str] = {}

    def work(self) -> evolution.Work:
        findings = () if self.passed else (Finding("row count", "too few"),)
        return evolution.Work(
            snapshot=lambda config, agent: (Snapshot("s.dir", "/nowhere", len(self.cases), ("northwind",)), self.cases),
            quality=lambda config, agent, cases: QualityResult(self.passed, len(cases), 1, 1, findings),
            answer=self.answer,
            train=lambda config, agent, proposal: {},
            withdraw=lambda config, manifest: self.withdrawn.append(manifest.digest),
            show=lambda key, page: self.pages.update({key: page}),
        )

    def answer(self, config, manifest, cases):
        known = [item.text for item in manifest.memory]
        return {c.key: Action(known[0] if "warranty" in c.request and known else c.action.text) for c in cases}


def run(config: Settings, world: World, **given: Any) -> evolution.Evolved:
    return evolution.run(config, control.connect(config.control_db), AGENT, "test", world.work(), **given)


def test_a_missing_fact_is_mended_by_memory_and_the_record_says_why(config):
    world = World(missing_fact())
    found = run(config, world)
    assert found.state == "Accepted" and found.record["chosen"].startswith("memory-")
    assert found.made["manifest"].memory[0].text == "The warranty is 24 months."
    (kept,) = decisions.list_decisions(control.connect(config.control_db), AGENT)
    chosen = kept["candidates"][kept["chosen"]]
    assert kept["id"] == found.decision_id and chosen["simultaneous"]["low"] > 0
    assert {"no-op", kept["chosen"]} <= {row["name"] for row in kept["ranking"]}
    assert set(world.pages) == {f"{page}-{AGENT}" for page in ("data-gate", "diagnosis", "decision")}


def test_nothing_of_a_dry_run_stays(config):
    world = World(missing_fact())
    found = run(config, world, dry=True)
    assert found.state == "Accepted" and f"decision-{AGENT}" in world.pages
    assert decisions.list_decisions(control.connect(config.control_db), AGENT) == []
    assert world.withdrawn == [found.made["manifest"].digest]


def test_what_lost_is_not_tried_again_without_new_evidence(config):
    class Stubborn(World):
        def answer(self, config, manifest, cases):
            return {c.key: c.action for c in cases}

    cases = missing_fact()
    assert run(config, Stubborn(cases)).state == "No change"
    again = run(config, Stubborn(cases))
    problems = [c["problem"] for c in again.record["candidates"].values()]
    assert problems and all("lost before" in problem for problem in problems)


def test_a_failed_gate_stops_before_anything_is_proposed(config):
    found = run(config, World(missing_fact(), passed=False))
    assert found.state == "Quality gate failed" and "row count" in found.message


def test_the_days_budget_is_counted_from_the_decisions(config):
    small = config.model_copy(update={"evolve": config.evolve.model_copy(update={"budget_per_day": 1})})
    world = World(missing_fact())
    assert run(small, world).state == "Accepted"
    second = run(small, world)
    assert second.state == "Over budget" and "budget is 1" in second.message
    assert run(small, world, dry=True).state == "Accepted"


def test_one_evolution_of_an_agent_at_a_time(config, monkeypatch):
    monkeypatch.setattr(evolution, "_LOCK_WAIT_S", 0.1)
    world = World(missing_fact())

    def meanwhile(config, agent):
        with pytest.raises(locks.Busy):
            run(config, World(missing_fact()))
        return world.work().snapshot(config, agent)

    work = replace(world.work(), snapshot=meanwhile)
    assert evolution.run(config, control.connect(config.control_db), AGENT, "test", work).state == "Accepted"


def test_one_policy_candidate_is_trained_and_the_record_says_why_no_other(config):
    """Demonstrations, pairs and hints are there; successes and groups are not."""
    trained: list[str] = []

    def train(config, agent, proposal):
        trained.append(proposal.content["algorithm"])
        return {"agent": agent, "digest": "sha256:" + "0" * 64, "path": "policies/0", "result": {"steps": 1}}

    class Able(World):
        def answer(self, config, manifest, cases):
            return {c.key: c.wanted or c.action for c in cases}

        def work(self):
            return replace(super().work(), train=train)

    cases = [of(c, prompt_token_ids=[n, 9]) for n, c in enumerate(unable(160))]
    alone = run(config, Able(cases), dry=True)
    assert trained == [] and alone.record["chosen"] == "no-op"
    assert all("none has agreed to pooling" in c["problem"] for c in alone.record["candidates"].values())
    for tenant in ("northwind", "lumen"):
        connection = control.connect(config.control_db)
        tenants.create_tenant(connection, tenant, train="allow")
        tenant_policy.put(connection, tenant, tenant_policy.TenantPolicy(pooling=True), "test")
    found = run(config, Able(cases))
    assert trained == ["sft"] and found.record["chosen"].startswith("policy-")
    why = {c["summary"].split("(")[1].split(")")[0]: c["problem"] for c in found.record["candidates"].values()}
    assert "before it comes adapter (sft)" in why["dpo"] and "before it comes adapter (sft)" in why["opd"]
    assert why["rft"].startswith("rft needs 32") and why["grpo"].startswith("grpo needs 32")
    more = config.model_copy(update={"surfaces": config.surfaces.model_copy(update={"max_trained": 2})})
    trained.clear()
    run(more, Able(cases), dry=True)
    assert trained == ["sft", "dpo"]
    spent = more.model_copy(update={"evolve": more.evolve.model_copy(update={"trainings_per_day": 2})})
    trained.clear()
    run(spent, Able(cases), dry=True)
    assert trained == ["sft"], "one was trained today, and two may be"


def test_work_that_suffers_nothing_but_noise_is_left_alone(config):
    cases = [make_case("How long is delivery?", reward=1.0, text="4 days") for _ in range(60)]
    cases += [make_case("How long is delivery?", text="Hm.") for _ in range(4)]
    found = run(config, World(cases))
    assert found.state == "Nothing to propose" and found.record["chosen"] == "no-op"
    assert corrections.established(cases) == []
