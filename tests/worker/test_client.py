"""A rollback to a version whose adapter may not be loaded any more."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from evoplane.cli import following, rollback
from evoplane.settings import Settings
from registry import control, pointers, tenants
from registry.manifest import AgentVersion, Manifest, Policy
from registry.tenants import RegistryError
from services.worker import client


@pytest.fixture
def connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> sqlite3.Connection:
    """Versions 1 to 3 with an adapter each, served in this order; nothing answers where the worker should be."""
    config = Settings.model_validate({"paths": {"var": str(tmp_path)}, "worker": {"port": 9}})
    monkeypatch.setattr(rollback, "settings", lambda: config)
    monkeypatch.setattr(following, "mirror", lambda *_: None)
    connection = control.connect(config.control_db)
    tenants.create_agent(connection, "support", "model", approvers=("dana",))
    for n in ("1", "2", "3"):
        manifest = Manifest(policy=Policy(base="model", served_name=f"v{n}", adapter=f"sha256:{n}", path=f"p/{n}"))
        version = AgentVersion(agent="support", version=n, digest=manifest.digest, manifest=manifest)
        pointers.put_version(connection, version)
        pointers.set_champion(connection, "support", n, "better", "test")
    return connection


def test_previous_serves_again_whatever_the_worker_says(connection: sqlite3.Connection) -> None:
    rollback.rollback("support", json=True)
    assert pointers.read_route(connection, "support").champion == "2"


def test_an_older_version_that_cannot_be_loaded_is_not_served(connection: sqlite3.Connection) -> None:
    with pytest.raises(RegistryError, match="version 1 of support cannot be served: the worker does not answer"):
        rollback.rollback("support", to="1", json=True)
    assert pointers.read_route(connection, "support").champion == "3"


def test_an_older_version_is_loaded_before_it_serves(
    connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    champion_at_load = []

    def load(_: Settings, policy: Policy, __: object) -> None:
        champion_at_load.append((policy.served_name, pointers.read_route(connection, "support").champion))

    monkeypatch.setattr(client, "load", load)
    rollback.rollback("support", to="1", json=True)
    assert champion_at_load == [("v1", "3")]
    assert pointers.read_route(connection, "support").champion == "1"
