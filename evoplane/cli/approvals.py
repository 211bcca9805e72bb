"""`evoplane approvals`: read the evidence, say yes or no."""

from __future__ import annotations

import getpass
from typing import Annotated, Any, Literal

import msgspec
import typer

from evoplane.cli.output import Json, err, show
from evoplane.settings import settings
from registry import approvals, control, prefect_runs
from registry.policies import Policies

app = typer.Typer(no_args_is_help=True, help="Promotions that wait for a person.")

By = Annotated[str, typer.Option("--by", help="Your name, as the agent's list of approvers has it.")]
Reason = Annotated[str, typer.Option(help="Why; kept in the audit log.")]


@app.command("list")
def list_approvals(
    agent: Annotated[str | None, typer.Option(help="Only this agent's.")] = None,
    pending: Annotated[bool, typer.Option(help="Only those that wait.")] = False,
    json: Json = False,
) -> None:
    """List approvals, oldest first.

    Example: evoplane approvals list --pending
    """
    connection = control.connect(settings().control_db)
    records = [approvals.get(connection, a.id) for a in approvals.list_approvals(connection, agent)]
    columns = ("id", "agent", "version", "status", "requested_at", "expires_at", "decided_by")
    show([{c: getattr(a, c) for c in columns} for a in records if a.status == "pending" or not pending], json)


@app.command("show")
def show_approval(id: str, json: Json = False) -> None:
    """Show one approval with its evidence.

    Example: evoplane approvals show apr_0197…
    """
    show(msgspec.to_builtins(approvals.get(control.connect(settings().control_db), id)), json)


@app.command("approve")
def approve(id: str, by: By, reason: Reason = "", json: Json = False) -> None:
    """Approve a promotion. Approving twice promotes once.

    Example: evoplane approvals approve apr_0197… --by dana --reason "evidence is clear"
    """
    _decide(id, "approved", by, reason, json)


@app.command("reject")
def reject(id: str, by: By, reason: Reason = "", json: Json = False) -> None:
    """Reject a promotion: the candidate is taken out, the champion stays.

    Example: evoplane approvals reject apr_0197… --by dana --reason "wrong tone"
    """
    _decide(id, "rejected", by, reason, json)


def _decide(id: str, decision: Literal["approved", "rejected"], by: str, reason: str, json: bool) -> None:
    config = settings()
    connection = control.connect(config.control_db)
    user = getpass.getuser()
    rules = Policies.load(config.policies_dir)
    approval, changed = approvals.decide(connection, id, decision, by, "cli", reason, os_user=user, policies=rules)
    resumed: Any = None
    if approval.flow_run_id:
        resumed = prefect_runs.resume_approval(config, approval)
    if not changed and not json:
        err.print(f"already {approval.status} by {approval.decided_by}; nothing changed", style="yellow")
    show({"id": id, "status": approval.status, "by": approval.decided_by, "changed": changed, "run": resumed}, json)
