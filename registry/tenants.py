"""Tenants, agents, and the keys that bind a client to one of each."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import sqlite3
from dataclasses import dataclass
from typing import Literal, get_args

from registry import audit
from registry.control import now, transaction

TrainPolicy = Literal["allow", "deny", "pending"]
Purpose = Literal["serve", "evaluate", "operate"]
Scope = Literal["infer", "feedback", "read", "approve", "operate"]

SCOPES_BY_PURPOSE: dict[Purpose, frozenset[str]] = {
    "serve": frozenset({"infer", "feedback"}),
    "evaluate": frozenset({"infer", "feedback", "read"}),
    "operate": frozenset({"infer", "feedback", "read", "approve", "operate"}),
}
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")


class RegistryError(Exception):
    """A request the registry refuses; the message says what to do instead."""


@dataclass(frozen=True)
class Tenant:
    id: str
    name: str
    train: TrainPolicy
    """May this tenant's trajectories train a policy? `pending` until someone with the right says so."""


@dataclass(frozen=True)
class Agent:
    name: str
    model: str
    """The model name the agent asks for; the gateway maps it to the served policy."""
    environment: str | None
    """`module:Class` of the environment replay may execute the agent's tools in."""
    approvers: tuple[str, ...]


@dataclass(frozen=True)
class Key:
    id: str
    tenant: str
    agent: str
    scopes: frozenset[str]
    purpose: Purpose
    owner: str
    """Who holds the key: the name that appears as approver and actor."""


def create_tenant(
    connection: sqlite3.Connection, id: str, name: str | None = None, train: TrainPolicy = "pending"
) -> Tenant:
    """Idempotent: an existing tenant gets the given name and policy."""
    _check_name("tenant", id)
    if train not in get_args(TrainPolicy):
        raise RegistryError(f"train must be one of {', '.join(get_args(TrainPolicy))}, not {train!r}")
    tenant = Tenant(id, name or id, train)
    with transaction(connection):
        connection.execute(
            "INSERT INTO tenants VALUES (?,?,?,?)"
            " ON CONFLICT (id) DO UPDATE SET name=excluded.name, train=excluded.train",
            (tenant.id, tenant.name, tenant.train, now()),
        )
        audit.append(connection, "cli", "tenant.set", id, {"train": train})
    return tenant


def create_agent(
    connection: sqlite3.Connection,
    name: str,
    model: str,
    environment: str | None = None,
    approvers: tuple[str, ...] = (),
) -> Agent:
    """Idempotent: an existing agent gets the given model, environment and approvers."""
    _check_name("agent", name)
    agent = Agent(name, model, environment, tuple(approvers))
    with transaction(connection):
        connection.execute(
            "INSERT INTO agents VALUES (?,?,?,?,?) ON CONFLICT (name) DO UPDATE SET"
            " model=excluded.model, environment=excluded.environment, approvers=excluded.approvers",
            (name, model, environment, json.dumps(list(approvers)), now()),
        )
        audit.append(connection, "cli", "agent.set", name, {"model": model, "approvers": list(approvers)})
    return agent


def require_tenant(connection: sqlite3.Connection, tenant: str) -> None:
    """Raises `RegistryError` for one that does not exist."""
    if connection.execute("SELECT 1 FROM tenants WHERE id=?", (tenant,)).fetchone() is None:
        raise RegistryError(f"no tenant {tenant!r}: create it with `evoplane tenant create {tenant}`")


def create_key(
    connection: sqlite3.Connection, tenant: str, agent: str, purpose: Purpose = "serve", owner: str = ""
) -> tuple[Key, str]:
    """Make a key; the secret is returned once and only its SHA-256 is kept."""
    require_tenant(connection, tenant)
    get_agent(connection, agent)
    if purpose not in SCOPES_BY_PURPOSE:
        raise RegistryError(f"purpose must be one of {', '.join(SCOPES_BY_PURPOSE)}, not {purpose!r}")
    secret = "evo_" + secrets.token_urlsafe(32)
    id = "key_" + secrets.token_hex(6)
    key = Key(id, tenant, agent, SCOPES_BY_PURPOSE[purpose], purpose, owner or id)
    with transaction(connection):
        connection.execute(
            "INSERT INTO keys VALUES (?,?,?,?,?,?,?,?,NULL)",
            (
                key.id,
                key_digest(secret),
                tenant,
                agent,
                json.dumps(sorted(key.scopes)),
                purpose,
                key.owner,
                now(),
            ),
        )
        audit.append(connection, "cli", "key.create", key.id, {"tenant": tenant, "agent": agent, "purpose": purpose})
    return key, secret


def revoke_key(connection: sqlite3.Connection, id: str) -> None:
    with transaction(connection):
        done = connection.execute("UPDATE keys SET revoked_at=? WHERE id=? AND revoked_at IS NULL", (now(), id))
        if not done.rowcount:
            raise RegistryError(f"no key {id!r} that could be revoked: see `evoplane key list`")
        audit.append(connection, "cli", "key.revoke", id)


def key_digest(secret: str) -> str:
    """Keys are 256 random bits, so a plain hash is safe; it is also what makes the look-up constant-time."""
    return hashlib.sha256(secret.encode()).hexdigest()


def load_keys(connection: sqlite3.Connection) -> dict[str, Key]:
    """Every key in force by the digest of its secret."""
    return {row["digest"]: _key(row) for row in connection.execute("SELECT * FROM keys WHERE revoked_at IS NULL")}


def list_keys(connection: sqlite3.Connection) -> list[Key]:
    return list(load_keys(connection).values())


def list_tenants(connection: sqlite3.Connection) -> list[Tenant]:
    return [Tenant(r["id"], r["name"], r["train"]) for r in connection.execute("SELECT * FROM tenants ORDER BY id")]


def list_agents(connection: sqlite3.Connection) -> list[Agent]:
    rows = connection.execute("SELECT * FROM agents ORDER BY name")
    return [Agent(r["name"], r["model"], r["environment"], tuple(json.loads(r["approvers"]))) for r in rows]


def get_agent(connection: sqlite3.Connection, name: str) -> Agent:
    """Raises `RegistryError` for an agent that does not exist."""
    for agent in list_agents(connection):
        if agent.name == name:
            return agent
    raise RegistryError(f"no agent {name!r}: create it with `evoplane agent create {name}`")


def _key(row: sqlite3.Row) -> Key:
    return Key(
        row["id"],
        row["tenant"],
        row["agent"],
        frozenset(json.loads(row["scopes"])),
        row["purpose"],
        row["owner"],
    )


def _check_name(what: str, value: str) -> None:
    if not _NAME.fullmatch(value):
        raise RegistryError(f"{what} {value!r}: use lower-case letters, digits, '-' and '_', 63 at most")
