"""Online training without an engine: what is collected, what is too old, what is published."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from evaluators.rewards import declare
from evoplane.settings import Settings
from flows import online, training
from flows.collector import Collector, Plan
from flows.online import Online
from registry import admission, audit, control, pointers, tenants
from registry.manifest import AgentVersion, Manifest, Policy
from services.worker import client
from tests.flows.test_row_sets import entry

pytestmark = pytest.mark.timeout(30)

AGENT, BASE = "support", "smollm2-135m"


class Log:
    """A store of finished trajectories; more can be told while it is read."""

    def __init__(self) -> None:
        self.told: dict[str, list[dict[str, Any]]] = {}
        self.open: set[str] = set()

    def tell(self, n: int, task: str, reward: float, weights: str = BASE, **more: Any) -> None:
        self.told[f"tr_{n}"] = entry(n, task, reward, version=f"{weights}/1", answer=(n, 2), **more).records

    def trajectories(self, tenant: str, agent: str, since: str | None = None) -> list[Any]:
        return [
            SimpleNamespace(trajectory_id=id, closed=None if id in self.open else "outcome", last_at="2026")
            for id in self.told
        ]

    def records(self, tenant: str, id: str) -> list[dict[str, Any]]:
        return self.told[id]

    def resolve_all(self, tenant: str, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return records

    def close(self) -> None:
        return


def plan(**more: Any) -> Plan:
    told = {"agent": AGENT, "actor": "ann", "tenants": ("northwind",), "groups": 1, "group_size": 2, "staleness": 1}
    return Plan(**{**told, **more})


@pytest.fixture
def log() -> Log:
    return Log()


def collector(log: Log, **more: Any) -> Collector:
    return Collector(log, plan(**more), lambda request: request.startswith("Held"))  # type: ignore[arg-type]


def test_what_is_collected_is_worth_what_the_agents_own_rule_says(
    config: Settings, log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(online, "open_reader", lambda _: log)
    declared = config.model_copy(update={"rewards": {AGENT: declare(clauses=[{"name": "csat"}]).declared}})
    made = Online(declared, plan(), tmp_path / "work", register(control.connect(config.control_db)))
    log.tell(1, "One task.", 1.0, signals={"csat": 0.0})
    log.tell(2, "One task.", 0.0, signals={"csat": 1.0})
    log.tell(3, "One task.", 1.0)
    assert made.collector.poll([BASE]) == 2 and made.collector.counts["no reward"] == 1
    (group,) = made.collector.waiting.values()
    assert group.rewards == {"northwind/tr_1": 0.0, "northwind/tr_2": 1.0}


def test_a_group_is_learned_from_once_it_is_whole_and_its_members_ended_differently(log: Log) -> None:
    found = collector(log)
    log.tell(1, "One task.", 1.0)
    assert found.poll([BASE]) == 1
    assert found.ready(0) is None
    log.tell(2, "One task.", 0.0)
    log.tell(3, "Easy task.", 1.0)
    log.tell(4, "Easy task.", 1.0)
    assert found.poll([BASE]) == 3
    (group,) = found.ready(0) or []
    assert sorted(group.rewards.values()) == [0.0, 1.0]
    assert found.ready(0) is None
    assert found.poll([BASE]) == 0
    assert found.counts["rows whose group was rewarded alike"] == 2


@pytest.mark.parametrize(("staleness", "learned"), [(0, 0), (1, 0), (2, 2)])
def test_rows_older_than_eta_are_dropped_where_they_are_consumed(log: Log, staleness: int, learned: int) -> None:
    found = collector(log, staleness=staleness)
    for n, reward in ((1, 1.0), (2, 0.0)):
        log.tell(n, "One task.", reward, "v1")
    found.poll([BASE, "v1", "v2", "v3"])
    ready = found.ready(3)
    assert sum(len(group.rows) for group in ready or []) == learned
    assert found.counts["rows that were too old"] == 2 - learned
    assert found.ages == {2: 2}


def test_an_open_or_held_out_trajectory_is_not_collected(log: Log) -> None:
    found = collector(log)
    log.tell(1, "One task.", 1.0)
    log.tell(2, "Held out task.", 1.0)
    log.open.add("tr_1")
    assert found.poll([BASE]) == 0
    assert found.counts == {"held out": 1}
    log.open.clear()
    assert found.poll([BASE]) == 1


def test_rollouts_are_enough_when_the_last_would_be_older_than_eta_at_its_turn(log: Log) -> None:
    found = collector(log, staleness=1)
    for n in range(3):
        log.tell(2 * n, f"Task {'abc'[n]}.", 1.0)
        log.tell(2 * n + 1, f"Task {'abc'[n]}.", 0.0)
        found.poll([BASE])
        assert found.enough(training=False) == (n >= 1)
        assert found.enough(training=True)


@pytest.fixture
def config(tmp_path: Path) -> Settings:
    config = Settings.model_validate({"paths": {"var": str(tmp_path)}})
    connection = control.connect(config.control_db)
    tenants.create_tenant(connection, "northwind", train="allow")
    tenants.create_agent(connection, AGENT, BASE)
    register(connection)(AGENT, Manifest(policy=Policy(base=BASE, served_name=BASE)), "")
    pointers.set_champion(connection, AGENT, "1", "first", "test")
    return config


def register(connection: Any) -> online.Register:
    def known(agent: str, manifest: Manifest, parent: str) -> AgentVersion:
        label = str(len(pointers.versions(connection, agent)) + 1)
        version = AgentVersion(agent=agent, version=label, digest=manifest.digest, manifest=manifest,
                               created_at=control.now())  # fmt: skip
        pointers.put_version(connection, version)
        return version

    return known


@pytest.fixture
def trained(log: Log, config: Settings, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The jobs that were run; the trainer answers at once and rollouts of the new version come in."""
    jobs: list[dict[str, Any]] = []

    def run_job(_: Settings, work: Path, examples: Path, __: object, job: dict[str, Any], ___: object) -> Any:
        jobs.append({**job, "rows": len(examples.read_text().splitlines())})
        digest = "sha256:" + f"{len(jobs)}" * 64
        (config.var / "policies").mkdir(exist_ok=True)
        return training.Trained(digest, f"policies/{len(jobs)}", {})

    monkeypatch.setattr(online, "_POLL_S", 0.01)
    monkeypatch.setattr(online, "open_reader", lambda _: log)
    monkeypatch.setattr(training, "run_job", run_job)
    monkeypatch.setattr(client, "load", lambda *_: None)
    flip = pointers.set_champion

    def flipped(connection: Any, agent: str, version: str, *more: Any) -> Any:
        name = pointers.versions(connection, agent)[version].manifest.policy.served_name
        for reward in (1.0, 0.0):
            log.tell(len(log.told), f"Task {'abcdefgh'[len(jobs)]}.", reward, name)
        return flip(connection, agent, version, *more)

    monkeypatch.setattr(pointers, "set_champion", flipped)
    monkeypatch.setattr(client, "unload", lambda *_: True)
    log.tell(0, "Task a.", 1.0)
    log.tell(1, "Task a.", 0.0)
    return jobs


