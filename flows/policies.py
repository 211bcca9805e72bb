"""Which policies the worker has to serve, and taking out the others: it has room for a few adapters only."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import psutil

from evoplane.settings import Settings
from flows import deliveries
from registry import approvals, pointers
from services.worker import client


def candidate_name(agent: str, digest: str) -> str:
    """The name an adapter is served under: content decides it, so the same weights are loaded once."""
    return f"{agent}-c-{digest.removeprefix('sha256:')[:8]}"


def retire(config: Settings, connection: sqlite3.Connection) -> list[str]:
    """Unload every policy nobody needs any more; returns their names."""
    served = client.served(config)  # first: what is loaded from here on is somebody's candidate
    wanted = needed(config, connection)
    return [name for name in served if name not in wanted and client.unload(config, name)]


def needed(config: Settings, connection: sqlite3.Connection) -> set[str]:
    """Names that serve or may come to serve: routes, deliveries, approvals that wait, running evolutions."""
    names = _tried(config)
    for agent, route in pointers.all_routes(connection).items():
        labels = {route.champion, route.previous, route.canary, route.shadow}
        labels.update(deliveries.under_way(connection, agent))
        asked = [approvals.get(connection, a.id) for a in approvals.list_approvals(connection, agent)]
        labels.update(a.version for a in asked if a.status == "pending")
        known = pointers.versions(connection, agent)
        names |= {known[label].manifest.policy.served_name for label in labels if label in known}
    return names


def claim(config: Settings, name: str) -> None:
    """Keep a candidate's policy loaded while this process lives; say so before loading it."""
    folder = _claims(config)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(str(os.getpid()))


def release(config: Settings, name: str) -> None:
    (_claims(config) / name).unlink(missing_ok=True)


def abandoned(config: Settings) -> list[str]:
    """What was claimed by processes that are gone without having released it."""
    return sorted(file.name for file in _claims(config).glob("*") if not _lives(file))


def _tried(config: Settings) -> set[str]:
    return {file.name for file in _claims(config).glob("*") if _lives(file)}


def _lives(file: Path) -> bool:
    try:
        return psutil.pid_exists(int(file.read_text()))
    except (OSError, ValueError):  # just released, or half written: the latter is about to be loaded
        return file.exists()


def _claims(config: Settings) -> Path:
    return config.var / "policies" / "claims"
