"""The loop on a real Prefect, MLflow, DVC, Great Expectations and Evidently, in the order of an agent's life."""

from __future__ import annotations

import msgspec
import pytest

from registry import approvals, audit, decisions, pointers, prefect_runs, tracking, versions
from registry.manifest import Harness, Policy
from tests.flows.conftest import AGENT, World, wait_for

pytestmark = [pytest.mark.stack, pytest.mark.timeout(900)]


def test_without_evidence_the_data_gate_stops_the_evolution(world: World):
    world.emit("evoplane.agent.degraded", reason="a test")
    wait_for(lambda: "Quality gate failed" in world.states("evolve"), "the data gate", 120, world.runs)
    assert world.route().champion == "1" and not decisions.list_decisions(world.connection, AGENT)


def test_users_corrections_become_an_approved_version(world: World):
    world.serve(80)
    for _ in range(3):
        world.emit("evoplane.monitor.requested")
    wait_for(lambda: world.route().shadow == "2", "the candidate in shadow", 240, world.runs)
    assert sorted(world.states("evolve")).count("Accepted") <= 1
    (decision,) = decisions.list_decisions(world.connection, AGENT)
    assert decision["ranking"][0]["surface"] == "memory" and decision["snapshot"].endswith(".dir")

    world.serve_until(world.pending, "the canary to pass and the approval to be asked")
    approval = world.pending()
    assert approval is not None and approval.evidence["canary"]["verdict"]
    with pytest.raises(Exception, match="may not decide"):
        approvals.decide(world.connection, approval.id, "approved", "mallory", "cli")
    decided, _ = approvals.decide(world.connection, approval.id, "approved", "dana", "cli", "clear")
    prefect_runs.resume_approval(world.config, decided)  # unless the flows, which look too, were first
    wait_for(lambda: world.route().champion == "2", "the promotion", 120, world.runs)
    world.serve_until(lambda: world.outcome("2"), "the watch to end")
    assert world.outcome("2") == "Promoted"
    assert all(ticket.right for ticket in world.serve(12))

    assert len([s for s in world.states("evolve") if s == "Accepted"]) == 1  # three requests, one evolution
    mlflow = tracking.client(world.config)
    assert dict(mlflow.get_registered_model(AGENT).aliases) == {"champion": "2", "previous": "1"}
    tags = mlflow.get_model_version(AGENT, "2").tags
    assert tags["approver"] == "dana" and tags["snapshot"] == decision["snapshot"] and tags["parent"] == "1"
    assert tags["data_gate"].startswith("passed") and tags["decision"] == decision["id"]


def test_a_bad_candidate_forced_in_is_thrown_out_by_the_canary(world: World):
    manifest = pointers.versions(world.connection, AGENT)["2"].manifest
    policy = msgspec.structs.replace(manifest.policy, served_name="support-poisoned")
    bad = versions.register(
        world.config, world.connection, AGENT, msgspec.structs.replace(manifest, policy=policy),
        parent="2", intervention="forced",
    )  # fmt: skip
    assert isinstance(policy, Policy)
    world.emit("evoplane.candidate.accepted", version=bad.version, skip_shadow=True)
    wait_for(lambda: world.route().canary == bad.version, "the bad canary", 120, world.runs)
    world.serve_until(lambda: world.route().canary is None, "the abort")
    wait_for(lambda: world.outcome(bad.version) == "Canary aborted", "the end of the delivery", 60, world.runs)
    assert world.route().champion == "2" and not world.pending()
    assert [e for e in audit.entries(world.connection, AGENT) if e.action == "canary.abort"]


def test_a_rejected_version_is_not_promoted_and_the_form_needs_an_approver(world: World):
    manifest = pointers.versions(world.connection, AGENT)["2"].manifest
    changed = msgspec.structs.replace(manifest, harness=Harness(params={"seed": 1}))
    candidate = versions.register(world.config, world.connection, AGENT, changed, parent="2", intervention="forced")
    world.emit("evoplane.candidate.accepted", version=candidate.version, skip_shadow=True)
    world.serve_until(world.pending, "the approval to be asked", 400)
    approval = world.pending()
    assert approval is not None and approval.flow_run_id is not None
    form = {"decision": "approve", "reviewer": "mallory", "note": "let me in"}
    assert prefect_runs.resume_run(world.config, approval.flow_run_id, form)["status"] == "ACCEPT"

    def suspended_again() -> bool:
        refused = [e for e in audit.entries(world.connection, approval.id) if e.action == "approval.refused"]
        return bool(refused) and prefect_runs.read_run(world.config, approval.flow_run_id)["state_type"] == "PAUSED"

    wait_for(suspended_again, "the refusal of an unknown reviewer", 90, world.runs)
    form = {"decision": "reject", "reviewer": "dana", "note": "wrong tone"}
    assert prefect_runs.resume_run(world.config, approval.flow_run_id, form)["status"] == "ACCEPT"
    wait_for(lambda: world.outcome(candidate.version) == "Rejected", "the rejection", 90, world.runs)
    assert world.route().champion == "2"
    assert approvals.get(world.connection, approval.id).channel == "prefect-ui"


def test_rollback_brings_the_previous_version_back(world: World):
    world.emit("evoplane.rollback.requested", why="a test")
    wait_for(lambda: "Rolled back" in world.states("rollback"), "the rollback", 90, world.runs)
    assert world.route().champion == "1"
    assert dict(tracking.client(world.config).get_registered_model(AGENT).aliases)["champion"] == "1"
