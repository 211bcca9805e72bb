"""The demo's waiting: it ends with a reason where no candidate comes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from evoplane.demo import story
from evoplane.settings import Settings
from registry import control, pointers, tenants
from registry.manifest import AgentVersion, Manifest, Policy

RUN = {"name": "evolve-support", "state_type": "COMPLETED", "state_name": "No change",
       "state_message": "memory-1 (+0.105) was refused: gate short-diff"}  # fmt: skip


@pytest.fixture
def config(tmp_path: Path) -> Settings:
    config = Settings.model_validate({"paths": {"var": str(tmp_path)}})
    connection = control.connect(config.control_db)
    tenants.create_agent(connection, "support", "m", None, ())
    for label in ("1", "2"):
        manifest = Manifest(policy=Policy(base="m", served_name=f"m-{label}"))
        pointers.put_version(
            connection,
            AgentVersion(agent="support", version=label, digest=f"d{label}", manifest=manifest,
                         created_at=control.now()),
        )  # fmt: skip
    pointers.set_champion(connection, "support", "1", "first", "test")
    return config


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(story.prefect_runs, "emit_event", lambda *_: "")
    monkeypatch.setattr(story.prefect_runs, "recent_runs", lambda _: [RUN])
    return []


def improve(config: Settings, say: Callable[[str], None]) -> None:
    story.Story(config, say)._improve()


def test_a_champion_changed_by_other_hands_ends_the_story_and_no_candidate_none_is_told(
    config: Settings, told: list[str]
) -> None:
    def say(line: str) -> None:
        told.append(line)
        pointers.set_champion(control.connect(config.control_db), "support", "2", "by hand", "somebody")

    with pytest.raises(story.DemoFailed, match=r"version 2 serves instead of 1.* other hands"):
        improve(config, say)
    assert not any("None" in line for line in told)


def test_without_a_candidate_the_last_run_is_quoted_while_waiting_and_at_the_end(
    config: Settings, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(story, "_HEARTBEAT_S", 0.0)
    monkeypatch.setattr(story.Story._wait, "__defaults__", (0.0,))
    with pytest.raises(story.DemoFailed, match=r"did not come within 0 s; the last said: memory-1 .* was refused"):
        improve(config, told.append)
    assert "no run is active; the last said: memory-1 (+0.105) was refused" in told[-1]
