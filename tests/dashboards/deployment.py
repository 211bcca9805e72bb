"""A small deployment to look at: two agents, two tenants, conversations with outcomes, an approval that waits."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from atdp import clock
from atdp.records import Agent, AnnotationDraft, Metadata, Scale, Source, Target
from evoplane.settings import Settings
from registry import approvals, control, pointers, tenants
from registry.manifest import AgentVersion, Manifest, MemoryItem, Policy
from services.proxy.drafts import StoreDraft
from services.proxy.store import open_store
from tests.governance.drafting import call, opened
from tests.proxy.drafting import CONTEXT

_COMMIT = 200
"""Conversations that a crowd's commit takes."""


@dataclass
class Deployment:
    config: Settings
    keys: dict[str, str]
    """Secrets by owner."""
    approval: str


def made(folder: Path, conversations: int = 30) -> Deployment:
    """`make`, from wherever: a browser's driver has a loop running in this thread."""
    with ThreadPoolExecutor(1) as apart:
        return apart.submit(asyncio.run, make(folder, conversations)).result()


async def make(folder: Path, conversations: int = 30) -> Deployment:
    config = Settings.model_validate({"paths": {"var": folder / "var"}})
    connection = control.connect(config.control_db)
    for tenant in ("acme", "other"):
        tenants.create_tenant(connection, tenant, train="allow")
    for agent in ("support", "sales"):
        tenants.create_agent(connection, agent, "model", approvers=("dana",))
        for number, memory in (("1", ()), ("2", (_fact("acme"), _fact("other")))):
            manifest = Manifest(policy=Policy(base="model", served_name=f"{agent}-{number}"), memory=memory)
            parent = "1" if number == "2" else None
            kind = "memory" if number == "2" else "initial"
            version = AgentVersion(
                agent=agent, version=number, digest=manifest.digest, manifest=manifest, parent=parent,
                intervention=kind,
                description="1 fact: <returns window>" if parent else "the agent as it came",
            )  # fmt: skip
            pointers.put_version(connection, version)
        pointers.set_champion(connection, agent, "1", "first", "test")
    evidence = {"change": "1 fact", "intervention": "memory", "replaces": "1", "diff": "+ acme: 45 days",
                "canary": {"sessions": 24, "champion_sessions": 70, "verdict": "success is not lower"}}  # fmt: skip
    asked = approvals.request(connection, "support", "2", evidence, 3600)
    keys = {}
    for owner, agent, tenant, purpose in (
        ("dana", "support", "acme", "operate"),
        ("ravi", "support", "acme", "evaluate"),
        ("zoe", "sales", "other", "operate"),
    ):
        keys[owner] = tenants.create_key(connection, tenant, agent, purpose, owner)[1]  # type: ignore[arg-type]
    keys["client"] = tenants.create_key(connection, "acme", "support", "serve", "client")[1]
    connection.close()
    store = open_store(config)
    await store.start()
    for number in range(conversations):
        for tenant in ("acme", "other"):
            await store.append(tenant, _conversation(tenant, number))
    await store.close()
    return Deployment(config, keys, asked.id)


async def crowd(config: Settings, tenant: str, first: int, until: int) -> None:
    """Conversations number `first` to `until` of a tenant, recorded in crowded commits."""
    store = open_store(config)
    await store.start()
    for start in range(first, until, _COMMIT):
        numbers = range(start, min(until, start + _COMMIT))
        await store.append(tenant, [draft for number in numbers for draft in _conversation(tenant, number)])
    await store.close()


def _fact(tenant: str) -> MemoryItem:
    return MemoryItem(
        id=f"mem_{tenant}", tenant=tenant, topic="returns window", text=f"{tenant}: 45 days", trust="vetted"
    )


async def add(config: Settings, tenant: str, number: int, agent: str) -> None:
    """One more conversation of a tenant, with this agent."""
    store = open_store(config)
    await store.start()
    await store.append(tenant, _conversation(tenant, number, agent))
    await store.close()


def _conversation(tenant: str, number: int, agent: str = "support") -> list[StoreDraft]:
    trajectory, event = f"tr_{tenant}_{number}", f"ev_{tenant}_{number}"
    tags = {"agent": agent, "agent_version": "1", "role": "champion", "purpose": "serve"}
    overlay = {"surface": "memory", "op": "append", "target": "system", "text": "\nNotes:\n- 45 days", "digest": "d"}
    said = call(
        event,
        f"{tenant} asks <b>{number}</b>",
        f"answer {number}",
        trajectory,
        m=Metadata(tags=tags),
        ext={"overlays": [overlay]},
    )
    right = number % 3 > 0
    target = Target(trajectory_id=trajectory, event_id=event)
    resolved = AnnotationDraft(
        atdp="1.0", id=f"an_{tenant}_{number}", trajectory_id=trajectory, kind="reward", name="resolved",
        targets=[target],
        source=Source(kind="environment", id="desk"), time=clock.now(), value=float(right),
        scale=Scale(min=0, max=1, higher_is_better=True),
    )  # fmt: skip
    header = opened(trajectory, session_id=f"se_{tenant}_{number}", agent=Agent(name=agent))
    return [CONTEXT, header, said, resolved]
