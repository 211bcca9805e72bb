"""deliver: a version on its way to users.

    load → shadow → canary → approval (the run suspends until a person decides) → promote → watch

Run again from the top after a suspension, the stages done before return their stored results. A stage
that aborts or stays inconclusive ends the run under that name; the champion serves on. A run that dies takes
its version out (`withdraw`); one that had no chance to is cleaned up after by the next.
"""

from __future__ import annotations

import sqlite3
import time
from typing import Any, Literal

import msgspec
from pydantic import Field

from evoplane.settings import Settings, settings
from flows import (
    deliveries,
    environment,  # noqa: F401  (before prefect)
    exposure,
    mirroring,
    policies,
    reports,
    telling,
)
from flows.exposure import StageResult
from flows.rollback import roll_back
from registry import (
    approvals,
    audit,
    candidates,
    control,
    decisions,
    mlflow_approvals,
    pointers,
    serving,
    tenants,
    versions,
)
from registry.manifest import AgentVersion
from registry.policies import Policies
from registry.tenants import RegistryError
from services.worker import client

from prefect import flow, get_run_logger, task  # isort: skip
from prefect.client.schemas.objects import StateType  # isort: skip
from prefect.artifacts import create_markdown_artifact  # isort: skip
from prefect.flow_runs import suspend_flow_run  # isort: skip
from prefect.input import RunInput  # isort: skip
from prefect.runtime import flow_run  # isort: skip
from prefect.states import Completed, Failed  # isort: skip

_STATES: dict[str, candidates.State] = {
    "Shadow abort": "aborted",
    "Shadow inconclusive": "paused",
    "Canary aborted": "aborted",
    "Inconclusive": "paused",
    "Rejected": "rejected",
    "Expired": "expired",
    "Superseded": "withdrawn",
    "Promoted": "serving",
    "Rolled back": "rolled_back",
}
"""How a delivery ends -> the state of its candidate, where it has not got there by itself."""
_SUSPENSION_MARGIN_S = 60
"""Prefect gives up this much later than the approval itself expires, so that the record decides."""


class ApprovalForm(RunInput):
    """The form in Prefect's UI. Nothing has a default: an empty form must not approve."""

    decision: Literal["approve", "reject"] = Field(description="Serve this version to every user?")
    reviewer: str = Field(min_length=2, description="Your name, as the agent's list of approvers has it")
    note: str = Field(description="Why; kept in the audit log")


def withdraw(flow: Any, flow_run: Any, state: Any) -> None:
    """Hook of a run that crashed, failed or was cancelled: nobody watches its canary or shadow any more.

    What failed or was cancelled has ended; what crashed is taken up again when the flows start.
    """
    agent, version = flow_run.parameters["agent"], flow_run.parameters["version"]
    connection = control.connect(settings().control_db)
    if agent not in pointers.all_routes(connection):
        return
    take_out(connection, agent, version, f"the delivery {state.name.lower()}")
    known = candidates.get(connection, agent, version)
    if state.type != StateType.CRASHED and known is not None and known.state == "approval":
        candidates.move(connection, agent, version, "withdrawn", f"the delivery {state.name.lower()}")
    if state.type != StateType.CRASHED and version in deliveries.under_way(connection, agent):
        detail = {"version": version, "outcome": state.name, "why": state.message or ""}
        audit.append(connection, "deliver", "delivery.ended", agent, detail)


def take_out(connection: sqlite3.Connection, agent: str, version: str, why: str) -> None:
    """End this version's shadow and canary; another version's stay. What is promoted or asked about is left alone."""
    known = candidates.get(connection, agent, version)
    if known is not None and known.state in ("accepted", "shadow", "canary"):
        candidates.move(connection, agent, version, "withdrawn", why)
    pointers.clear_shadow(connection, agent, why, only=version)
    pointers.clear_canary(connection, agent, why, only=version)


