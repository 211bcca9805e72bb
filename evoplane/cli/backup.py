"""`evoplane backup`, `evoplane restore`: everything that can't be rebuilt, out and back in."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from evoplane.cli.output import Json, err, show
from evoplane.settings import settings
from evoplane.stack import backup as backups
from evoplane.stack.backup import Manifest


def backup(
    target: Annotated[Path, typer.Argument(help="A directory that does not exist yet.")],
    with_master_key: Annotated[
        bool, typer.Option("--with-master-key", help="Put the master key in too: whoever has both reads everything.")
    ] = False,
    json: Json = False,
) -> None:
    """Copy the deployment while it runs: event logs, control database, blobs, snapshots, policies, MLflow, Prefect.

    Example: evoplane backup /backups/evoplane-2026-11-30
    """
    made = backups.make(settings(), target, with_master_key=with_master_key, progress=_say)
    show(_told(target, made), json)


def restore(
    source: Annotated[Path, typer.Argument(help="A backup.")],
    check: Annotated[bool, typer.Option("--check", help="Only see whether every file is as it was written.")] = False,
    json: Json = False,
) -> None:
    """Put a backup where this configuration's deployment will be; refuses where one is.

    Example: evoplane restore /backups/evoplane-2026-11-30 && evoplane up && evoplane trajectories verify
    """
    found = backups.check(source) if check else backups.restore(settings(), source, _say)
    show(_told(source, found), json)


def _say(line: str) -> None:
    err.print(line, style="dim", highlight=False)


def _told(place: Path, manifest: Manifest) -> dict[str, Any]:
    return {
        "backup": str(place),
        "made_at": manifest.made_at,
        "files": len(manifest.files),
        "bytes": sum(entry.bytes for entry in manifest.files.values()),
        "event_log": "included" if manifest.engine == "sqlite" else "not included: back up PostgreSQL by its own means",
        "master_key": "included" if manifest.master_key else "not included",
    }
