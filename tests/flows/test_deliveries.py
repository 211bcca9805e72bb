"""What a delivery leaves behind however it ends: pointers, audit, approvals. No server is needed."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import flows.deliver as delivery
from evaluators.canary import Outcome
from evoplane.settings import Settings
from flows import awaiting, deliveries, exposure, mirroring, serve, telling
from flows.exposure import StageResult
from registry import approvals, audit, canaries, candidates, control, pointers, tenants, versions
from registry.manifest import AgentVersion, Manifest, Policy
from registry.tenants import RegistryError
from tests.evaluators.conftest import make_case

from prefect.states import Cancelled, Crashed, Failed  # isort: skip

AGENT = "support"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    config = Settings.model_validate({"paths": {"var": str(tmp_path)}, "delivery": {"stage_timeout_s": 5}})
    monkeypatch.setattr(delivery, "settings", lambda: config)
    monkeypatch.setattr(exposure, "_POLL_S", 0.0)
    monkeypatch.setattr(telling, "create_markdown_artifact", lambda **_: None)
    monkeypatch.setattr(telling.prefect_runs, "emit_event", lambda *_: None)
    return config


@pytest.fixture
def connection(config: Settings) -> sqlite3.Connection:
    connection = control.connect(config.control_db)
    tenants.create_tenant(connection, "acme", train="allow")
    tenants.create_agent(connection, AGENT, "model", approvers=("dana",))
    for number in ("1", "2", "3"):
        manifest = Manifest(policy=Policy(base="model", served_name=f"support-v{number}"))
        pointers.put_version(
            connection, AgentVersion(agent=AGENT, version=number, digest=manifest.digest, manifest=manifest)
        )
    pointers.set_champion(connection, AGENT, "1", "first", "test")
    return connection


def note(connection: sqlite3.Connection, action: str, version: str = "2") -> None:
    audit.append(connection, "test", action, AGENT, {"version": version})


@pytest.mark.parametrize("end", ["delivery.ended", "canary.abort", "shadow.abort"])
def test_a_delivery_is_under_way_until_it_ends_and_may_begin_again(connection: sqlite3.Connection, end: str) -> None:
    note(connection, "candidate.accepted")
    note(connection, "delivery.started")
    assert deliveries.under_way(connection, AGENT) == ["2"]
    note(connection, end)
    assert deliveries.under_way(connection, AGENT) == []
    note(connection, "delivery.started")
    assert deliveries.under_way(connection, AGENT) == ["2"]


def test_promotion_ends_a_delivery(connection: sqlite3.Connection) -> None:
    note(connection, "candidate.accepted")
    pointers.set_champion(connection, AGENT, "2", "better", "test")
    assert deliveries.under_way(connection, AGENT) == []


@pytest.mark.parametrize("how", ["rejected", "expired"])
def test_a_refused_or_expired_approval_ends_its_delivery_only(connection: sqlite3.Connection, how: str) -> None:
    note(connection, "candidate.accepted")
    asked = approvals.request(connection, AGENT, "2", {}, 0 if how == "expired" else 60, "run-1")
    if how == "rejected":
        assert deliveries.under_way(connection, AGENT) == ["2"]
        approvals.decide(connection, asked.id, "rejected", "dana", "cli")
    assert deliveries.under_way(connection, AGENT) == []
    note(connection, "delivery.started")
    assert deliveries.under_way(connection, AGENT) == ["2"]


def run_of(version: str = "2") -> Any:
    return SimpleNamespace(parameters={"agent": AGENT, "version": version})


@pytest.mark.parametrize(("state", "left"), [(Crashed(), ["2"]), (Failed(), []), (Cancelled(), [])])
def test_a_run_that_dies_takes_its_version_out(connection: sqlite3.Connection, state: Any, left: list[str]) -> None:
    note(connection, "delivery.started")
    pointers.start_shadow(connection, AGENT, "2", 0.5)
    pointers.start_canary(connection, AGENT, "2", 0.5)
    delivery.withdraw(None, run_of(), state)
    route = pointers.read_route(connection, AGENT)
    assert (route.canary, route.shadow) == (None, None)
    assert [e.action for e in audit.entries(connection, AGENT) if e.action.endswith(".stop")] == [
        "shadow.stop",
        "canary.stop",
    ]
    assert deliveries.under_way(connection, AGENT) == left


def test_a_run_that_dies_leaves_another_versions_canary(connection: sqlite3.Connection) -> None:
    pointers.start_canary(connection, AGENT, "3", 0.5)
    delivery.withdraw(None, run_of("2"), Crashed())
    assert pointers.read_route(connection, AGENT).canary == "3"


def test_flows_that_start_take_out_what_nobody_delivers(connection: sqlite3.Connection) -> None:
    pointers.start_canary(connection, AGENT, "2", 0.5)
    pointers.start_shadow(connection, AGENT, "3", 0.5)
    serve.take_out_leftovers(connection, AGENT, {"3"})
    route = pointers.read_route(connection, AGENT)
    assert (route.canary, route.shadow) == (None, "3")


def test_the_hooks_are_on_the_flow() -> None:
    flow = delivery.deliver
    assert [flow.on_failure_hooks, flow.on_crashed_hooks, flow.on_cancellation_hooks] == [[delivery.withdraw]] * 3


@pytest.mark.parametrize("stage", [exposure.shadow, exposure.canary])
def test_a_stage_ends_when_somebody_changes_the_route(
    config: Settings, connection: sqlite3.Connection, stage: Any
) -> None:
    delivery.begin(connection, AGENT, "2")

    def roll_back(_: float) -> None:
        pointers.rollback(connection, AGENT, "1", "an operator", "test")

    ended = stage(config, AGENT, "2", roll_back)
    assert ended.end == "inconclusive" and "withdrawn" in ended.reason


def test_a_stage_does_not_take_out_the_canary_that_replaced_its_own(
    config: Settings, connection: sqlite3.Connection
) -> None:
    delivery.begin(connection, AGENT, "2")
    ended = exposure.canary(config, AGENT, "2", lambda _: pointers.start_canary(connection, AGENT, "3", 0.5))
    assert ended.end == "inconclusive" and pointers.read_route(connection, AGENT).canary == "3"


def test_the_watch_without_a_baseline_is_inconclusive(config: Settings, connection: sqlite3.Connection) -> None:
    ended = exposure.watch(config, AGENT, "1", "0", control.now(), lambda _: None)
    assert ended.end == "inconclusive" and "version 0" in ended.reason


def test_the_watch_ends_when_another_version_is_champion(
    config: Settings, connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exposure.CaseReader, "read", lambda *_, **__: [make_case(agent_version="1", reward=1.0)])
    ended = exposure.watch(config, AGENT, "2", "1", control.now(), lambda _: None)
    assert ended.end == "superseded" and "version 1" in ended.reason


def test_what_a_watched_session_is_compared_with_never_changes() -> None:
    before = [make_case(reward=float(n % 2)) for n in range(9)]
    now = [make_case(reward=1.0) for _ in range(4)]
    looks = [exposure.interleave(before, now[:n], 2) for n in range(1, 5)]
    assert all(looks[-1][: len(look)] == look for look in looks)
    assert looks[0] == [Outcome("champion", False), Outcome("champion", True), Outcome("canary", True)]


def approved(connection: sqlite3.Connection) -> approvals.Approval:
    for state in ("accepted", "canary", "approval"):
        candidates.move(connection, AGENT, "2", state)  # type: ignore[arg-type]
    asked = approvals.request(connection, AGENT, "2", {}, 60, "run-1")
    return approvals.decide(connection, asked.id, "approved", "dana", "cli")[0]


def test_a_promotion_whose_champion_changed_or_whose_delivery_ended_is_refused(connection: sqlite3.Connection) -> None:
    asked = approved(connection)
    with pytest.raises(pointers.RouteChanged):
        delivery.promote.fn(AGENT, "2", asked.id, "dana", "3")
    note(connection, "delivery.ended")
    with pytest.raises(Exception, match="not in force"):
        delivery.promote.fn(AGENT, "2", asked.id, "dana", "1")
    assert pointers.read_route(connection, AGENT).champion == "1"


def away(*_: object, **__: object) -> None:
    raise ConnectionError("MLflow is away")


@pytest.fixture
def promoted(config: Settings, connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Version 2 just promoted, MLflow away: `confirm(how the watch ends)`, and what `happened` then."""
    happened: list[str] = []
    monkeypatch.setattr(versions, "mirror_aliases", away)
    monkeypatch.setattr(versions.tracking, "client", away)
    monkeypatch.setattr(delivery, "get_run_logger", lambda: logging.getLogger("test"))
    monkeypatch.setattr(delivery.serving, "verify", lambda *_: happened.append("verified") or 0.1)
    asked = approved(connection)
    at = delivery.promote.fn(AGENT, "2", asked.id, "dana", "1")

    def confirm(end: str) -> Any:
        seen = StageResult(end=end, reason="seen", candidate=1, champion=1)  # type: ignore[arg-type]
        monkeypatch.setattr(delivery, "watch_stage", lambda *_: happened.append("watched") or seen)
        return delivery.confirm(config, AGENT, "2", "1", asked, at)

    return SimpleNamespace(confirm=confirm, happened=happened)


