"""The whole stack once a session, with an agent whose only trouble is an outdated fact."""

from __future__ import annotations

import asyncio
import os
import socket
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from evoplane.settings import Settings, settings
from evoplane.stack import supervisor
from examples.support.desk import Desk
from examples.support.scenario import (
    CHANGED_TOPIC,
    FACTS_AT_START,
    TENANTS,
    Request,
    fact_sentence,
    facts_now,
    requests,
)
from registry import control, pointers, tenant_policy, tenants, versions
from registry.manifest import Manifest, MemoryItem, Policy

AGENT = "support"
APPROVER = "dana"
FACTS = facts_now(changed=True)

SMALL = {
    "MONITOR__MIN_OUTCOMES": "30",
    "EVOLVE__MIN_DEMONSTRATIONS": "1000",  # no training here: the memory surface is what is followed
    "DELIVERY__SHADOW_SESSIONS": "4",
    "DELIVERY__CANARY_MIN_SESSIONS": "8",
    "DELIVERY__CANARY_STEP_SESSIONS": "4",
    "DELIVERY__HARM_MARGIN": "0.9",
    "DELIVERY__WATCH_SESSIONS": "4",
}
"""Stages as short as they can be and still be stages."""


def free_ports(n: int) -> list[int]:
    probes = [socket.socket() for _ in range(n)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


@pytest.fixture(scope="session")
def config(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """A running stack on free ports in a directory of its own."""
    names = (
        *("GATEWAY__PORT", "WORKER__PORT", "WORKER__VLLM_PORT", "PREFECT__PORT", "MLFLOW__PORT", "EVIDENTLY__PORT"),
        "CONSOLE__PORT",
    )
    overrides = {name: str(port) for name, port in zip(names, free_ports(len(names)), strict=True)}
    overrides |= SMALL | {"PATHS__VAR": str(tmp_path_factory.mktemp("loop") / "var")}
    before = dict(os.environ)
    os.environ.update({f"EVOPLANE_{name}": value for name, value in overrides.items()})
    settings.cache_clear()
    config = settings()
    try:
        supervisor.up(config, progress=print)
        yield config
    finally:
        supervisor.down(config)
        os.environ.clear()
        os.environ.update(before)
        settings.cache_clear()


@pytest.fixture(scope="session")
def connection(config: Settings) -> sqlite3.Connection:
    return control.connect(config.control_db)


@pytest.fixture(scope="session")
def keys(config: Settings, connection: sqlite3.Connection) -> dict[str, str]:
    """The agent, its first version with yesterday's facts, and a key for each tenant."""
    for id, name in TENANTS.items():
        tenants.create_tenant(connection, id, name, train="allow")
        tenant_policy.put(connection, id, tenant_policy.TenantPolicy(pooling=True), "test")
    tenants.create_agent(
        connection, AGENT, config.model.name, "examples.support.environment:ShopEnvironment", (APPROVER,)
    )
    memory = tuple(
        MemoryItem(
            id=f"mem_{tenant}",
            tenant=tenant,
            topic=CHANGED_TOPIC,
            text=fact_sentence(CHANGED_TOPIC, FACTS_AT_START[tenant][CHANGED_TOPIC]),
            trust="vetted",
        )
        for tenant in TENANTS
    )
    manifest = Manifest(policy=Policy(base=config.model.name, served_name=config.model.name), memory=memory)
    first = versions.register(config, connection, AGENT, manifest, description="as it came")
    pointers.set_champion(connection, AGENT, first.version, "first version", "test")
    versions.mirror_aliases(config, connection, AGENT)
    return {tenant: tenants.create_key(connection, tenant, AGENT)[1] for tenant in TENANTS}


@pytest.fixture(scope="session")
def desk(config: Settings, keys: dict[str, str]) -> Desk:
    return Desk(config.gateway_url, keys, config.model.name, FACTS)


def outdated_questions(n: int, seed: int) -> list[Request]:
    """Customers who ask for the fact that has changed."""
    asked = requests("train", 4 * n, seed, policy_share=1.0)
    return [request for request in asked if request.topic == CHANGED_TOPIC][:n]


@pytest.fixture(scope="session")
def served(desk: Desk) -> int:
    """Forty customers asked; those who were told the old fact have said so."""
    tickets = asyncio.run(desk.serve(outdated_questions(40, seed=1)))
    assert all(ticket.error is None for ticket in tickets)
    return len(tickets)


@pytest.fixture(scope="session")
def pictures() -> Path:
    """Where screenshots go: EVOPLANE_SCREENSHOTS, else beside the test's other output."""
    folder = Path(os.environ.get("EVOPLANE_SCREENSHOTS", "var/screenshots"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder
