"""Field cases 24, 25, 27, 28: approvals that last, pointers that point, canaries without traffic, real promotions."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import flows.deliver as delivery
from evoplane.settings import Settings
from flows import exposure
from registry import approvals, audit, canaries, candidates, control, pointers, presence, serving, tenants, versions
from registry.manifest import AgentVersion, Manifest, Policy
from registry.tenants import RegistryError
from services.router.watcher import ControlWatcher
from tests.gateway.conftest import Running

AGENT = "support"
WEEK_S = 7 * 24 * 3600.0
ASK = """
import sys, time
from pathlib import Path
from registry import approvals, candidates, control
connection = control.connect(Path(sys.argv[1]))
for state in ("accepted", "canary", "approval"):
    candidates.move(connection, "support", "2", state)
print(approvals.request(connection, "support", "2", {"lift": 0.1}, 7 * 24 * 3600.0, "run-1").id, flush=True)
time.sleep(600)
"""
GRANT = """
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from registry import approvals, control
connection = control.connect(Path(sys.argv[1]))
at = datetime.now(UTC) + timedelta(days=3)
print(approvals.decide(connection, sys.argv[2], "approved", "dana", "cli", at=at)[1])
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    told = {"stage_timeout_s": 0.3, "canary_min_sessions": 4}
    config = Settings.model_validate({"paths": {"var": str(tmp_path)}, "delivery": told})
    monkeypatch.setattr(delivery, "settings", lambda: config)
    monkeypatch.setattr(exposure, "_POLL_S", 0.05)
    return config


@pytest.fixture
def connection(config: Settings) -> sqlite3.Connection:
    connection = control.connect(config.control_db)
    tenants.create_tenant(connection, "acme", train="allow")
    tenants.create_agent(connection, AGENT, "model", approvers=("dana", "eli"))
    for number in ("1", "2"):
        manifest = Manifest(policy=Policy(base="model", served_name=f"support-v{number}"))
        version = AgentVersion(agent=AGENT, version=number, digest=manifest.digest, manifest=manifest)
        pointers.put_version(connection, version)
    pointers.set_champion(connection, AGENT, "1", "first", "test")
    return connection


def promotions(connection: sqlite3.Connection) -> int:
    return sum(e.action == "promote" and e.detail["champion"] == "2" for e in audit.entries(connection, AGENT))


def test_case_24_asked_on_monday_everything_killed_granted_on_thursday_promotes_once(
    config: Settings, connection: sqlite3.Connection
) -> None:
    asking = subprocess.Popen([sys.executable, "-c", ASK, str(config.control_db)], stdout=subprocess.PIPE, text=True)
    assert asking.stdout is not None
    id = asking.stdout.readline().strip()
    asking.send_signal(signal.SIGKILL)
    asking.wait()
    grants = [
        subprocess.run([sys.executable, "-c", GRANT, str(config.control_db), id], capture_output=True, text=True)
        for _ in range(2)
    ]
    assert [g.stdout.strip() for g in grants] == ["True", "False"]  # the second yes is a no-op that says so
    for _ in range(2):  # the run is resumed, dies, and is resumed again
        delivery.promote.fn(AGENT, "2", id, "dana", "1")
    assert promotions(connection) == 1 and pointers.read_route(connection, AGENT).champion == "2"
    assert audit.verify(connection) == []


@pytest.mark.parametrize("how", ["expired", "rejected", "wrong role", "second approver missing"])
def test_case_24_what_is_not_approved_is_not_promoted(
    config: Settings, connection: sqlite3.Connection, how: str
) -> None:
    needed = 2 if how == "second approver missing" else 1
    asked = approvals.request(connection, AGENT, "2", {}, WEEK_S, "run-1", needed)
    thursday, late = (datetime.now(UTC) + timedelta(days=days) for days in (3, 8))
    if how == "expired":
        with pytest.raises(RegistryError, match="already expired"):
            approvals.decide(connection, asked.id, "approved", "dana", "cli", at=late)
    elif how == "rejected":
        approvals.decide(connection, asked.id, "rejected", "eli", "console", "wrong tone", at=thursday)
    elif how == "wrong role":
        with pytest.raises(RegistryError, match="may not decide"):
            approvals.decide(connection, asked.id, "approved", "mallory", "mlflow", at=thursday)
    else:
        approvals.decide(connection, asked.id, "approved", "dana", "cli", at=thursday)
        approvals.get(connection, asked.id, late)
    with pytest.raises(RegistryError, match="not in force"):
        delivery.promote.fn(AGENT, "2", asked.id, "dana", "1")
    assert promotions(connection) == 0
    state = {"expired": "expired", "rejected": "rejected", "wrong role": "pending"}.get(how, "expired")
    assert approvals.get(connection, asked.id).status == state


