"""The `evoplane` command: one Typer application, one way to fail."""

from __future__ import annotations

import sys

import typer

from evoplane import __version__
from evoplane.cli.commands import Commands
from evoplane.cli.output import err, print_json

app = typer.Typer(
    name="evoplane",
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="The control plane for agents that improve from their own work.",
)


@app.callback()
def _group() -> None:
    """What all commands share: nothing."""


def version() -> None:
    """Print the version.

    Example: evoplane version
    """
    typer.echo(__version__)


def main() -> None:
    """Entry point: known failures become one line and exit status 1; 2 when the configuration is wrong."""
    try:
        app()
    except Exception as error:
        if not isinstance(error, _known()):
            raise
        if "--json" in sys.argv:
            print_json({"error": str(error)})
        err.print(f"error: {error}", style="red", highlight=False, markup=False)
        sys.exit(_status(error))


def _status(error: Exception) -> int:
    from evoplane.settings import WRONG_SETTINGS, SettingsError

    return WRONG_SETTINGS if isinstance(error, SettingsError) else 1


def _known() -> tuple[type[Exception], ...]:
    """Failures that need no trace; imported when one happened, for some are far from what a command needs."""
    import sqlite3

    from evoplane.settings import SettingsError
    from evoplane.stack.backup import BackupError
    from registry.tenants import RegistryError
    from services.proxy.engines.base import Misconfigured, StorageFailed, StorageRefused

    return (
        RegistryError,
        SettingsError,
        OSError,
        sqlite3.Error,
        StorageFailed,
        StorageRefused,
        Misconfigured,
        BackupError,
    )
