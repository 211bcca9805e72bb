"""Training rows: what is refused, what is dropped, how old rows and rewards of later turns are treated."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from services.worker.training.examples import Example, VersionSpan, own_tokens, read_examples
from services.worker.training.job import JobError, Round
from services.worker.training.returns import discount
from services.worker.training.reward_watch import watch
from services.worker.training.staleness import drop_stale


def written(tmp_path: Path, **told: object) -> Path:
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"prompt_token_ids": [1, 2], "completion_token_ids": [3, 4, 2], **told}))
    return file


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"logprobs": [-1.0]}, "1 logprobs for 3 completion tokens: these are not the ids that were sampled"),
        ({"logprobs": [-1.0, 0.5, -1.0]}, "a log-probability above 0"),
        ({"teacher_logprobs": [-1.0] * 4}, "4 teacher_logprobs for 3 completion tokens"),
        ({"observed": [[1, 4]]}, "observed: a span is empty or ends behind the last of 3"),
        ({"forced": [[2, 2]]}, "forced: a span is empty"),
        ({"policy_versions": [{"version": 1, "start": 0, "end": 2}]}, "nobody knows which weights sampled .* token 2"),
        ({"steps": [{"end": 3, "reward": 1}, {"end": 2, "reward": 1}]}, "steps: ends must rise"),
        ({"pair": "p"}, "pair and role belong together"),
        ({"trajectory": "t"}, "trajectory and turn belong together"),
        ({"trajectory": "t", "turn": 1, "after": 1}, "an earlier turn"),
        ({"reward": 1.0, "advantage": 1.0}, "alternatives"),
        ({"hint_prompt_token_ids": [99]}, "token id 99 is outside the vocabulary of 10"),
    ],
)
def test_a_row_that_contradicts_itself_is_refused_with_its_line(tmp_path: Path, told: dict, said: str) -> None:
    with pytest.raises(JobError, match=f"line 1: .*{said}"):
        read_examples(written(tmp_path, **told), max_length=100, vocab_size=10)


def test_a_row_nested_without_end_is_refused_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"a":' + "[" * 100_000 + "]" * 100_000 + "}")
    with pytest.raises(JobError, match="line 1"):
        read_examples(file, max_length=100, vocab_size=10)


def test_a_row_others_wrote_entirely_is_dropped_and_counted(tmp_path: Path) -> None:
    kept, dropped = read_examples(written(tmp_path, observed=[[0, 3]]), max_length=100, vocab_size=10)

    assert (kept, dropped) == ([], {"no token of the policy's own": 1})


def test_forced_tokens_are_imitated_and_observed_ones_never_are() -> None:
    row = Example(prompt_token_ids=[1], completion_token_ids=[2, 3, 4, 5], observed=[(0, 1)], forced=[(2, 3)])

    assert own_tokens(row, forced=True) == [False, True, True, True]
    assert own_tokens(row, forced=False) == [False, True, False, True]


def sampled_by(*versions: int) -> Example:
    spans = [VersionSpan(version, i, i + 1) for i, version in enumerate(versions)]
    return Example(prompt_token_ids=[1], completion_token_ids=[2] * len(versions), policy_versions=spans)


def test_rows_are_as_old_as_their_oldest_own_token_and_dropped_beyond_the_bound() -> None:
    rows = [sampled_by(7), sampled_by(5, 7), sampled_by(2), Example(prompt_token_ids=[1], completion_token_ids=[2])]

    kept, dropped, histogram = drop_stale(rows, policy_version=7, bound=2)

    assert kept == rows[:2]
    assert dropped == {"stale: more than 2 versions old": 1, "of unknown policy version": 1}
    assert histogram == {"unknown": 1, "0": 1, "2": 1, "5": 1}


def test_a_row_newer_than_the_starting_weights_is_refused() -> None:
    with pytest.raises(JobError, match="sampled by version 8, but training starts from policy_version 7"):
        drop_stale([sampled_by(8)], policy_version=7, bound=None)


def turn(number: int, reward: float | None = None, after: int | None = None) -> Example:
    return Example(
        prompt_token_ids=[1], completion_token_ids=[2], trajectory="t", turn=number, after=after, reward=reward
    )


def test_a_final_reward_is_discounted_back_turn_by_turn() -> None:
    assert [e.reward for e in discount([turn(0), turn(1), turn(2, 1.0)], 0.5)] == [0.25, 0.5, 1.0]


def test_a_turn_earns_from_what_it_led_to_and_not_from_what_only_came_later() -> None:
    turns = [turn(0), turn(1, 0.4, after=0), turn(2, 1.0, after=0), turn(3, 0.8, after=2)]

    returns = [e.reward for e in discount(turns, 0.5)]

    assert returns == pytest.approx([0.5 * (0.4 + 1.4) / 2, 0.4, 1.4, 0.8])


def test_a_trajectory_without_any_reward_cannot_be_discounted() -> None:
    with pytest.raises(JobError, match="trajectory t has no reward"):
        discount([turn(0), turn(1)], 0.9)


def rounds(*points: tuple[float, float]) -> list[Round]:
    return [Round(reward, outcome) for reward, outcome in points]


def test_reward_that_rises_while_the_outcome_stays_flat_is_suspected() -> None:
    found = watch(rounds((0.2, 0.5), (0.3, 0.48), (0.4, 0.51), (0.6, 0.5), (0.7, 0.49), (0.9, 0.5)))

    assert found.verdict == "suspected"
    assert "rose from 0.2 to 0.9" in found.detail


def test_reward_and_outcome_that_rise_together_are_healthy_and_few_rounds_say_nothing() -> None:
    assert watch(rounds(*[(i / 10, i / 9) for i in range(6)])).verdict == "healthy"
    assert watch(rounds((0.1, 0.5), (0.9, 0.1))).verdict == "not enough data"
