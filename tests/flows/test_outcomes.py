"""Judgements are read from the log once, whenever they come."""

from __future__ import annotations

from pathlib import Path

import pytest

from atdp import convert
from dashboards import reading
from evoplane.settings import Settings
from flows import outcomes
from flows.outcomes import newly_judged
from services.proxy import importing
from services.proxy.store import open_reader, open_store
from tests.shared import DATA, REASON

AGENT = "gpt-4o"


@pytest.mark.skipif(not DATA.is_dir(), reason=REASON)
async def test_each_trajectory_comes_once_at_its_first_judgement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clause = {"name": "reward", "kinds": ["environment"]}
    config = Settings.model_validate({"paths": {"var": tmp_path}, "rewards": {"default": {"clauses": [clause]}}})
    monkeypatch.setattr(reading, "settings", lambda: config)
    monkeypatch.setattr(outcomes, "served", lambda cases, version: cases)  # what is imported serves nobody
    data = (DATA / "tau2-airline" / f"{AGENT}_airline.json").read_bytes()
    drafts = list(convert.get("tau2-bench").read(data, convert.ReadOptions(AGENT, "file")).records)
    late = [d for d in drafts if getattr(d, "kind", "") == "reward"]
    store = open_store(config)
    await store.start()

    async def add(some: list[object]) -> None:
        job = importing.Import(store, "airline", AGENT, "allow")
        await job.take(some)  # type: ignore[arg-type]
        await job.finish()

    cursor: dict[str, int] = {}
    found: list[str] = []

    def look() -> int:
        nonlocal cursor
        before = len(found)
        for judged, after in newly_judged(open_reader(config), AGENT, "", cursor):
            found.extend(members[0].trajectory_id for members in judged)
            cursor = after
        return len(found) - before

    await add([d for d in drafts if d not in late])
    assert look() == 0
    rewards = [d for d in late if d.name == "reward"]
    await add(rewards[:20])
    assert look() == 20
    await add([*rewards[20:], *(d for d in late if d.name != "reward")])  # checks say more of those judged before
    assert look() == 30 and look() == 0
    assert len(set(found)) == 50
    await store.close()
