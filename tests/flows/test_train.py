"""`evoplane train` without an engine: from a log to sets by real `dvc repro`, and what refuses them."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from evoplane.settings import Settings
from flows import snapshot, train
from flows.training import TrainingFailed
from registry import control, pointers, roles, tenant_policy, tenants
from registry.manifest import AgentVersion, Manifest, Policy
from registry.tenant_policy import TenantPolicy
from registry.tenants import RegistryError
from services.worker.training.job import JobError
from tests.flows.test_row_sets import entry
from tests.flows.test_training_set import write_letters

TASKS = ("Please stop order {} now.", "I do not want {}.", "Drop {} from my list, thanks.", "Cancel {} for me?")


class TwoTenants:
    """A log in which two tenants' agents tried each task four times, half of them in vain."""

    def __init__(self, _: object) -> None:
        self._told = {
            tenant: {
                f"tr_{n}": entry(n, TASKS[n // 4].format(f"A{n // 4}00"), n % 2, tenant, answer=(n + 1, 2)).records
                for n in range(16)
            }
            for tenant in ("lumen", "northwind")
        }

    def tenants(self) -> list[str]:
        return list(self._told)

    def trajectories(self, tenant: str, **_: object) -> list[Any]:
        return [SimpleNamespace(trajectory_id=id, closed="outcome") for id in self._told[tenant]]

    def records(self, tenant: str, id: str) -> list[dict[str, Any]]:
        return self._told[tenant][id]

    def resolve_all(self, _: str, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return records

    def tools(self, _: str, __: str) -> list[Any]:
        return []


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    config = Settings.model_validate({"paths": {"var": str(tmp_path / "var"), "models": str(tmp_path / "models")}})
    config.model_dir.mkdir(parents=True)
    (config.model_dir / "config.json").write_text(json.dumps({"vocab_size": 512}))
    connection = control.connect(config.control_db)
    for name in ("lumen", "northwind"):
        tenants.create_tenant(connection, name, train="allow")
    tenants.create_agent(connection, "support", config.model.name)
    manifest = Manifest(policy=Policy(base=config.model.name, served_name="v1"))
    pointers.put_version(connection, AgentVersion(agent="support", version="1", digest="d", manifest=manifest))
    monkeypatch.setattr(snapshot, "open_reader", TwoTenants)
    monkeypatch.setattr(train.quality, "check", lambda *_: train.quality.QualityResult(True, 16, 1, 1, ()))
    return config


def dry(config: Settings, algorithm: str, **how: Any) -> dict[str, Any]:
    told = {"together": "isolated", "tenant": None, "options": {}, **how}
    return train.train(config, "support", algorithm, dry_run=True, say=lambda _: None, **told)


def test_grpo_learns_from_one_tenants_groups_and_says_how_many_rows_it_can_use(config: Settings) -> None:
    made = dry(config, "grpo", tenant="lumen")
    (one,) = made["sets"]
    assert one["tenants"] == ["lumen"]
    assert one["usable"] == one["train"] == 12
    assert one["heldout"] == 4
    rows = [json.loads(line) for line in (Path(one["path"]) / "train.jsonl").read_text().splitlines()]
    assert {row["policy_versions"][0]["version"] for row in rows} == {1}
    report = json.loads((Path(one["path"]) / "report.json").read_text())
    assert report["gate"]["passed"]
    assert {p["tenant"] for p in report["eligibility"]} == {"lumen"}


def test_rows_that_another_policy_gave_are_not_counted_as_usable(config: Settings) -> None:
    connection = control.connect(config.control_db)
    manifest = Manifest(policy=Policy(base=config.model.name, served_name="v2"))
    pointers.put_version(connection, AgentVersion(agent="support", version="2", digest="e", manifest=manifest))
    pointers.set_champion(connection, "support", "2", "better", "test")
    (one,) = dry(config, "grpo", tenant="lumen")["sets"]
    assert (one["usable"], one["unusable"]) == (0, {"stale: more than 0 versions old": 12})
    (one,) = dry(config, "grpo", tenant="lumen", options={"max_staleness": 1})["sets"]
    assert one["usable"] == 12


def test_tenants_are_brought_together_only_as_they_agreed_and_by_somebody_who_may(config: Settings) -> None:
    with pytest.raises(RegistryError, match="two tenants that agreed"):
        dry(config, "rft", together="federated")
    connection = control.connect(config.control_db)
    with pytest.raises(RegistryError, match="ann"):
        train._may_aggregate(config, "ann")
    roles.give(connection, "ann", "operator", None, actor="test")
    train._may_aggregate(config, "ann")
    for name in ("lumen", "northwind"):
        tenant_policy.put(connection, name, TenantPolicy(federated=True), "test")
    made = dry(config, "rft", together="federated")
    assert [each["tenants"] for each in made["sets"]] == [["lumen"], ["northwind"]]
    assert len({each["training_set"] for each in made["sets"]}) == 2


def test_what_needs_more_than_a_snapshot_is_refused_by_name(config: Settings) -> None:
    with pytest.raises(TrainingFailed, match=r"prm learns from steps with rewards of their own.*snapshot: dpo, .*opd"):
        dry(config, "prm", tenant="lumen")
    with pytest.raises(JobError, match="newest is none of dpo"):
        dry(config, "newest", tenant="lumen")


def test_opd_learns_from_what_was_said_about_answers(config: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    def corrected(n: int) -> list[dict[str, Any]]:
        text = TASKS[n % 4].format(f"A{n}00")
        prompt = [ord(c) for c in f"<|user|>{text}<|end|>\n<|assistant|>"]
        told = entry(n, text, 0.0, "lumen", prompt_token_ids=prompt).records
        said = {"kind": "critique", "name": "user_correction", "value": -1.0, "explanation": "I meant the other one."}
        about = {"targets": [{"trajectory_id": f"tr_{n}", "event_id": f"ev_{n}"}], "source": {"kind": "end_user"}}
        return [*told, {"record": "annotation", "id": f"an_{n}c", "time": "2026-01-01T00:02:00Z", **said, **about}]

    class Corrected(TwoTenants):
        def __init__(self, _: object) -> None:
            self._told = {"lumen": {f"tr_{n}": corrected(n) for n in range(8)}}

    write_letters(config.model_dir)
    monkeypatch.setattr(snapshot, "open_reader", Corrected)
    (one,) = dry(config, "opd", tenant="lumen")["sets"]
    assert one["usable"] == one["train"] > 0
    rows = [json.loads(line) for line in (Path(one["path"]) / "train.jsonl").read_text().splitlines()]
    assert all("I meant the other one." in "".join(map(chr, row["hint_prompt_token_ids"])) for row in rows)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("{bad", "--options is not JSON"),
        ("[1]", "--options is a JSON object"),
        ('{"nonsense": 1}', "unknown field `nonsense`; a job's fields are heldout, algorithm, "),
        ('{"epochs": "three"}', "Expected `int`"),
        ('{"hyperparameters": {"clipp": 0.1}}', "hyperparameters of grpo"),
    ],
)
def test_options_that_no_job_has_are_refused_before_anything_is_done(
    config: Settings, options: str, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(train, "settings", lambda: config)
    monkeypatch.setattr(train, "take_snapshot", lambda *_: pytest.fail("a snapshot was taken"))
    assert train.main(["--agent", "support", "--algorithm", "grpo", "--options", options, "--dry-run"]) == 1
    assert says in json.loads(capsys.readouterr().out)["error"]


@pytest.mark.parametrize(("by", "says"), [("", "--by NAME"), ("ann", "evoplane role give ann operator")])
def test_who_may_not_bring_tenants_together_is_told_how_one_may(
    config: Settings, by: str, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(train, "settings", lambda: config)
    told = ["--agent", "support", "--algorithm", "grpo", "--tenancy", "pooled", "--by", by]
    assert train.main(told) == 1
    assert says in json.loads(capsys.readouterr().out)["error"]


def test_an_agent_whose_work_nobody_judged_has_nothing_to_learn_from(
    config: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TwoTenants, "tenants", lambda _: [])
    with pytest.raises(TrainingFailed, match="nobody has judged"):
        dry(config, "grpo")
