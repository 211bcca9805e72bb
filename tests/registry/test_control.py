"""The control database brings itself up to date."""

from __future__ import annotations

import json
from pathlib import Path

from registry import control, pointers, tenants


def test_versions_written_by_an_older_evoplane_are_read(tmp_path: Path) -> None:
    file = tmp_path / "control.sqlite"
    connection = control.connect(file)
    tenants.create_agent(connection, "support", "m")
    manifest = {"policy": {"base": "m", "served_name": "m"}, "tools": {}, "guardrails": {}}
    body = {"agent": "support", "version": "1", "digest": "sha256:0", "manifest": manifest}
    row = ("support", "1", "sha256:0", json.dumps(body).encode(), "2026-01-01")
    connection.execute("INSERT INTO versions VALUES (?,?,?,?,?)", row)
    connection.execute("PRAGMA user_version=0")
    connection.close()
    (found,) = pointers.versions(control.connect(file), "support").values()
    assert found.manifest.tools == ()
