"""`evoplane approvals`: read the evidence, say yes or no."""

from __future__ import annotations

import getpass
import os
import sqlite3
from typing import Annotated, Any, Literal

import msgspec
import typer

from evoplane.cli.output import Json, err, show
from evoplane.settings import settings
from registry import approvals, control, prefect_runs
from registry.policies import Policies
from registry.tenants import RegistryError

app = typer.Typer(no_args_is_help=True, help="Promotions that wait for a person.")

By = Annotated[
    str | None,
    typer.Option("--by", help="Your name, as the agent's list of approvers has it; or prove it: EVOPLANE_KEY."),
]
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
def approve(id: str, by: By = None, reason: Reason = "", json: Json = False) -> None:
    """Approve a promotion. Approving twice promotes once; several people may be needed.

    With an operating key of yours in EVOPLANE_KEY the record says that your name was proven, not typed.

    Example: evoplane approvals approve apr_0197… --by dana --reason "evidence is clear"
    """
    _decide(id, "approved", by, reason, json)


@app.command("reject")
def reject(id: str, by: By = None, reason: Reason = "", json: Json = False) -> None:
    """Reject a promotion: the candidate is taken out, the champion stays.

    Example: evoplane approvals reject apr_0197… --by dana --reason "wrong tone"
    """
    _decide(id, "rejected", by, reason, json)


def _signer(connection: sqlite3.Connection, by: str | None) -> approvals.Signer:
    """Who decides: the owner of the key in EVOPLANE_KEY, or the name that was typed."""
    secret = os.environ.get("EVOPLANE_KEY")
    if secret is None:
        if by is None:
            raise RegistryError("say who decides: --by NAME, or prove it with a key of yours in EVOPLANE_KEY")
        return approvals.Signer(name=by)
    proven = approvals.signer(connection, secret)
    if by is not None and by != proven.name:
        raise RegistryError(f"the key in EVOPLANE_KEY is {proven.name}'s, not {by}'s")
    return proven


def _decide(id: str, decision: Literal["approved", "rejected"], by: str | None, reason: str, json: bool) -> None:
    config = settings()
    connection = control.connect(config.control_db)
    user = getpass.getuser()
    rules = Policies.load(config.policies_dir)
    approval, changed = approvals.decide(
        connection, id, decision, _signer(connection, by), "cli", reason, os_user=user, policies=rules
    )
    resumed: Any = None
    if approval.flow_run_id and changed:
        resumed = prefect_runs.resume_soon(config, approval)
        if resumed["status"] == "LATER" and not json:
            err.print(f"recorded; its run hears of it when Prefect is back ({resumed['why']})", style="yellow")
    if not changed and not json:
        said = ", ".join(grant.by for grant in approval.grants)
        err.print(f"already {approval.status} by {approval.decided_by or said}; nothing changed", style="yellow")
    show(
        {
            "id": id,
            "status": approval.status,
            "by": approval.decided_by,
            "missing": approval.missing,
            "changed": changed,
            "run": resumed,
        },
        json,
    )
