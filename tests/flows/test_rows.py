"""Training rows from recorded turns: every sampled token once, nothing encoded again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from flows import rows
from services.worker.training.algorithms import algorithm
from services.worker.training.examples import read_examples


def call(id: str, prompt: list[int], completion: list[int], version: str = "v1/1", **more: Any) -> dict[str, Any]:
    return {
        "record": "event",
        "kind": "llm_call",
        "id": id,
        "y": {"status": "ok"},
        "a": {"params": more.pop("params", {})},
        "tokens": {
            "prompt_token_ids": prompt,
            "completion_token_ids": completion,
            "logprobs": more.pop("logprobs", [-0.5] * len(completion)),
            "policy_versions": more.pop("versions", [[len(completion), version]]),
        },
        **more,
    }


def test_a_turn_that_continues_the_one_before_is_the_same_row_and_the_tools_words_are_observed() -> None:
    built = rows.build([call("a", [1, 2], [3, 4]), call("b", [1, 2, 3, 4, 9, 9], [5], "v2/2")])
    (row,) = built.rows
    assert (row.prompt, row.completion) == ([1, 2], [3, 4, 9, 9, 5])
    assert row.observed == [(2, 4)]
    assert row.spans == [(0, 2, "v1"), (4, 5, "v2")]
    assert built.merged == 1


def test_a_conversation_that_branches_is_a_tree_and_no_token_is_learned_twice() -> None:
    built = rows.build([call("a", [1], [2]), call("b", [1, 2, 7], [3]), call("c", [1, 2, 8], [4])])
    assert [(row.prompt, row.completion) for row in built.rows] == [([1], [2, 7, 3]), ([1, 2, 8], [4])]
    assert (built.merged, built.branches, built.unmatched) == (1, 1, 0)


def test_a_prompt_that_differs_by_one_token_is_not_merged_and_is_counted() -> None:
    built = rows.build([call("a", [1, 2], [3, 4]), call("b", [1, 2, 3, 5, 9], [6])])
    assert len(built.rows) == 2
    assert (built.merged, built.unmatched) == (0, 1)


@given(st.lists(st.tuples(st.lists(st.integers(0, 3), max_size=3), st.lists(st.integers(0, 3), min_size=1, max_size=3)),
                min_size=1, max_size=6), st.lists(st.integers(0, 5), max_size=6))  # fmt: skip
def test_every_sampled_token_is_in_exactly_one_row(said: list[tuple[list[int], list[int]]], parents: list[int]) -> None:
    wholes: list[list[int]] = [[7]]
    records = []
    for number, (between, completion) in enumerate(said):
        parent = wholes[parents[number] % len(wholes) if number < len(parents) else -1]
        prompt = parent + between
        records.append(call(f"e{number}", prompt, completion))
        wholes.append(prompt + completion)
    built = rows.build(records)
    assert sorted(id for row in built.rows for id in row.events) == [f"e{n}" for n in range(len(said))]
    sampled = sum(len(completion) for _, completion in said)
    assert sum(end - start for row in built.rows for start, end, _ in row.spans) == sampled
    for row in built.rows:
        assert row.whole in wholes
        assert len(row.completion) == len(row.logprobs)


def test_what_cannot_be_learned_from_is_dropped_and_counted_by_its_reason() -> None:
    records = [
        call("a", [1], [2], y={"status": "truncated"}),
        call("b", [1], [2], logprobs=[]),
        call("c", [1], [2], versions=[[2, "v1/1"]]),
        {**call("d", [1], [2]), "tokens": {"prompt_token_ids": {"sealed": "x"}, "completion_token_ids": [2]}},
        {**call("e", [1], [2]), "tokens": {}},
    ]  # fmt: skip
    built = rows.build(records)
    assert built.rows == []
    assert built.dropped == {
        "its status is truncated": 1,
        "its tokens do not add up": 2,
        "its tokens are sealed": 1,
        "no captured tokens": 1,
    }


def test_a_token_the_grammar_forced_is_marked_only_where_a_grammar_was_in_force() -> None:
    forced = call("a", [1], [2, 3, 4], logprobs=[0.0, 0.0, -0.4], params={"tool_choice": "required"})
    free = call("a", [1], [2, 3, 4], logprobs=[0.0, 0.0, -0.4])
    assert rows.build([forced]).rows[0].forced == [(0, 2)]
    assert rows.build([free]).rows[0].forced == []


def test_weights_nobody_knows_make_no_row() -> None:
    (row,) = rows.build([call("a", [1], [2])]).rows
    assert rows.encoded(row, {"v0": 0}) is None
    made = rows.encoded(row, rows.ordinals(["v0", "v1", "v0"]), reward=1.0, group="g")
    assert made is not None and made["policy_versions"] == [{"version": 1, "start": 0, "end": 1}]


def test_groups_of_one_and_groups_rewarded_alike_teach_nothing_and_are_counted() -> None:
    kept, dropped = rows.contrasting({"a": [1.0], "b": [0.0, 0.0], "c": [0.0, 1.0]})
    assert kept == {"c"}
    assert dropped == {"a group of one": 1, "all of its group were rewarded alike": 2}


def test_a_pair_is_the_best_and_the_worst_attempt_at_one_task() -> None:
    made = rows.pairs([("g", 0.0, {"n": 1}), ("g", 1.0, {"n": 2}), ("h", 1.0, {"n": 3})])
    assert made == [{"n": 2, "pair": "g", "role": "chosen"}, {"n": 1, "pair": "g", "role": "rejected"}]


def test_the_trainer_takes_rows_as_they_are_made(tmp_path: Path) -> None:
    records = [
        call("a", [1, 2], [3, 4], logprobs=[0.0, -0.5], params={"tool_choice": "required"}),
        call("b", [1, 2, 3, 4, 9, 9], [5, 2], "v2/2", versions=[[1, "v1/1"], [1, "v2/2"]]),
    ]
    made = [
        rows.encoded(row, {"v1": 0, "v2": 1}, reward=float(n), group="g", trajectory=f"tr_{n}", turn=0)
        for n in range(2)
        for row in rows.build(records).rows
    ]
    file = tmp_path / "train.jsonl"
    file.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in made))
    examples, dropped = read_examples(file, max_length=64, vocab_size=16)
    assert (len(examples), dropped) == (2, {})
    for name in ("grpo", "ppo", "rloo", "reinforce", "sft"):
        kept, lacking = algorithm(name, {}).select(examples)
        assert (len(kept), lacking) == (2, {}), name
