"""Which adapters stay on the model server."""

from __future__ import annotations

import sqlite3
import subprocess
from pathlib import Path

import pytest

from evoplane.settings import Settings
from flows import policies
from registry import approvals, audit, control, pointers, tenants
from registry.manifest import AgentVersion, Manifest, Policy
from services.worker import client

SERVED = [f"v{n}" for n in range(1, 8)] + ["candidate"]


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setattr(client, "served", lambda _: SERVED)
    monkeypatch.setattr(client, "unload", lambda *_: True)
    return Settings.model_validate({"paths": {"var": str(tmp_path)}})


@pytest.fixture
def connection(config: Settings) -> sqlite3.Connection:
    """Versions 1 to 7 of one agent, each with its own adapter; 2 serves, 1 was champion before."""
    connection = control.connect(config.control_db)
    tenants.create_agent(connection, "support", "model", approvers=("dana",))
    for n in range(1, 8):
        manifest = Manifest(policy=Policy(base="model", served_name=f"v{n}", adapter=f"sha256:{n}", path=f"p/{n}"))
        version = AgentVersion(agent="support", version=str(n), digest=manifest.digest, manifest=manifest)
        pointers.put_version(connection, version)
    for version in ("1", "2"):
        pointers.set_champion(connection, "support", version, "first", "test")
    return connection


def test_what_serves_or_may_come_to_serve_stays_and_the_rest_goes(
    config: Settings, connection: sqlite3.Connection
) -> None:
    pointers.start_canary(connection, "support", "3", 0.5)
    pointers.start_shadow(connection, "support", "4", 0.5)
    approvals.request(connection, "support", "5", {}, 60, "run-1")
    audit.append(connection, "evolve", "candidate.accepted", "support", {"version": "6"})
    policies.claim(config, "candidate")
    assert policies.retire(config, connection) == ["v7"]


def test_what_has_ended_goes(config: Settings, connection: sqlite3.Connection) -> None:
    policies.claim(config, "candidate")
    policies.release(config, "candidate")
    asked = approvals.request(connection, "support", "5", {}, 60, "run-1")
    approvals.decide(connection, asked.id, "rejected", "dana", "cli")
    assert set(policies.retire(config, connection)) == set(SERVED) - {"v1", "v2"}


def test_the_candidate_of_an_evolution_that_died_goes(config: Settings, connection: sqlite3.Connection) -> None:
    policies.claim(config, "candidate")
    child = subprocess.Popen(["true"])
    child.wait()
    (config.var / "policies" / "claims" / "candidate").write_text(str(child.pid))
    assert "candidate" in policies.retire(config, connection)
