from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from registry import control, pointers, tenants
from registry.manifest import AgentVersion, Manifest, Policy


@pytest.fixture
def connection(tmp_path: Path) -> sqlite3.Connection:
    """A control database with one tenant, one agent and versions 1 to 3; 1 serves."""
    connection = control.connect(tmp_path / "control.sqlite")
    tenants.create_tenant(connection, "acme", train="allow")
    tenants.create_agent(connection, "support", "model", approvers=("dana", "eli"))
    for number in ("1", "2", "3"):
        manifest = Manifest(policy=Policy(base="model", served_name=f"support-v{number}"))
        version = AgentVersion(agent="support", version=number, digest=manifest.digest, manifest=manifest)
        pointers.put_version(connection, version)
    pointers.set_champion(connection, "support", "1", "first", "test")
    return connection