def test_a_promotion_is_verified_and_watched_although_mlflow_is_away(
    connection: sqlite3.Connection, promoted: Any
) -> None:
    assert promoted.confirm("pass").name == "Promoted"
    assert promoted.happened == ["verified", "watched"]
    assert pointers.versions(connection, AGENT)["2"].lineage["approver"] == "dana"
    assert {"mirror.failed", "delivery.ended"} <= {e.action for e in audit.entries(connection, AGENT)}


def test_harm_seen_after_a_promotion_rolls_back_although_mlflow_is_away(
    connection: sqlite3.Connection, promoted: Any
) -> None:
    assert promoted.confirm("abort").name == "Rolled back"
    assert pointers.read_route(connection, AGENT).champion == "1"


def test_a_superseded_watch_rolls_nothing_back(connection: sqlite3.Connection, promoted: Any) -> None:
    pointers.set_champion(connection, AGENT, "3", "better still", "test")
    assert promoted.confirm("superseded").name == "Superseded"
    assert pointers.read_route(connection, AGENT).champion == "3"


def test_mirroring_says_whether_mlflow_answered(
    config: Settings, connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(versions, "mirror_aliases", away)
    assert not mirroring.aliases(config, connection, AGENT)


@pytest.fixture
def resumed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """(run, status of its approval), of every run that was told."""
    told: list[tuple[str, str]] = []

    def resume(_: Settings, asked: approvals.Approval) -> None:
        told.append((str(asked.flow_run_id), asked.status))

    monkeypatch.setattr(awaiting.prefect_runs, "resume_approval", resume)
    return told


def test_what_was_decided_anywhere_resumes_its_run_once(
    config: Settings, connection: sqlite3.Connection, resumed: list[tuple[str, str]]
) -> None:
    asked = approvals.request(connection, AGENT, "2", {}, 60, "run-1")
    told: set[str] = set()
    awaiting.resume_decided(config, connection, told)
    approvals.decide(connection, asked.id, "approved", "dana", "console")
    for _ in range(2):
        awaiting.resume_decided(config, connection, told)
    assert resumed == [("run-1", "approved")]


def test_a_run_that_is_gone_does_not_keep_others_from_being_told(
    config: Settings, connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    def resume(_: Settings, asked: approvals.Approval) -> None:
        if asked.flow_run_id == "run-1":
            raise RegistryError("Prefect answered 404")
        told.append(str(asked.flow_run_id))

    monkeypatch.setattr(awaiting.prefect_runs, "resume_approval", resume)
    for version, run in (("2", "run-1"), ("3", "run-2")):
        asked = approvals.request(connection, AGENT, version, {}, 60, run)
        approvals.decide(connection, asked.id, "rejected", "dana", "console")
    awaiting.resume_decided(config, connection, set())
    assert told == ["run-2"]


def test_a_run_whose_time_is_up_is_told_so(
    config: Settings, connection: sqlite3.Connection, resumed: list[tuple[str, str]]
) -> None:
    approvals.request(connection, AGENT, "2", {}, 0, "run-1")
    awaiting.resume_decided(config, connection, set())
    assert resumed == [("run-1", "expired")]


@pytest.mark.parametrize(("open_runs", "state"), [({"run-1": "2"}, "approval"), ({}, "expired")])
def test_a_delivery_whose_approval_expired_ends_although_its_run_is_gone(
    config: Settings, connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch, open_runs: Any, state: str
) -> None:
    monkeypatch.setattr(awaiting, "open_deliveries", lambda _: open_runs)
    monkeypatch.setattr(delivery.mirroring, "tags", lambda *_: True)
    monkeypatch.setattr(delivery.policies, "retire", lambda *_: [])
    for step in ("accepted", "canary", "approval"):
        candidates.move(connection, AGENT, "2", step)  # type: ignore[arg-type]
    asked = approvals.request(connection, AGENT, "2", {}, 0, "run-1")
    assert approvals.get(connection, asked.id).status == "expired"
    for _ in range(2):
        awaiting.end_expired(config, connection)
    known = candidates.get(connection, AGENT, "2")
    assert known is not None and known.state == state
    ended = [e.detail["outcome"] for e in audit.entries(connection, AGENT) if e.action == "delivery.ended"]
    assert ended == (["Expired"] if state == "expired" else [])


def test_another_run_of_a_version_whose_approval_expired_is_left_to_ask_anew(
    config: Settings, connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(awaiting, "open_deliveries", lambda _: {"run-2": "2"})
    for step in ("accepted", "canary", "approval"):
        candidates.move(connection, AGENT, "2", step)  # type: ignore[arg-type]
    approvals.get(connection, approvals.request(connection, AGENT, "2", {}, 0, "run-1").id)
    awaiting.end_expired(config, connection)
    known = candidates.get(connection, AGENT, "2")
    assert known is not None and known.state == "approval"


def test_a_delivery_is_found_among_any_number_of_scheduled_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = [SimpleNamespace(id=n, flow="monitor-all", parameters={}) for n in range(500)]
    waits = SimpleNamespace(id="run-1", flow="deliver", parameters={"agent": AGENT, "version": "2"})

    class Prefect(contextlib.nullcontext[Any]):
        """Gives 200 runs at most, as Prefect does."""

        def read_flow_runs(self, flow_filter: Any = None, flow_run_filter: Any = None) -> list[Any]:
            names = flow_filter.name.any_ if flow_filter is not None else None
            return [run for run in [*looks, waits] if names is None or run.flow in names][:200]

        def __enter__(self) -> Any:
            return self

    monkeypatch.setattr(awaiting, "get_client", lambda **_: Prefect())
    assert awaiting.open_deliveries(AGENT) == {"run-1": "2"}


class Suspended(Exception):
    """What Prefect raises to end the process of a run that waits."""


@pytest.fixture
def delivering(config: Settings, connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The delivery of version 2 without a server: `run()` is one life of its run; stages run once, as if stored."""
    happened: list[str] = []

    def once(name: str, work: Any) -> Any:
        stored: dict[str, Any] = {}

        def stage(*arguments: Any) -> Any:
            if name not in stored:
                happened.append(name)
                stored[name] = work(*arguments)
            return stored[name]

        return stage

    def shadowed(*_: str) -> StageResult:
        candidates.move(connection, AGENT, "2", "shadow")
        return StageResult(end="pass", reason="seen", candidate=4, champion=4)

    def exposed(*_: str) -> StageResult:
        candidates.move(connection, AGENT, "2", "canary")
        pointers.start_canary(connection, AGENT, "2", 0.5)
        pointers.clear_canary(connection, AGENT, "fine", end="passed")
        return StageResult(end="pass", reason="seen", candidate=24, champion=24)

    def suspend(**_: Any) -> Any:
        happened.append("suspended")
        raise Suspended

    stages = {
        "start": delivery.start.fn,
        "load_policy": lambda *_: "",
        "shadow_stage": shadowed,
        "canary_stage": exposed,
        "promote": delivery.promote.fn,
        "watch_stage": lambda *_: StageResult(end="pass", reason="seen", candidate=6, champion=6),
    }
    for name, work in stages.items():
        monkeypatch.setattr(delivery, name, once(name, work))
    monkeypatch.setattr(delivery, "suspend_flow_run", suspend)
    monkeypatch.setattr(delivery, "get_run_logger", lambda: logging.getLogger("test"))
    monkeypatch.setattr(delivery, "create_markdown_artifact", lambda **_: None)
    monkeypatch.setattr(delivery, "flow_run", SimpleNamespace(id="run-1"))
    monkeypatch.setattr(delivery.mirroring, "tags", lambda *_: True)
    monkeypatch.setattr(delivery.mirroring, "aliases", lambda *_: True)
    monkeypatch.setattr(delivery.mlflow_approvals, "begin", lambda *_: happened.append("tags taken away"))
    monkeypatch.setattr(delivery.policies, "retire", lambda *_: [])
    monkeypatch.setattr(delivery.serving, "verify", lambda *_: 0.1)

    def run() -> Any:
        try:
            return delivery.deliver.fn(AGENT, "2")
        except Suspended:
            return None

    return SimpleNamespace(run=run, happened=happened)


def way(connection: sqlite3.Connection) -> list[str]:
    entries = audit.entries(connection, AGENT)
    return [e.detail["to"] for e in entries if e.action == "candidate.state" and e.detail["version"] == "2"]


def test_a_delivery_that_waits_goes_on_where_it_was_and_takes_the_legal_way(
    connection: sqlite3.Connection, delivering: Any
) -> None:
    assert delivering.run() is None and delivering.run() is None  # started again by something else: it waits on
    (asked,) = approvals.list_approvals(connection, AGENT)
    approvals.decide(connection, asked.id, "approved", "dana", "cli")
    assert delivering.run().name == "Promoted"
    assert delivering.happened.count("promote") == 1
    assert delivering.happened.count("tags taken away") == 1  # or a yes that was just given would be lost
    assert way(connection) == ["accepted", "shadow", "canary", "approval", "promoted", "serving"]
    assert [c.state for c in canaries.list_canaries(connection, AGENT)] == ["passed"]


def test_an_approval_is_told_of_once_however_often_its_run_begins_anew(
    connection: sqlite3.Connection, delivering: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(telling.prefect_runs, "emit_event", lambda _, event, *__: told.append(event))
    assert delivering.run() is None and delivering.run() is None
    assert told == [telling.WAITING]


def test_a_rejected_delivery_ends_and_may_begin_again(connection: sqlite3.Connection, delivering: Any) -> None:
    delivering.run()
    (asked,) = approvals.list_approvals(connection, AGENT)
    approvals.decide(connection, asked.id, "rejected", "dana", "cli")
    assert delivering.run().name == "Rejected"
    assert way(connection)[-1] == "rejected" and pointers.read_route(connection, AGENT).champion == "1"
    delivery.begin(connection, AGENT, "2")
    assert way(connection)[-1] == "accepted"


def test_a_run_that_is_cancelled_while_it_waits_is_withdrawn(connection: sqlite3.Connection, delivering: Any) -> None:
    delivering.run()
    delivery.withdraw(None, run_of(), Cancelled())
    assert way(connection)[-1] == "withdrawn"
