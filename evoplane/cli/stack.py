"""`evoplane up`, `down`, `status`, `doctor`, `serve`: the processes of one machine."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Literal

import msgspec
import typer

from evoplane.cli.output import Json, err, out, print_json, show
from evoplane.settings import settings
from evoplane.stack import state, supervisor
from evoplane.stack.doctor import doctor as examine


def up(
    detach: Annotated[bool, typer.Option(help="Return once everything is healthy.")] = True,
    only: Annotated[list[str] | None, typer.Option(help="Only these components; repeat for more.")] = None,
    json: Json = False,
) -> None:
    """Start gateway, worker, Prefect, flows, MLflow, Evidently and the console, and keep them running.

    Example: evoplane up
    Example: evoplane up --no-detach   (stays in the foreground; Ctrl-C stops everything)
    """
    supervisor.up(settings(), only=only, detach=detach, progress=lambda line: err.print(line, highlight=False))
    if detach:
        status(json=json)


def down(json: Json = False) -> None:
    """Stop everything `up` started; nothing is left running.

    Example: evoplane down
    """
    config = settings()
    stopped = supervisor.down(config)
    if not stopped:
        err.print(f"nothing ran in {config.var}; `EVOPLANE_PATHS__VAR` names another deployment's", highlight=False)
        for folder in state.running_below(config.var):
            err.print(f"a stack runs in {folder}: EVOPLANE_PATHS__VAR={folder} evoplane down", highlight=False)
    show({"stopped": stopped}, json)


def status(json: Json = False) -> None:
    """Show each component with its state and URL. Exit 1 unless all are healthy.

    Example: evoplane status --json
    """
    rows = [msgspec.to_builtins(component) for component in state.status(settings())]
    show(rows, json)
    if not rows and not json:
        err.print(f"not started in {settings().var}: `evoplane up` starts it", highlight=False)
    raise typer.Exit(0 if rows and all(row["state"] == "healthy" for row in rows) else 1)


def doctor(json: Json = False) -> None:
    """Say what is wrong with this installation and what to do. Exit 1 on a problem.

    Example: evoplane doctor
    """
    findings = [vars(finding) for finding in examine(settings())]
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
