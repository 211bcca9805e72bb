"""`evoplane up`, `down`, `status`, `doctor`, `serve`: the processes of one machine."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Literal

import typer

from evoplane.cli.output import Json, err, out, print_json, show
from evoplane.settings import settings


def up(
    detach: Annotated[bool, typer.Option(help="Return once everything is healthy.")] = True,
    only: Annotated[list[str] | None, typer.Option(help="Only these components; repeat for more.")] = None,
    json: Json = False,
) -> None:
    """Start gateway, worker, Prefect, flows, MLflow and Evidently, and keep them running.

    Example: evoplane up
    Example: evoplane up --no-detach   (stays in the foreground; Ctrl-C stops everything)
    """
    from evoplane.stack import supervisor

    supervisor.up(settings(), only=only, detach=detach, progress=None if json else lambda line: err.print(line))
    if detach:
        status(json=json)


def down(json: Json = False) -> None:
    """Stop everything `up` started; nothing is left running.

    Example: evoplane down
    """
    from evoplane.stack import supervisor

    supervisor.down(settings())
    show({"stopped": True}, json)


def status(json: Json = False) -> None:
    """Show each component with its state and URL. Exit 1 unless all are healthy.

    Example: evoplane status --json
    """
    from evoplane.stack.status import status as read_status

    rows = [vars(row) if hasattr(row, "__dict__") else row for row in read_status(settings())]
    show(rows, json)
    raise typer.Exit(0 if rows and all(row["state"] == "healthy" for row in rows) else 1)


def doctor(json: Json = False) -> None:
    """Say what is wrong with this installation and what to do. Exit 1 on a problem.

    Example: evoplane doctor
    """
    from evoplane.stack.doctor import doctor as examine

    findings = [vars(f) if hasattr(f, "__dict__") else f for f in examine(settings())]
    if json:
        print_json(findings)
    for finding in findings if not json else []:
        colour = {"error": "red", "warning": "yellow"}.get(finding["level"], "green")
        out.print(f"[{colour}]{finding['level']:<8}[/{colour}]{finding['what']}", highlight=False)
        if finding["do"]:
            out.print(f"        → {finding['do']}", highlight=False)
    raise typer.Exit(1 if any(f["level"] == "error" for f in findings) else 0)


def serve(
    role: Annotated[Literal["gateway", "worker"], typer.Argument(help="gateway (with router and proxy) or worker.")],
) -> None:
    """Run one role in the foreground.

    Example: evoplane serve gateway
    """
    os.execv(sys.executable, [sys.executable, "-m", f"services.{role}"])  # noqa: S606
