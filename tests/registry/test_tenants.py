from __future__ import annotations

import sqlite3

import pytest

from registry import tenants
from registry.tenants import RegistryError


def test_a_key_is_found_by_the_digest_of_its_secret_and_the_secret_is_not_stored(
    connection: sqlite3.Connection,
) -> None:
    key, secret = tenants.create_key(connection, "acme", "support")
    assert tenants.load_keys(connection)[tenants.key_digest(secret)] == key
    assert secret not in "\n".join(connection.iterdump())


def test_a_revoked_key_is_out_of_force(connection: sqlite3.Connection) -> None:
    key, _ = tenants.create_key(connection, "acme", "support")
    tenants.revoke_key(connection, key.id)
    assert tenants.list_keys(connection) == []


def test_only_an_operating_key_may_approve(connection: sqlite3.Connection) -> None:
    serve, _ = tenants.create_key(connection, "acme", "support", "serve")
    operate, _ = tenants.create_key(connection, "acme", "support", "operate")
    assert "approve" not in serve.scopes
    assert "approve" in operate.scopes


@pytest.mark.parametrize("name", ["", "../etc", "a b", "Ärger", "x" * 64, "-a"])
def test_a_name_that_could_leave_its_directory_is_refused(connection: sqlite3.Connection, name: str) -> None:
    with pytest.raises(RegistryError, match="lower-case"):
        tenants.create_tenant(connection, name)


def test_a_key_for_an_unknown_tenant_or_agent_is_refused(connection: sqlite3.Connection) -> None:
    with pytest.raises(RegistryError, match="no tenant 'nobody'"):
        tenants.create_key(connection, "nobody", "support")
    with pytest.raises(RegistryError, match="no agent 'nobody'"):
        tenants.create_key(connection, "acme", "nobody")
