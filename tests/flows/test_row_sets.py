"""Which trajectories get into a set of captured turns, and which don't."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evaluators import dataset
from evaluators.rewards import DEFAULT_RULE, RewardRule, declare
from evoplane.settings import Settings
from flows import row_sets, snapshot, tenancy
from flows.row_sets import Wanted
from flows.snapshot import Entry
from registry import control, tenant_policy, tenants
from registry.tenant_policy import TenantPolicy
from registry.tenants import RegistryError


def entry(
    n: int,
    said: str = "Cancel order A100 for me now.",
    reward: float | None = 1.0,
    tenant: str = "northwind",
    *,
    train: str = "allow",
    closed: bool = True,
    rule: RewardRule = DEFAULT_RULE,
    signals: dict[str, float] | None = None,
    version: str = "v1/1",
    answer: tuple[int, ...] = (7, 8),
    **tokens: Any,
) -> Entry:
    prompt = [ord(c) for c in said]
    event = {
        "record": "event",
        "kind": "llm_call",
        "id": f"ev_{n}",
        "trajectory_id": f"tr_{n}",
        "time": f"2026-01-01T00:00:{n % 60:02d}Z",
        "ctx": "c",
        "y": {"status": "ok"},
        "o": {"messages": [{"role": "user", "parts": [{"type": "text", "content": said}]}]},
        "a": {"messages": [{"role": "assistant", "parts": [{"type": "text", "content": "x"}]}]},
        "m": {"tags": {"agent": "support", "agent_version": "1"}},
        "tokens": {
            "prompt_token_ids": prompt,
            "completion_token_ids": list(answer),
            "logprobs": [-0.1] * len(answer),
            "policy_versions": [[len(answer), version]],
            **tokens,
        },
    }
    records: list[dict[str, Any]] = [
        {"record": "trajectory", "session_id": f"se_{n}", "gov": {"eligibility": {"train": train}}},
        event,
    ]
    if reward is not None:
        told = {
            "record": "annotation",
            "time": "2026-01-01T00:01:00Z",
            "targets": [{"trajectory_id": f"tr_{n}"}],
            "source": {"kind": "environment"},
            "scale": {"min": 0, "max": 1},
        }
        records.append({**told, "id": f"an_{n}", "kind": "reward", "name": "resolved", "value": reward})
    for name, value in (signals or {}).items():
        about = {"targets": [{"trajectory_id": f"tr_{n}", "event_id": f"ev_{n}"}], "source": {"kind": "end_user"}}
        signal = {"record": "annotation", "id": f"an_{n}_{name}", "kind": "reward", "name": name, "value": value}
        records.append({**signal, **about, "time": "2026-01-01T00:02:00Z", "scale": {"min": 0, "max": 1}})
    return snapshot.entry(tenant, records, lambda _: [], rule, closed)


def build(
    entries: list[Entry], folder: Path, split: dataset.Split = dataset.NONE_HELD_OUT, **wanted: Any
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    told = {"kind": "rft", "versions": ["v0", "v1"], **wanted}
    report = row_sets.build(entries, Wanted(**told), split, folder)
    return report, [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]


def test_only_eligible_rewarded_trajectories_of_known_weights_get_in_and_each_drop_has_its_reason(
    tmp_path: Path,
) -> None:
    report, made = build(
        [
            entry(1),
            entry(2, train="deny"),
            entry(3, train="pending"),
            entry(4, reward=None),
            entry(5, version="stranger/1", answer=(9,)),
            entry(6, reward=0.0),
            entry(7),
        ],
        tmp_path,
    )
    assert len(made) == report["train"] == 1
    assert made[0]["policy_versions"] == [{"version": 1, "start": 0, "end": 2}]
    assert report["dropped"] == {
        "not eligible for training": 2,
        "no reward": 1,
        "given by weights that are not this agent's": 1,
        "not a success": 1,
        "the same row twice": 1,
    }


def test_every_trajectory_used_is_in_the_proof_with_its_permission_and_the_head_of_its_chain(tmp_path: Path) -> None:
    report, _ = build([entry(1), entry(2, train="deny")], tmp_path)
    assert [(p["trajectory"], p["train"], p["tenant"]) for p in report["eligibility"]] == [
        ("tr_1", "allow", "northwind")
    ]
    assert "head" in report["eligibility"][0]


def test_a_set_of_one_tenant_holds_no_token_of_another(tmp_path: Path) -> None:
    theirs = entry(2, "Their secret order Z999 please.", tenant="lumen")
    report, made = build([entry(1), theirs], tmp_path, tenants=["northwind"])
    secret = [ord(c) for c in "Z999"]
    assert len(made) == 1
    assert all(
        secret != row["prompt_token_ids"][i : i + 4] for row in made for i in range(len(row["prompt_token_ids"]))
    )
    assert report["tenants"] == ["northwind"]
    assert "lumen" not in (tmp_path / "train.jsonl").read_text() + json.dumps(report)


def test_tokens_that_are_sealed_are_in_no_set(tmp_path: Path) -> None:
    sealed = {"sealed": "blob_1", "commit": "hmac-sha256:0", "labels": ["tokens"], "bytes": 9}
    report, made = build([entry(1, prompt_token_ids=sealed)], tmp_path)
    assert made == []
    assert report["dropped"] == {"its tokens are sealed": 1}
    assert report["dropped_turn_share"] == 1.0


def test_groups_are_attempts_at_one_task_of_one_tenant_that_ended_differently(tmp_path: Path) -> None:
    report, made = build(
        [
            entry(1, reward=1.0),
            entry(2, reward=0.0),
            entry(3, reward=1.0, tenant="lumen"),
            entry(4, "Another task of two words.", reward=1.0),
            entry(5, "Another task of two words.", reward=1.0),
        ],
        tmp_path,
        kind="groups",
    )
    assert {row["trajectory"] for row in made} == {"northwind/tr_1", "northwind/tr_2"}
    assert len({row["group"] for row in made}) == 1
    assert report["dropped"] == {"a group of one": 1, "all of its group were rewarded alike": 2}


def test_pairs_hold_the_better_attempt_as_chosen(tmp_path: Path) -> None:
    _, made = build([entry(1, reward=0.0, answer=(5,)), entry(2, reward=1.0)], tmp_path, kind="preferences")
    assert [(row["role"], row["trajectory"]) for row in made] == [
        ("chosen", "northwind/tr_2"),
        ("rejected", "northwind/tr_1"),
    ]


def test_pairs_groups_and_successes_go_by_the_rule_that_is_declared(tmp_path: Path) -> None:
    def made(rule: RewardRule, kind: str) -> list[tuple[str, str, float]]:
        attempts = [
            entry(1, reward=1.0, answer=(5,), rule=rule, signals={"csat": 0.0}),
            entry(2, reward=0.0, rule=rule, signals={"csat": 1.0}),
        ]
        _, rows = build(attempts, tmp_path, kind=kind)
        return [(row["trajectory"], row.get("role", ""), row["reward"]) for row in rows]

    csat = declare(clauses=[{"name": "csat"}])
    assert made(DEFAULT_RULE, "preferences") == [
        ("northwind/tr_1", "chosen", 1.0), ("northwind/tr_2", "rejected", 0.0)
    ]  # fmt: skip
    assert made(csat, "preferences") == [("northwind/tr_2", "chosen", 1.0), ("northwind/tr_1", "rejected", 0.0)]
    assert [name for name, _, _ in made(csat, "rft")] == ["northwind/tr_2"]
    both = declare(clauses=[{"name": "resolved", "about": "trajectory"}, {"name": "csat"}])
    assert made(both, "preferences")[0][0] == "northwind/tr_1", "the whole is worth its own reward, not its last step's"


def test_a_whole_task_is_held_out_and_what_shares_its_order_number_is_dropped(tmp_path: Path) -> None:
    texts = ("Please stop order {} now.", "I do not want {}.", "Drop {} from my list, thanks.", "Cancel {} for me?")
    entries = [entry(n, texts[n % 4].format(f"A{n // 2}00"), answer=(n,)) for n in range(16)]
    split = dataset.split([case for e in entries for case in e.cases], 0.25)
    report, made = build(entries, tmp_path, split)
    held = [json.loads(line) for line in (tmp_path / "heldout.jsonl").read_text().splitlines()]
    assert len(held) == 4
    assert report["dropped"]["shares an entity with a held-out task"] == 4
    assert len(made) == 8


@pytest.fixture
def config(tmp_path: Path) -> Settings:
    config = Settings.model_validate({"paths": {"var": str(tmp_path)}})
    for name in ("lumen", "northwind", "brightside"):
        tenants.create_tenant(control.connect(config.control_db), name, train="allow")
    return config


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "trajectories"
    folder.mkdir()
    for name in ("lumen", "northwind", "brightside"):
        (folder / f"{name}.jsonl").write_text("")
    return folder


def agree(config: Settings, tenant: str, **policy: Any) -> None:
    tenant_policy.put(control.connect(config.control_db), tenant, TenantPolicy(**policy), "test")


def test_tenants_are_not_pooled_unless_they_agreed(config: Settings, folder: Path) -> None:
    with pytest.raises(RegistryError, match="none has agreed to pooling"):
        tenancy.together(config, folder)
    agree(config, "lumen", pooling=True)
    agree(config, "northwind", pooling=True)
    assert tenancy.together(config, folder) == ["lumen", "northwind"]
    assert tenancy.sets(config, folder, "pooled") == [["lumen", "northwind"]]


def test_what_an_evolution_may_learn_from_is_what_its_set_would_hold(config: Settings) -> None:
    nobodys = tenancy.learnable(config, ["lumen", "northwind"])
    assert nobodys.tenants == () and "none has agreed to pooling" in nobodys.why
    assert tenancy.learnable(config, ["lumen"]) == tenancy.Learnable(("lumen",))
    agree(config, "lumen", pooling=True)
    assert tenancy.learnable(config, ["lumen", "northwind"]) == tenancy.Learnable(("lumen",))


def test_one_tenants_agent_needs_no_agreement(config: Settings, tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "lumen.jsonl").write_text("")
    assert tenancy.together(config, tmp_path / "one") == ["lumen"]


def test_federated_sets_are_one_a_tenant_and_only_of_those_that_agreed(config: Settings, folder: Path) -> None:
    agree(config, "lumen", federated=True)
    with pytest.raises(RegistryError, match="two tenants"):
        tenancy.sets(config, folder, "federated")
    agree(config, "northwind", federated=True)
    assert tenancy.sets(config, folder, "federated") == [["lumen"], ["northwind"]]


def test_isolated_training_names_its_tenant_when_there_are_several(config: Settings, folder: Path) -> None:
    with pytest.raises(RegistryError, match="name one of"):
        tenancy.sets(config, folder, "isolated")
    assert tenancy.sets(config, folder, "isolated", "lumen") == [["lumen"]]
