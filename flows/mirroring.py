"""What MLflow shows about a version, brought up to date; that it is away never stops a delivery."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Mapping

from evoplane.settings import Settings
from registry import audit, versions

_log = logging.getLogger("flows.mirroring")


def aliases(config: Settings, connection: sqlite3.Connection, agent: str) -> bool:
    """Bring the aliases in line with the route; returns whether MLflow shows them. Made up for at start-up."""
    try:
        versions.mirror_aliases(config, connection, agent)
    except Exception as error:  # whatever MLflow's client raises: users are served right already
        return _failed(connection, agent, "aliases", error)
    return True


def tags(config: Settings, connection: sqlite3.Connection, agent: str, version: str, values: Mapping[str, str]) -> bool:
    """Add lineage to a version's records: ours always, MLflow's if it answers; returns whether it did."""
    try:
        versions.tag(config, connection, agent, version, values)
    except Exception as error:
        return _failed(connection, agent, f"tags of version {version}", error)
    return True


def _failed(connection: sqlite3.Connection, agent: str, what: str, error: Exception) -> bool:
    _log.warning("MLflow does not show the %s of %s: %s", what, agent, error)
    audit.append(connection, "deliver", "mirror.failed", agent, {"what": what, "why": str(error)[:500]})
    return False