@flow(
    name="deliver",
    flow_run_name="deliver {agent} version {version}",
    persist_result=True,
    log_prints=True,
    on_failure=[withdraw],
    on_crashed=[withdraw],
    on_cancellation=[withdraw],
)
def deliver(agent: str, version: str, skip_shadow: bool = False) -> Any:
    """Bring one version to users, or take it out."""
    config = settings()
    connection = control.connect(config.control_db)
    route = pointers.read_route(connection, agent)
    if version not in pointers.versions(connection, agent):
        return Failed(name="Unknown version", message=f"{agent} has no version {version!r}")
    take_out(connection, agent, version, "left over from a delivery that died")
    champion = start(agent, version, route.champion, skip_shadow)
    if champion == version:
        detail = {"version": version, "outcome": "Already champion", "why": ""}
        audit.append(connection, "deliver", "delivery.ended", agent, detail)
        return Completed(name="Already champion", message=f"version {version} serves already")
    known = candidates.get(connection, agent, version)
    if known is not None and known.state == "withdrawn":  # this run died before, and was started again
        candidates.move(connection, agent, version, "accepted")
    approvers, needed = set(tenants.get_agent(connection, agent).approvers), config.delivery.approvals_needed
    if len(approvers) < needed:
        why = f"{needed} must approve a promotion and the agent names {len(approvers)} approvers"
        return end_delivery(config, agent, version, "No approver", why, failed=True)
    refused = load_policy(agent, version)
    if refused:
        return end_delivery(config, agent, version, "Not loadable", refused, failed=True)
    if not skip_shadow:
        shadowed = shadow_stage(agent, version)
        if shadowed.end != "pass":
            return end_delivery(config, agent, version, f"Shadow {shadowed.end}", shadowed.reason)
    tried = canary_stage(agent, version)
    if tried.end == "abort":
        return abort_canary(config, agent, version, tried)
    if tried.end == "inconclusive":
        return end_delivery(config, agent, version, "Inconclusive", f"canary paused: {tried.reason}")
    approval = ask(config, agent, version, champion, tried)
    if approval.status != "approved":
        name, why = approval.status.capitalize(), f"approval {approval.id}: {approval.reason}"
        return end_delivery(config, agent, version, name, why)
    try:
        promoted_at = promote(agent, version, approval.id, str(approval.decided_by), champion)
    except RegistryError as error:
        return end_delivery(config, agent, version, "Superseded", f"not promoted: {error}")
    try:
        return confirm(config, agent, version, champion, approval, promoted_at)
    except pointers.RouteChanged as error:
        return end_delivery(config, agent, version, "Superseded", f"not rolled back: {error}")


def confirm(
    config: Settings, agent: str, version: str, champion: str, approval: approvals.Approval, promoted_at: str
) -> Any:
    """After the promotion: proof that users get the version, MLflow's view of it, and the watch.

    Raises `RouteChanged` when it would have to be rolled back and somebody moved users on before.
    """
    connection = control.connect(config.control_db)
    try:
        seconds = serving.verify(config, agent, version)
    except serving.NotServed as error:
        roll_back(config, agent, champion, f"promotion did not take effect: {error}", "deliver", expected=version)
        return end_delivery(config, agent, version, "Not served", str(error), failed=True)
    get_run_logger().info("the gateway answers with version %s (verified in %.2f s)", version, seconds)
    lineage = {"approver": str(approval.decided_by), "approval": approval.id}
    mirroring.tags(config, connection, agent, version, lineage)
    mirroring.aliases(config, connection, agent)
    seen = watch_stage(agent, version, champion, promoted_at)
    if seen.end == "abort":
        roll_back(config, agent, champion, f"after promotion {seen.reason}", "deliver", expected=version)
        return end_delivery(config, agent, version, "Rolled back", seen.reason)
    if seen.end == "superseded":
        return end_delivery(config, agent, version, "Superseded", f"it was promoted; {seen.reason}")
    return end_delivery(config, agent, version, "Promoted", f"version {version} serves; watch: {seen.reason}")


@task(persist_result=True, task_run_name="start {agent} {version}")
def start(agent: str, version: str, champion: str, skip_shadow: bool) -> str:
    """Remember who was champion when the delivery began; a skipped gate is audited."""
    detail = {"version": version, "champion": champion, "skip_shadow": skip_shadow}
    connection = control.connect(settings().control_db)
    with control.transaction(connection):
        audit.append(connection, "deliver", "delivery.started", agent, detail)
        if champion != version:
            begin(connection, agent, version)
    return champion


