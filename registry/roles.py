"""Roles of people: what policies ask for besides a name."""

from __future__ import annotations

import sqlite3

from registry import audit
from registry.control import transaction
from registry.tenants import RegistryError

ROLES = ("operator", "privacy_officer", "analyst")
_EVERY = ""
"""In the place of a tenant: the role holds for all of them."""


def give(connection: sqlite3.Connection, name: str, role: str, tenant: str | None, actor: str) -> None:
    """Idempotent."""
    if role not in ROLES:
        raise RegistryError(f"role must be one of {', '.join(ROLES)}, not {role!r}")
    with transaction(connection):
        connection.execute("INSERT OR IGNORE INTO roles VALUES (?,?,?)", (name, role, tenant or _EVERY))
        audit.append(connection, actor, "role.give", name, {"role": role, "tenant": tenant})


def take(connection: sqlite3.Connection, name: str, role: str, tenant: str | None, actor: str) -> None:
    with transaction(connection):
        done = connection.execute(
            "DELETE FROM roles WHERE name=? AND role=? AND tenant=?", (name, role, tenant or _EVERY)
        )
        if not done.rowcount:
            raise RegistryError(f"{name!r} does not have the role {role!r}: see `evoplane role list`")
        audit.append(connection, actor, "role.take", name, {"role": role, "tenant": tenant})


def of(connection: sqlite3.Connection, name: str) -> tuple[frozenset[str], frozenset[str]]:
    """(roles for every tenant, roles for one as `tenant/role`)."""
    rows = connection.execute("SELECT role, tenant FROM roles WHERE name=?", (name,)).fetchall()
    everywhere = frozenset(row["role"] for row in rows if row["tenant"] == _EVERY)
    return everywhere, frozenset(f"{row['tenant']}/{row['role']}" for row in rows if row["tenant"] != _EVERY)


def all_roles(connection: sqlite3.Connection) -> list[dict[str, str | None]]:
    rows = connection.execute("SELECT name, role, tenant FROM roles ORDER BY name, role, tenant")
    return [{"name": row["name"], "role": row["role"], "tenant": row["tenant"] or None} for row in rows]
