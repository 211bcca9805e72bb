"""What becomes of a proposed recipe: the kind of set, its rows, and what the job is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evaluators import dataset
from evaluators.cases import Case
from evoplane.settings import Settings
from flows import corrected_sets, recipes
from flows.train import kind_of
from flows.training_set import Writer
from registry import control, pointers, tenants
from registry.manifest import AgentVersion, Manifest, Policy
from services.worker.training.algorithms import algorithm
from services.worker.training.examples import read_examples
from tests.flows.test_training_set import config  # noqa: F401  (fixture: a model directory with letters for tokens)
from tests.surfaces.making import of
from tests.surfaces.test_policy_and_rollback import unable


def letters(text: str) -> list[int]:
    return [ord(c) for c in text]


@pytest.fixture
def writer(config: Settings) -> Writer:  # noqa: F811
    return Writer(config.model_dir)


def rows(writer: Writer, kind: Any, cases: list[Case], folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    report = corrected_sets.build(cases, kind, dataset.NONE_HELD_OUT, 100, writer, folder)
    file = folder / "train.jsonl"
    kept, dropped = read_examples(file, max_length=1000, vocab_size=256)
    assert len(kept) + sum(dropped.values()) == len(file.read_bytes().splitlines())
    return report, [json.loads(line) for line in file.read_bytes().splitlines()]


def captured(cases: list[Case]) -> list[Case]:
    return [of(c, prompt_token_ids=letters(f"<|user|>{c.request}<|end|>\n<|assistant|>"),
               completion_token_ids=letters("Hm.")) for c in cases]  # fmt: skip


def test_every_algorithm_says_what_it_learns_from_and_there_is_a_set_for_it() -> None:
    declared = {name: algorithm(name).learns_from() for name in ("sft", "rft", "dpo", "grpo", "opd", "ppo", "prm")}
    assert declared == {"sft": "demonstrations", "rft": "successes", "dpo": "pairs", "grpo": "groups", "opd": "hints",
                        "ppo": "groups", "prm": "steps"}  # fmt: skip
    assert {name: algorithm(name).passes() for name in ("sft", "dpo", "grpo", "opd")} == {
        "sft": 1, "dpo": 4, "grpo": 1, "opd": 2
    }  # fmt: skip
    assert {recipes.kind({"algorithm": name}) for name in ("grpo", "rft", "sft")} == {"groups", "rft", "sft"}
    assert [kind_of(name) for name in ("grpo", "rft", "sft", "dpo", "opd")] == [
        "groups", "rft", "sft", "preferences", "hints"
    ]  # fmt: skip


def test_a_pair_is_what_was_shown_and_what_was_done_under_one_prompt(writer: Writer, tmp_path: Path) -> None:
    report, made = rows(writer, "corrected", captured(unable(4)), tmp_path)
    assert report["train"] == 4 and len(made) == 8
    chosen, rejected = made[:2]
    assert (chosen["role"], rejected["role"], chosen["pair"]) == ("chosen", "rejected", rejected["pair"])
    assert chosen["prompt_token_ids"] == rejected["prompt_token_ids"]
    assert chosen["completion_token_ids"][-7:] == letters("<|end|>")
    assert rejected["completion_token_ids"] == letters("Hm.")
    assert chosen["pair"].split("/")[0] in ("northwind", "lumen")


def test_a_hint_stands_behind_the_users_words_in_the_teachers_prompt_alone(writer: Writer, tmp_path: Path) -> None:
    cases = captured(unable(4))
    strange = of(cases[0], prompt_token_ids=letters("<|user|>another template"))
    report, made = rows(writer, "hints", [*cases[1:], strange], tmp_path)
    assert len(made) == 3 and report["dropped"] == {"its prompt does not end as the template ends one": 1}
    (row,) = [r for r in made if r["prompt_token_ids"] == cases[1].prompt_token_ids]
    told = "".join(map(chr, row["hint_prompt_token_ids"]))
    assert told == (f"<|user|>{cases[1].request}\n\n(Hint: That is not what I asked for.)<|end|>\n<|assistant|>")


def test_words_about_an_answer_to_no_words_are_left_out_and_the_others_stay(writer: Writer, tmp_path: Path) -> None:
    cases = captured(unable(4))
    mute = of(cases[0], messages=[{"role": "user", "content": ""}])
    report, made = rows(writer, "hints", [*cases[1:], mute], tmp_path)
    assert len(made) == report["train"] == len(report["eligibility"]) == 3
    assert list(report["dropped"].values()) == [1]


def test_what_moves_the_policy_by_its_own_answers_goes_on_from_the_champions_weights(
    config: Settings,  # noqa: F811
) -> None:
    connection = control.connect(config.control_db)
    tenants.create_agent(connection, "support", config.model.name, None, ())
    weights = Policy(base="m", served_name="m-c-1", adapter="sha256:1", path="policies/1")
    manifest = Manifest(policy=weights)
    pointers.put_version(
        connection, AgentVersion(agent="support", version="1", digest=manifest.digest, manifest=manifest)
    )
    pointers.set_champion(connection, "support", "1", "first", "test")

    def told(name: str) -> dict[str, Any]:
        return recipes.options(config, "support", {"algorithm": name, "learning_rate": 1e-4})

    assert told("sft") == {"algorithm": "sft", "learning_rate": 1e-4}, "anew, from all that is known to be right"
    start = str((config.var / "policies/1").resolve())
    assert told("dpo") == {"algorithm": "dpo", "learning_rate": 1e-4, "initial_adapter": start}
    assert (told("grpo")["policy_version"], told("grpo")["max_staleness"]) == (1, 0)
    tenants.create_agent(connection, "new", config.model.name, None, ())
    assert recipes.start(config, "new", "grpo") == {}, "nothing serves yet: from the base model"
