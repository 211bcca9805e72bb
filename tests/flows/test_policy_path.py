"""`evolve`'s policy path with an algorithm that is not SFT, on the real model."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from evaluators.cases import Action, Case, cases_of
from evaluators.quality import QualityResult
from evoplane.settings import Settings, settings
from flows import candidates, dry_run, evolution, snapshot
from flows.training_set import Writer
from registry import control, pointers, tenants
from registry.manifest import AgentVersion, Manifest, Policy
from tests.flows.test_training_set import trajectory

NAMES = ("cancel_order", "refund_order", "track_order", "exchange_order")


def failed(n: int, writer: Writer) -> list[dict[str, Any]]:
    """A decision that failed, with its tokens and what was shown instead."""
    words = ("Please {} {{}}.", "{} {{}} now.", "I want to {} {{}}", "Can you {} {{}}?")[n // 4 % 4]
    records = trajectory(n, words.format(NAMES[n % 4].split("_")[0]), f"A{n}0")
    call = records[3]["ext"]["demonstration"]["tool_calls"][0]["function"]
    call["name"] = NAMES[n % 4]
    (case,) = cases_of("northwind", records, lambda _: [])
    whole = msgspec.structs.replace(case, demonstration={"role": "assistant", "content": "Sure!"})
    prompt = writer._template.render(messages=case.messages, tools=[], add_generation_prompt=True)
    records[1]["tokens"] = {
        "prompt_token_ids": writer._tokenizer.encode(prompt, add_special_tokens=False).ids,
        "completion_token_ids": writer.completion_ids(whole),
    }
    return records


@pytest.mark.stack
@pytest.mark.timeout(300)
def test_pairs_become_an_adapter_by_dpo_that_is_replayed_and_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = Settings.model_validate(
        {
            "paths": {"var": str(tmp_path), "models": str(settings().paths.models.resolve())},
            "surfaces": {"algorithms": ["dpo"]},
            "evolve": {"min_demonstrations": 8, "epochs": 1, "batch_size": 4, "lora_rank": 4},
        }
    )
    if not (config.model_dir / "model.safetensors").exists():
        pytest.skip(f"no model in {config.model_dir}")
    connection = control.connect(config.control_db)
    tenants.create_tenant(connection, "northwind", train="allow")
    tenants.create_agent(connection, "support", config.model.name, None, ())
    manifest = Manifest(policy=Policy(base=config.model.name, served_name=config.model.name))
    pointers.put_version(
        connection, AgentVersion(agent="support", version="1", digest=manifest.digest, manifest=manifest)
    )
    pointers.set_champion(connection, "support", "1", "first", "test")
    writer = Writer(config.model_dir)
    rows = [failed(n, writer) for n in range(48)]

    def write(_: Settings, agent: str, folder: Path) -> dict[str, int]:
        lines = [json.dumps({"tools": {"c": []}, "records": r}) for r in rows]
        (folder / "reward-rule.json").write_bytes(snapshot.rewards.encode(snapshot.rewards.DEFAULT_RULE))
        (folder / "northwind.jsonl").write_text("\n".join(lines) + "\n")
        return {"northwind": len(rows)}

    monkeypatch.setattr(snapshot, "write", write)
    monkeypatch.setattr(candidates.gate, "check", lambda judged, least: QualityResult(True, len(judged), 1, 1, ()))

    def answer(_: Settings, version: Manifest, cases: list[Case]) -> dict[Any, Action | None]:
        return {c.key: c.wanted if version.policy.adapter else c.action for c in cases}

    repository = tmp_path / "scratch" / "snapshots"
    work = evolution.Work(
        snapshot=partial(candidates.taken, repository=repository),
        quality=partial(candidates.quality, repository=repository),
        answer=answer,
        train=partial(dry_run._train, scratch=tmp_path / "scratch"),
    )
    found = evolution.run(config, connection, "support", "a test", work)

    (trained,) = [c for c in found.record["candidates"].values() if c["training"]]
    assert found.state == "Accepted" and "(dpo)" in trained["summary"]
    assert trained["training"]["algorithm"] == "dpo" and (config.var / found.made["path"]).is_dir()