def test_each_update_is_trained_from_the_version_that_serves_and_served_next(
    config: Settings, trained: list[dict[str, Any]], tmp_path: Path
) -> None:
    connection = control.connect(config.control_db)
    run = Online(config, plan(), tmp_path / "work", register(connection), say=lambda _: None)
    served = run.run(updates=3)
    run.close()
    assert [job["policy_version"] for job in trained] == [0, 1, 2]
    assert [job["initial_adapter"] for job in trained] == [None, *(str(tmp_path / f"policies/{n}") for n in (1, 2))]
    assert (served.ordinal, pointers.read_route(connection, AGENT).champion) == (3, "4")
    flips = [e for e in audit.entries(connection) if e.action == "promote" and e.actor == "ann"]
    assert len(flips) == 3


def test_an_update_that_the_worker_refuses_is_not_served_and_nobody_is_left_waiting(
    config: Settings, trained: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise client.PolicyRefused("log-probabilities differ by up to 0.3 nats on the probe")

    monkeypatch.setattr(client, "load", refuse)
    connection = control.connect(config.control_db)
    run = Online(config, plan(), tmp_path / "work", register(connection), say=lambda _: None)
    with pytest.raises(client.PolicyRefused):
        run.run(updates=1)
    assert pointers.read_route(connection, AGENT).champion == "1"
    assert list(pointers.versions(connection, AGENT)) == ["1"]
    assert admission.closed(connection) == {}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--agent", "nobody"], "evoplane agent create nobody"),
        (["--tenant", "lumen"], "tenant 'lumen' has no key for 'support'; there are: northwind"),
        (["--algorithm", "ppoo"], "ppoo is none of"),
        (["--algorithm", "dpo"], "dpo learns from pairs"),
    ],
)
def test_what_would_wait_for_ever_is_refused_at_once(
    config: Settings,
    arguments: list[str],
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(online, "settings", lambda: config)
    tenants.create_key(control.connect(config.control_db), "northwind", AGENT)
    assert online.main(["--agent", AGENT, "--actor", "ann", *arguments]) == 1
    said = capsys.readouterr()
    assert says in said.err and not said.out


def test_an_agent_that_nobody_has_a_key_for_is_not_waited_for(
    config: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(online, "settings", lambda: config)
    assert online.main(["--agent", AGENT, "--actor", "ann"]) == 1
    assert "evoplane key create" in capsys.readouterr().err


def test_one_who_waits_is_told_what_there_is(
    config: Settings, log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(online, "open_reader", lambda _: log)
    monkeypatch.setattr(online, "_POLL_S", 0.0)
    monkeypatch.setattr(online, "_TELL_S", 0.0)
    log.tell(1, "One task.", 1.0)
    told: list[str] = []
    made = Online(config, plan(), tmp_path / "work", register(control.connect(config.control_db)), told.append)
    made.run(updates=1, until=lambda: len(told) > 0)
    assert told[0].startswith("waiting for 1 groups of 2 attempts: 0 whole, 1 begun; so far {")
