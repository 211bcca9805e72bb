"""A training run: what it writes, what it refuses, and that a kill costs nothing."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file
from torch import equal

from services.worker.policies import policy_digest
from services.worker.training.examples import Example
from services.worker.training.job import JobError, read_job
from services.worker.training.metrics import Metrics, MetricsLog
from services.worker.training.run import main, run
from tests.worker.conftest import VOCABULARY, write_job


def test_a_run_lowers_the_heldout_loss_and_leaves_adapter_metrics_and_result(job_file: Path) -> None:
    job = read_job(job_file)

    result = run(job)

    assert result["heldout_loss"] < result["heldout_loss_before"]
    assert result["steps"] == 8
    assert [json.loads(x)["step"] for x in (job.output / "metrics.jsonl").open()] == list(range(1, 9))
    assert result["digest"] == policy_digest(job.output / "adapter")
    assert {f.name for f in (job.output / "adapter").iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
    }
    assert len(result["probe"]["logprobs"]) == len(result["probe"]["completion_token_ids"]) > 0
    assert not (job.output / "checkpoint").exists()


def test_the_same_job_gives_the_same_weights_wherever_it_runs(
    tmp_path: Path, tiny_model: Path, examples: list[Example]
) -> None:
    here = run(read_job(write_job(tmp_path / "here", tiny_model, examples)))
    there = run(read_job(write_job(tmp_path / "there", tiny_model, examples)))

    assert here["digest"] == there["digest"]


def test_a_finished_job_answers_from_its_result_without_training_again(job_file: Path) -> None:
    first = run(read_job(job_file))
    before = (read_job(job_file).output / "metrics.jsonl").stat().st_mtime_ns

    assert run(read_job(job_file)) == first
    assert (read_job(job_file).output / "metrics.jsonl").stat().st_mtime_ns == before


@pytest.mark.stack  # 240 steps twice
def test_a_run_killed_and_started_again_ends_with_the_weights_of_an_uninterrupted_one(
    tmp_path: Path, tiny_model: Path, examples: list[Example]
) -> None:
    whole = run(read_job(write_job(tmp_path / "whole", tiny_model, examples, epochs=60)))
    file = write_job(tmp_path / "killed", tiny_model, examples, epochs=60)
    job = read_job(file)
    command = [sys.executable, "-m", "services.worker.training.run", "--job", str(file)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not (job.output / "checkpoint" / "progress.json").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (job.output / "result.json").exists()

    resumed = run(job)

    assert resumed["resumed_from"] is not None
    assert resumed["resumed_from"] % 3 == 0
    weights = [load_file(Path(r["adapter"]) / "adapter_model.safetensors") for r in (whole, resumed)]
    assert all(equal(weights[0][name], weights[1][name]) for name in weights[0])
    steps = [json.loads(x)["step"] for x in (job.output / "metrics.jsonl").open()]
    assert steps == list(range(1, 241))


def test_a_checkpoint_of_another_job_is_not_resumed(tmp_path: Path, tiny_model: Path, examples: list[Example]) -> None:
    first = run(read_job(write_job(tmp_path, tiny_model, examples)))
    other = run(read_job(write_job(tmp_path, tiny_model, examples, learning_rate=0.001)))

    assert other["resumed_from"] is None
    assert other["digest"] != first["digest"]


@pytest.mark.parametrize(
    "file", ["checkpoint/progress.json", "checkpoint/trained.safetensors", "checkpoint/optimizer.bin", "metrics.jsonl"]
)
def test_a_run_does_not_go_on_from_what_was_damaged_and_says_what_that_is(
    job_file: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    job = read_job(job_file)
    write = MetricsLog.write

    def die(self: MetricsLog, told: Metrics) -> None:
        if told.step == 5:
            raise KeyboardInterrupt
        write(self, told)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(MetricsLog, "write", die)
        run(job)
    damaged = job.output / file
    damaged.write_bytes(damaged.read_bytes()[:-10])

    with pytest.raises(JobError, match=f"{Path(file).parts[0]} is damaged"):
        run(job)


def test_a_figure_that_was_no_number_is_read_again_as_that(tmp_path: Path) -> None:
    known = {"steps": 2, "epoch": 0, "loss": 1.0, "learning_rate": 0.1, "grad_norm": 1.0, "tokens": 1, "seconds": 1.0}
    MetricsLog(tmp_path / "metrics.jsonl").write(Metrics(step=1, **known, kl=math.nan, figures={"clipped": math.nan}))  # type: ignore[arg-type]

    again = MetricsLog(tmp_path / "metrics.jsonl")

    again.write(Metrics(step=2, **known))  # type: ignore[arg-type]
    first, _ = (json.loads(line) for line in (tmp_path / "metrics.jsonl").open())
    assert (first["kl"], first["figures/clipped"]) == (None, None)


def test_unusable_examples_are_dropped_and_counted_by_reason(
    tmp_path: Path, tiny_model: Path, examples: list[Example]
) -> None:
    unusable = [
        Example(prompt_token_ids=[1, 2], completion_token_ids=[]),
        Example(prompt_token_ids=[], completion_token_ids=[2]),
        Example(prompt_token_ids=[1] * 90, completion_token_ids=[2] * 11),
        Example(prompt_token_ids=[1, 2], completion_token_ids=[2], weight=0),
    ]

    result = run(read_job(write_job(tmp_path, tiny_model, examples + unusable, max_length=100)))

    assert result["examples"] == len(examples)
    assert result["dropped"] == {
        "empty completion": 1,
        "empty prompt": 1,
        "longer than 100 tokens": 1,
        "weight 0": 1,
    }


def test_too_few_examples_are_refused_with_the_counts(
    tmp_path: Path, tiny_model: Path, examples: list[Example], capsys: pytest.CaptureFixture[str]
) -> None:
    empty = Example(prompt_token_ids=[1], completion_token_ids=[])
    file = write_job(tmp_path, tiny_model, [*examples[:3], empty], min_examples=4)

    assert main(["--job", str(file)]) == 2
    assert "3 usable of 4 (1 empty completion); min_examples is 4" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ('{"prompt_token_ids": "Where is A1?", "completion_token_ids": [2]}', "Expected `array`, got `str`"),
        ('{"prompt_token_ids": [1.5], "completion_token_ids": [2]}', "Expected `int`, got `float`"),
        ('{"prompt_token_ids": [1]}', "missing required field `completion_token_ids`"),
        (f'{{"prompt_token_ids": [{VOCABULARY}], "completion_token_ids": [2]}}', "outside the vocabulary"),
        ("not json", "malformed"),
    ],
)
def test_a_row_that_is_no_example_is_refused_with_its_line(job_file: Path, row: str, said: str) -> None:
    job = read_job(job_file)
    with job.examples.open("a") as stream:
        stream.write(row + "\n")

    with pytest.raises(JobError, match="line 25") as error:
        run(job)
    assert said in str(error.value)


@pytest.mark.parametrize("config", ["{}", "{", '{"vocab_size": null}'])
def test_a_base_whose_configuration_is_no_language_models_is_refused(
    job_file: Path, tmp_path: Path, config: str
) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "config.json").write_text(config)
    job_file.write_text(json.dumps(json.loads(job_file.read_text()) | {"base": str(tmp_path / "base")}))

    with pytest.raises(JobError, match="is no language model's"):
        run(read_job(job_file))


def test_a_job_with_an_unknown_key_or_a_missing_file_is_refused(job_file: Path, tmp_path: Path) -> None:
    told = json.loads(job_file.read_text())
    job_file.write_text(json.dumps(told | {"learning_rat": 1}))
    with pytest.raises(JobError, match="learning_rat"):
        read_job(job_file)
    job_file.write_text(json.dumps(told | {"examples": str(tmp_path / "nowhere")}))
    with pytest.raises(JobError, match="examples: no such file"):
        read_job(job_file)
    with pytest.raises(JobError, match="cannot read the job file"):
        read_job(tmp_path / "nothing.json")