class ForgetfulMlflow:
    """An MLflow that takes an alias and does not keep it: nothing that can be started does that on demand."""

    def get_registered_model(self, _: str) -> Any:
        return SimpleNamespace(aliases={})

    def set_registered_model_alias(self, *_: str) -> None: ...


def test_case_25_an_alias_is_verified_after_it_was_written(
    config: Settings, connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(versions.tracking, "client", lambda _: ForgetfulMlflow())
    with pytest.raises(RegistryError, match="MLflow shows the aliases"):
        versions.mirror_aliases(config, connection, AGENT)


def test_case_25_a_pointer_never_points_at_nothing(connection: sqlite3.Connection) -> None:
    with pytest.raises(RegistryError, match="is its champion"):
        pointers.delete_version(connection, AGENT, "1")
    pointers.start_canary(connection, AGENT, "2", 0.1)
    with pytest.raises(RegistryError, match="is its canary"):
        pointers.delete_version(connection, AGENT, "2")
    assert pointers.resolve(connection, AGENT, "canary").version == "2"
    with pytest.raises(RegistryError, match="has no shadow"):
        pointers.resolve(connection, AGENT, "shadow")


def test_case_27_a_canary_without_traffic_is_paused_and_neither_promoted_nor_failed(
    config: Settings, connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(delivery.telling, "tell", lambda _, __, event, *___: told.append(event))
    monkeypatch.setattr(delivery.reports, "Progress", lambda *_: SimpleNamespace(set=lambda _: None))
    monkeypatch.setattr(delivery, "create_markdown_artifact", lambda **_: None)
    monkeypatch.setattr(delivery.mirroring, "tags", lambda *_: True)
    monkeypatch.setattr(delivery.policies, "retire", lambda *_: [])
    delivery.begin(connection, AGENT, "2")
    ended = delivery.canary_stage.fn(AGENT, "2")
    assert ended.end == "inconclusive" and "no new judged canary session" in ended.reason
    assert told == ["evoplane.canary.paused"]
    route = pointers.read_route(connection, AGENT)
    assert (route.champion, route.canary) == ("1", None)
    assert [c.state for c in canaries.list_canaries(connection, AGENT)] == ["paused"]
    assert delivery.end_delivery(config, AGENT, "2", "Inconclusive", ended.reason).name == "Inconclusive"
    candidate = candidates.get(connection, AGENT, "2")
    assert candidate is not None and candidate.state == "paused"


async def test_case_28_a_promotion_is_over_when_every_gateway_answers_with_the_new_version(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = int(running.url.rsplit(":", 1)[1])
    gateway = running.settings.gateway.model_copy(update={"port": port})
    config = running.settings.model_copy(update={"gateway": gateway})
    with presence.present(config):
        running.route(pointers.set_champion, "2", "better", "test")
        assert await asyncio.to_thread(serving.verify, config, AGENT, "2", 5.0) < 1
        monkeypatch.setattr(ControlWatcher, "refresh", lambda _: False)  # this gateway hears of nothing any more
        running.route(pointers.set_champion, "3", "better still", "test")
        with pytest.raises(serving.NotServed, match="version 3 of support is not what is served"):
            await asyncio.to_thread(serving.verify, config, AGENT, "3", 0.5)


def test_case_28_what_is_not_served_is_taken_back(
    config: Settings, connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    def verify(_: Settings, __: str, version: str) -> float:
        if version == "2":
            raise serving.NotServed("one gateway still says 1")
        return 0.1

    monkeypatch.setattr(delivery.telling.prefect_runs, "emit_event", lambda *_: None)
    monkeypatch.setattr(delivery.serving, "verify", verify)
    monkeypatch.setattr(delivery.mirroring, "aliases", lambda *_: True)
    monkeypatch.setattr(delivery.mirroring, "tags", lambda *_: True)
    monkeypatch.setattr(delivery.policies, "retire", lambda *_: [])
    asked = approvals.request(connection, AGENT, "2", {}, WEEK_S, "run-1")
    approved, _ = approvals.decide(connection, asked.id, "approved", "dana", "cli")
    for state in ("accepted", "canary", "approval"):
        candidates.move(connection, AGENT, "2", state)  # type: ignore[arg-type]
    at = delivery.promote.fn(AGENT, "2", asked.id, "dana", "1")
    assert delivery.confirm(config, AGENT, "2", "1", approved, at).name == "Not served"
    assert pointers.read_route(connection, AGENT).champion == "1"
