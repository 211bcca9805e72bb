"""Training rows from re-made decisions: in the trainer's own form, with where they come from, and nothing unallowed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from evaluators.replay.branch import Answer, Request
from evaluators.replay.engine import Engine
from evaluators.replay.factory import Made, Sampled, group, imitation, preferences, rejection_sampled
from evaluators.replay.parts import Part, manifest_without, messages_without, parts_of
from evaluators.replay.recording import Recording, from_messages
from registry.manifest import Guardrail, Manifest, MemoryItem, Policy
from services.worker.training.examples import read_examples
from tests.evaluators.test_engine import EFFECTS, TRACK, result, said, user


def recording(**given: Any) -> Recording:
    messages = [user("Where is A1?"), said("", TRACK), result("order A1: shipped"), said("It is on its way.")]
    fields = {"tenant": "northwind", "agent": "support", "success": True, "train_eligible": True,
              "event_ids": {1: "ev_1", 3: "ev_3"}}  # fmt: skip
    return from_messages("tr_1", messages, effects=EFFECTS, **{**fields, **given})


def sampled(of: Recording, scripts: Sequence[Sequence[dict[str, Any]]], ids: bool = True) -> Sampled:
    """Branches of the first decision, each playing one script."""
    left = {seed: list(script) for seed, script in enumerate(scripts)}

    async def answer(request: Request) -> Answer:
        message = left[request.seed].pop(0)
        prompt, completion = ([1, 9, len(request.messages)], [5, 6, 2]) if ids else ([], [])
        return Answer(message=message, prompt_token_ids=prompt, completion_token_ids=completion,
                      logprobs=[-0.1, -0.2, -0.3] if ids else [], policy_version="support-2")  # fmt: skip

    branches = asyncio.run(Engine().branches(of, 1, answer, seeds=range(len(scripts))))
    return Sampled(of, branches)


RIGHT = [said("", TRACK), said("It is on its way.")]
OTHER = [said("It will come.")]
BROKEN = [said('<tool_call>{"name": "track')]


def examples(made: Made, folder: Path) -> list[Any]:
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in made.rows))
    kept, dropped = read_examples(file, max_length=64, vocab_size=64)
    assert not dropped
    return kept


def test_only_samples_that_are_known_to_have_succeeded_are_kept(tmp_path: Path) -> None:
    made = rejection_sampled([sampled(recording(), [RIGHT, OTHER, BROKEN])])
    rows = examples(made, tmp_path)
    assert [r.reward for r in rows] == [1.0, 1.0], "both answers of the one branch that succeeded"
    assert made.dropped == {"unknown outcome": 1, "failed": 1}
    provenance = made.rows[0]["provenance"]
    assert (provenance["trajectory_id"], provenance["event_id"], provenance["seed"]) == ("tr_1", "ev_1", 0)
    assert (provenance["class"], provenance["eligible"]) == ("deterministic", {"train": True})


def test_a_group_has_all_known_outcomes_of_one_decision(tmp_path: Path) -> None:
    made = group([sampled(recording(), [RIGHT, OTHER, BROKEN])])
    rows = examples(made, tmp_path)
    assert {r.group for r in rows} == {"tr_1/1"} and sorted({r.reward for r in rows}) == [0.0, 1.0]
    assert made.dropped == {"unknown outcome": 1}
    alone = group([sampled(recording(), [BROKEN, OTHER])])
    assert (alone.rows, alone.dropped) == ((), {"unknown outcome": 1, "group of one": 1})


def test_a_stronger_models_answer_is_a_target_and_the_chosen_side(tmp_path: Path) -> None:
    of = recording()
    strong, weak = sampled(of, [RIGHT]), sampled(of, [BROKEN])
    assert len(examples(imitation([strong]), tmp_path)) == 2
    assert imitation([weak]).dropped == {"failed": 1}
    chosen, rejected = examples(preferences([strong], [weak]), tmp_path)
    assert (chosen.role, rejected.role, chosen.pair, chosen.prompt_token_ids) == (
        "chosen", "rejected", "northwind/tr_1/1", rejected.prompt_token_ids)  # fmt: skip
    assert preferences([strong], [strong]).dropped == {"same answer": 1}
    assert preferences([weak], [strong]).dropped == {"failed": 1}


def test_another_tokenizers_answer_is_encoded_or_dropped(tmp_path: Path) -> None:
    strong = sampled(recording(), [RIGHT], ids=False)
    assert imitation([strong]).dropped == {"no token ids": 2}
    encoded = imitation([strong], encode=lambda branch, answer: ([1, 2], [3, 4]))
    assert [r.completion_token_ids for r in examples(encoded, tmp_path)] == [[3, 4], [3, 4]]
    assert all("logprobs" not in row for row in encoded.rows), "the policy did not sample them"


def test_what_may_not_be_trained_on_gives_no_row() -> None:
    for make in (rejection_sampled, group, imitation):
        made = make([sampled(recording(train_eligible=False), [RIGHT, RIGHT])])
        assert made.rows == () and made.dropped["not eligible for training"] == 2


def test_each_part_of_a_decision_can_be_left_out_and_nothing_else_changes() -> None:
    item = MemoryItem(id="mem_1", tenant="northwind", topic="warranty", text="12 months", trust="vetted")
    rules = (Guardrail(id="g1", text="Be kind."), Guardrail(id="g2", text="No refunds.", protected=True))
    manifest = Manifest(policy=Policy(base="b", served_name="b"), memory=(item,), guardrails=rules)
    messages = [*recording().messages[:3], user("And?")]
    parts = parts_of(manifest, messages)
    assert parts == [
        Part("memory", "mem_1"),
        Part("guardrail", "g1"),
        Part("observation", "0"),
        Part("observation", "2"),
    ]
    assert manifest_without(manifest, parts[0]) == msgspec.structs.replace(manifest, memory=())
    assert manifest_without(manifest, parts[1]).guardrails == rules[1:]
    assert messages_without(messages, parts[3])[2] == {**messages[2], "content": ""}, "a call keeps its pair"
    assert len(messages_without(messages, parts[2])) == 3
