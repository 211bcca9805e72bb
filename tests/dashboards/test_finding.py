"""What the console's search finds for somebody, whatever others of the same tenant have."""

from __future__ import annotations

from pathlib import Path

import msgspec

from atdp.records import Agent
from dashboards.console import finding
from dashboards.console.access import Viewer
from registry.tenants import Key
from services.proxy.drafts import StoreDraft
from services.proxy.store import EventStore, StoreReader
from tests.proxy.drafting import CONTEXT, header


async def test_another_agents_many_trajectories_of_a_session_of_the_same_name_hide_nothing(tmp_path: Path) -> None:
    def opened(id: str, agent: str, at: str) -> StoreDraft:
        return msgspec.structs.replace(header(id), agent=Agent(name=agent), time=at)

    others = [opened(f"t{n}", "other", f"2026-02-01T00:{n // 60:02d}:{n % 60:02d}Z") for n in range(101)]
    store = EventStore(tmp_path)
    await store.start()
    await store.append("a", [CONTEXT, opened("mine", "support", "2026-01-01T00:00:00Z"), *others])
    await store.close()
    key = Key(id="k", tenant="a", agent="support", purpose="serve", scopes=frozenset({"read"}), owner="ann")
    who = Viewer(name="ann", key=key, agents=frozenset({"support"}), tenants=frozenset({"a"}), csrf="")
    found = finding.in_session(StoreReader(tmp_path), who, "s1")
    assert [row.trajectory_id for row in found] == ["mine"]