def begin(connection: sqlite3.Connection, agent: str, version: str) -> None:
    """The candidate's delivery begins, or begins anew after one that ended or died on the way."""
    known = candidates.get(connection, agent, version)
    if known is not None and known.state in ("shadow", "canary", "approval"):
        candidates.move(connection, agent, version, "withdrawn", "delivered anew")
    candidates.move(connection, agent, version, "accepted")


@task(persist_result=True, task_run_name="load {version}")
def load_policy(agent: str, version: str) -> str:
    """Have the worker serve the version's weights; returns why it would not, or nothing."""
    config = settings()
    manifest = _version(config, agent, version).manifest
    try:
        client.load(config, manifest.policy, client.known_probe(config, manifest.policy.adapter))
    except client.PolicyRefused as error:
        return str(error)
    return ""


@task(persist_result=True, task_run_name="shadow {version}")
def shadow_stage(agent: str, version: str) -> StageResult:
    config = settings()
    progress = reports.Progress(f"shadow-{agent}", f"mirrored sessions of version {version}")
    result = exposure.shadow(config, agent, version, progress.set)
    _note(agent, version, "shadow", result)
    return result


@task(persist_result=True, task_run_name="canary {version}")
def canary_stage(agent: str, version: str) -> StageResult:
    config = settings()
    progress = reports.Progress(f"canary-{agent}", f"judged canary sessions of version {version}")
    result = exposure.canary(config, agent, version, progress.set)
    if result.end != "pass":
        payload = {"agent": agent, "version": version, "reason": result.reason, "decided_at": result.decided_at}
        event = telling.ABORTED if result.end == "abort" else telling.PAUSED
        id = f"canary-{agent}-{version}-{flow_run.id}"
        telling.tell(config, control.connect(config.control_db), event, agent, id, payload)
    _note(agent, version, "canary", result)
    return result


@task(persist_result=True, task_run_name="promote {version}")
def promote(agent: str, version: str, approval_id: str, approver: str, champion: str) -> str:
    """Flip the pointer; returns when users were moved.

    Raises `RegistryError` when the approval's delivery is over, or users have another champion than the one the
    version was compared with.
    """
    connection = control.connect(settings().control_db)
    at = control.now()
    with control.transaction(connection):
        if not approvals.in_force(connection, approvals.get(connection, approval_id)):
            raise RegistryError(f"approval {approval_id} is not in force any more")
        candidates.move(connection, agent, version, "promoted", f"approval {approval_id}", approver)
        pointers.set_champion(connection, agent, version, f"approval {approval_id}", approver, expected=champion)
    return at


@task(persist_result=True, task_run_name="watch {version}")
def watch_stage(agent: str, version: str, previous: str, since: str) -> StageResult:
    config = settings()
    progress = reports.Progress(f"watch-{agent}", f"judged sessions of version {version} after its promotion")
    result = exposure.watch(config, agent, version, previous, since, progress.set)
    _note(agent, version, "watch", result)
    return result


