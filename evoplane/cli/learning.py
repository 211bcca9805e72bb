"""`evoplane snapshot`, `evoplane train`: freeze what was recorded, and learn from it."""

from __future__ import annotations

import json as jsonlib
import subprocess
import sys
from typing import Annotated, Any

import typer

from evoplane.cli.output import Json, show
from registry.tenants import RegistryError

Agent = Annotated[str, typer.Option(help="The agent.")]


def snapshot(agent: Agent, json: Json = False) -> None:
    """Freeze an agent's recorded work under a content hash (DVC) and ask the data gate about it (Great Expectations).

    Example: evoplane snapshot --agent support
    """
    found = _run("--agent", agent)
    show(found, json)
    if not found["gate"]["passed"]:
        raise typer.Exit(1)


def train(
    agent: Agent,
    algorithm: Annotated[str, typer.Option(help="sft, rft, dpo, ipo, grpo, ppo, opd, … (docs/learning.md).")] = "sft",
    tenancy: Annotated[str, typer.Option(help="isolated, pooled or federated.")] = "isolated",
    tenant: Annotated[str | None, typer.Option(help="Whose data, when it is isolated and there are several.")] = None,
    by: Annotated[str, typer.Option(help="Who asks, when tenants are brought together.")] = "",
    options: Annotated[str, typer.Option(help="Fields of the training job, as JSON.")] = "{}",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Make the training set, train nothing.")] = False,
    json: Json = False,
) -> None:
    """Train an adapter from an agent's snapshot. It is not served by that: versions pass the gates of `evolve`.

    Example: evoplane train --agent support --algorithm grpo --dry-run
    """
    told = ["--agent", agent, "--algorithm", algorithm, "--tenancy", tenancy, "--options", options, "--by", by]
    if tenant is not None:
        told += ["--tenant", tenant]
    if dry_run:
        told.append("--dry-run")
    show(_run(*told), json)


def _run(*told: str) -> dict[str, Any]:
    """Run the flow in a process of its own, because it is heavy; its last line is JSON."""
    done = subprocess.run([sys.executable, "-m", "flows.train", *told], stdout=subprocess.PIPE, check=False)
    try:
        found: dict[str, Any] = jsonlib.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        found = {"error": f"it ended with status {done.returncode}"}
    if "error" in found:
        raise RegistryError(found["error"])
    return found
