"""The `evoplane` command: one Typer application, one way to fail."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable

import typer

from evoplane import __version__
from evoplane.cli import (
    approvals,
    atdp,
    backup,
    bench,
    delivery,
    governance,
    identity,
    learning,
    lineage,
    loop,
    mcp,
    rewards,
    stack,
    store,
    trajectories,
    watching,
)
from evoplane.cli.demo import demo
from evoplane.cli.feedback import feedback
from evoplane.cli.output import err, print_json
from evoplane.cli.replay import replay
from evoplane.settings import SettingsError
from evoplane.stack.backup import BackupError
from registry.tenants import RegistryError
from services.proxy.engines.base import Misconfigured, StorageFailed

app = typer.Typer(
    name="evoplane",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="The control plane for agents that improve from their own work.",
)
app.add_typer(identity.tenant_app, name="tenant")
app.add_typer(identity.agent_app, name="agent")
app.add_typer(identity.key_app, name="key")
app.add_typer(governance.grant_app, name="grant")
app.add_typer(governance.role_app, name="role")
app.add_typer(trajectories.app, name="trajectories")
app.add_typer(approvals.app, name="approvals")
app.add_typer(rewards.app, name="rewards")
app.add_typer(mcp.app, name="mcp")
app.add_typer(store.app, name="store")
app.add_typer(atdp.app, name="atdp")
app.add_typer(bench.app, name="bench")
COMMANDS: tuple[Callable[..., None], ...] = (
    *(stack.up, stack.down, stack.status, stack.doctor, stack.serve),
    *(loop.monitor, loop.diagnose, loop.evolve, delivery.deliver, delivery.promote, delivery.rollback),
    *(learning.snapshot, learning.train, replay, feedback, demo),
    *(lineage.lineage, lineage.impact, backup.backup, backup.restore),
    *(watching.stats, watching.drift_),
)
for command in COMMANDS:
    app.command(command.__name__)(command)


@app.command("version")
def version() -> None:
    """Print the version.

    Example: evoplane version
    """
    typer.echo(__version__)


def main() -> None:
    """Entry point: known failures become one line and exit status 1."""
    try:
        app()
    except (RegistryError, SettingsError, OSError, sqlite3.Error, StorageFailed, Misconfigured, BackupError) as error:
        if "--json" in sys.argv:
            print_json({"error": str(error)})
        err.print(f"error: {error}", style="red", highlight=False)
        sys.exit(1)