def ask(config: Settings, agent: str, version: str, champion: str, tried: StageResult) -> approvals.Approval:
    """The person's decision: the record if there is one, else what the form says once it is filled in.

    The first time the run suspends inside this function. A form signed by someone who may not decide is
    refused, and the run waits on.
    """
    connection = control.connect(config.control_db)
    timeout_s = config.delivery.approval_timeout_s
    evidence = approval_evidence(config, agent, version, champion, tried)
    needed = config.delivery.approvals_needed
    run = str(flow_run.id)
    if all(known.flow_run_id != run for known in approvals.list_approvals(connection, agent)):
        mlflow_approvals.begin(config, agent, version)
    approval = approvals.request(connection, agent, version, evidence, timeout_s, run, needed)
    candidates.settle(connection, agent, version, "approval", approval.id)
    create_markdown_artifact(key=f"approval-{agent}", markdown=reports.approval_page(msgspec.to_builtins(approval)))
    if approval.status == "pending":
        payload = {"agent": agent, "version": version, "approval": approval.id, "missing": approval.missing}
        telling.tell(config, connection, telling.WAITING, agent, approval.id, payload)
    attempt = 0
    while (approval := approvals.get(connection, approval.id)).status == "pending":
        left = max(1, round(approval.left_s())) + _SUSPENSION_MARGIN_S
        form = suspend_flow_run(wait_for_input=ApprovalForm, timeout=left, key=f"approval-{attempt}")
        attempt += 1
        approval = approvals.get(connection, approval.id)
        if approval.status != "pending":
            break
        decision: Literal["approved", "rejected"] = "approved" if form.decision == "approve" else "rejected"
        try:
            rules = Policies.load(config.policies_dir)
            approvals.decide(connection, approval.id, decision, form.reviewer, "prefect-ui", form.note, policies=rules)
        except RegistryError as error:
            get_run_logger().warning("form refused: %s", error)
            audit.append(connection, form.reviewer, "approval.refused", approval.id, {"why": str(error)})
    return approval


def approval_evidence(config: Settings, agent: str, version: str, champion: str, tried: StageResult) -> dict[str, Any]:
    """What the approver should read, on one page."""
    connection = control.connect(config.control_db)
    candidate = _version(config, agent, version)
    evidence: dict[str, Any] = {
        "change": candidate.description,
        "intervention": candidate.intervention,
        "replaces": champion,
        "canary": {"sessions": tried.candidate, "champion_sessions": tried.champion, "verdict": tried.reason},
        "lineage": candidate.lineage,
        "mlflow": versions.version_url(config, agent, version),
    }
    if tried.difference is not None:
        evidence["canary"]["difference"] = str(tried.difference)
    if candidate.lineage.get("decision"):
        record = decisions.get(connection, candidate.lineage["decision"])
        chosen = record["candidates"].get(record["chosen"], {})
        evidence["diff"] = chosen.get("diff", "")
        evidence["risk"] = chosen.get("risk", "")
        evidence["why"] = [f"{r['name']}: {r['why']}" for r in record["ranking"]]
    return evidence


def abort_canary(config: Settings, agent: str, version: str, tried: StageResult) -> Any:
    """Bookkeeping after the canary is already out: proof that everyone is back, aliases."""
    connection = control.connect(config.control_db)
    champion = pointers.read_route(connection, agent).champion
    try:
        seconds = serving.verify(config, agent, champion)
    except serving.NotServed as error:
        return end_delivery(config, agent, version, "Not served", str(error), failed=True)
    mirroring.aliases(config, connection, agent)
    why = f"{tried.reason}; version {champion} answers again (verified in {seconds:.2f} s)"
    return end_delivery(config, agent, version, "Canary aborted", why)


def end_delivery(config: Settings, agent: str, version: str, name: str, message: str, failed: bool = False) -> Any:
    """End the delivery under a name; only what needs an engineer is a failure."""
    connection = control.connect(config.control_db)
    end = _STATES.get(name)
    if end is not None:
        candidates.settle(connection, agent, version, end, message)
    take_out(connection, agent, version, message)
    audit.append(connection, "deliver", "delivery.ended", agent, {"version": version, "outcome": name, "why": message})
    mirroring.tags(config, connection, agent, version, {"delivery": f"{name}: {message}"})
    policies.retire(config, connection)
    return Failed(name=name, message=message) if failed else Completed(name=name, message=message)


def _note(agent: str, version: str, stage: str, result: StageResult) -> None:
    """The stage's evidence, in the audit log and on the run page."""
    detail = reports.finite(msgspec.to_builtins(result))
    audit.append(
        control.connect(settings().control_db),
        "deliver",
        f"{stage}.{result.end}",
        agent,
        {"version": version, **detail},
    )
    create_markdown_artifact(
        key=f"{stage}-gate-{agent}", markdown=reports.stage_page(stage, version, detail, time.strftime("%H:%M:%S"))
    )


def _version(config: Settings, agent: str, version: str) -> AgentVersion:
    return pointers.versions(control.connect(config.control_db), agent)[version]
