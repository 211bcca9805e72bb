"""Each algorithm's loss is its paper's, and it refuses data it can't learn from."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.train.losses import CASES, Case, difference, here, there
from services.worker.training.algorithms import BUILT_IN, algorithm, names
from services.worker.training.examples import Example
from services.worker.training.job import JobError

BOUND = 1e-5


@pytest.fixture(scope="module")
def rows() -> list[dict]:
    from benchmarks.train.cases import rows

    return rows()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_loss_and_gradients_equal_a_float64_implementation_of_the_papers_formula(case: Case, rows: list[dict]) -> None:
    loss, gradients = difference(here(case, rows), there(case, rows))

    assert loss < BOUND
    assert gradients < BOUND


def test_every_built_in_algorithm_is_compared() -> None:
    assert {case.algorithm for case in CASES} == set(BUILT_IN)


@pytest.mark.stack  # importing TRL's trainers takes as long as all tests here
def test_loss_and_gradients_equal_those_of_trl() -> None:
    from benchmarks.train.trl_losses import compare

    found = compare()

    assert len(found) == 9
    assert {name: worst for name, worst in found.items() if max(worst) >= BOUND} == {}


def row(**told: object) -> Example:
    return Example(prompt_token_ids=[1, 2], completion_token_ids=[3, 2], **told)


def test_a_group_of_one_is_refused_with_the_reason_where_advantages_are_centred_by_group() -> None:
    alone = [row(reward=1.0, group=f"task-{i}") for i in range(4)]

    for name in ("rloo", "grpo", "dr_grpo", "lite_ppo", "gspo"):
        with pytest.raises(JobError, match="4 rows: a group of one: its reward is its own mean"):
            algorithm(name).select(alone)
    kept, dropped = algorithm("reinforce").select(alone)
    assert (len(kept), dropped) == (4, {})


def test_rows_alone_in_their_group_are_dropped_and_counted_when_other_groups_can_be_learned_from() -> None:
    told = [row(reward=0.0, group="a"), row(reward=1.0, group="a"), row(reward=1.0, group="b"), row(reward=1.0)]

    kept, dropped = algorithm("grpo").select(told)

    assert [e.group for e in kept] == ["a", "a"]
    assert sorted(reason.split(":")[0] for reason in dropped) == ["a group of one", "no group"]


@pytest.mark.parametrize(
    ("name", "example", "said"),
    [
        ("grpo", row(group="a"), "no reward"),
        ("dpo", row(), "no pair"),
        ("dpo", row(pair="p", role="chosen"), "not one chosen and one rejected"),
        ("ppo", row(reward=1.0, group="a"), "no captured log-probabilities"),
        ("opd", row(), "no teacher"),
        ("prm", row(), "no process rewards"),
        ("rft", row(reward=0.2), "no row of 1 has a reward of at least 1"),
    ],
)
def test_missing_data_is_refused_with_what_is_missing(name: str, example: Example, said: str) -> None:
    with pytest.raises(JobError, match=said):
        algorithm(name).select([example])


def test_rejection_sampling_keeps_each_good_answer_once() -> None:
    good, worse = row(reward=1.0), row(reward=0.5)

    kept, dropped = algorithm("rft").select([good, good, worse])

    assert kept == [good]
    assert dropped == {"repeated answer to the same prompt": 1, "reward below 1": 1}


def test_an_unknown_algorithm_or_hyperparameter_is_refused_with_the_known_ones() -> None:
    with pytest.raises(JobError, match=r"grop is none of .*grpo"):
        algorithm("grop")
    with pytest.raises(JobError, match=r"hyperparameters of grpo: .*kl_wieght"):
        algorithm("grpo", {"kl_wieght": 0.1})
    with pytest.raises(JobError, match="hyperparameters of dpo: Expected `float`, got `str`"):
        algorithm("dpo", {"beta": "high"})


def test_the_documented_example_of_an_added_algorithm_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = (Path(__file__).parents[2] / "docs/learning.md").read_text().split("```")
    code = next(b.removeprefix("python\n") for b in blocks if b.startswith("python\n") and "Algorithm" in b)
    entry = next(b.removeprefix("toml\n") for b in blocks if b.startswith("toml\n"))
    name, value = entry.splitlines()[1].replace('"', "").split(" = ")
    (tmp_path / f"{value.split(':')[0]}.py").write_text(code)
    (tmp_path / "ours-1.0.dist-info").mkdir()
    (tmp_path / "ours-1.0.dist-info/METADATA").write_text("Name: ours\nVersion: 1.0\n")
    (tmp_path / "ours-1.0.dist-info/entry_points.txt").write_text(f"[evoplane.algorithms]\n{name} = {value}\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])

    assert name in names()
    added = algorithm(name, {"margin": 0.5})
    assert added.margin == 0.5
    with pytest.raises(JobError, match="no pair"):
        added.select([row()])
