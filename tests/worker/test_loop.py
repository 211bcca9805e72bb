"""The loop: what each algorithm makes of a job, what does not change the result, and what stops it."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from services.worker.policies import model_digest, policy_digest
from services.worker.training.job import JobError, read_job
from services.worker.training.run import run

Make = Callable[..., Path]
"""(name, rows, **job) → a job file"""


@pytest.fixture
def rows(tiny_model: Path) -> list[dict[str, Any]]:
    """Four groups of four answers, sampled by the base model at version 3: captured log-probabilities are its own."""
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    draw = torch.Generator().manual_seed(0)
    found = []
    for group in range(4):
        prompt = [1, 5, 9, 13, 17, 21, *range(30 + 12 * group, 42 + 12 * group)]
        for member in range(4):
            ids, logprobs = list(prompt), []
            for _ in range(2 + (group + 2 * member) % 5):
                with torch.no_grad():
                    table = torch.log_softmax(model(input_ids=torch.tensor([ids])).logits[0, -1], -1)
                ids.append(int(torch.multinomial(table.exp(), 1, generator=draw)))
                logprobs.append(float(table[ids[-1]]))
            count = len(logprobs)
            found.append(
                {
                    "prompt_token_ids": prompt,
                    "completion_token_ids": ids[len(prompt) :],
                    "logprobs": logprobs,
                    "policy_versions": [{"version": 3, "start": 0, "end": count}],
                    "reward": float(member % 2),
                    "group": f"g{group}",
                    "pair": f"g{group}-{member // 2}",
                    "role": "chosen" if member % 2 else "rejected",
                    "hint_prompt_token_ids": [*prompt, 7, 8],
                    "steps": [{"end": count, "reward": float(member % 2)}],
                }
            )
    return found


@pytest.fixture
def make(tmp_path: Path, tiny_model: Path) -> Make:
    def make(name: str, rows: list[dict[str, Any]], **job: Any) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        told = {
            "base": str(tiny_model),
            "examples": str(folder / "rows.jsonl"),
            "output": str(folder / "out"),
            "algorithm": "grpo",
            "epochs": 2,
            "batch_size": 8,
            "lora_rank": 4,
            "learning_rate": 0.005,
            "policy_version": 3,
            "threads": 1,
        }
        (folder / "job.json").write_text(json.dumps(told | job))
        return folder / "job.json"

    return make


def metrics(job_file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (job_file.parent / "out/metrics.jsonl").open()]


@pytest.mark.parametrize("algorithm", ["rft", "dpo", "ipo", "reinforce", "rloo", "dr_grpo", "ppo", "opd", "prm"])
def test_every_algorithm_trains_from_rows_to_an_adapter(make: Make, rows: list[dict], algorithm: str) -> None:
    file = make("job", rows, algorithm=algorithm)

    result = run(read_job(file))

    assert result["algorithm"] == algorithm
    assert result["digest"] == policy_digest(Path(result["adapter"]))
    assert all(math.isfinite(m["loss"]) and m["grad_norm"] > 0 for m in metrics(file))


def test_a_step_tells_entropy_kl_reward_staleness_gap_and_the_algorithms_own_figures(
    make: Make, rows: list[dict]
) -> None:
    for row in rows[:4]:
        row["policy_versions"][0]["version"] = 1
        row["logprobs"] = [x - 0.5 for x in row["logprobs"]]  # of older weights: nothing to compare with
    file = make("job", rows, hyperparameters={"kl_weight": 0.01})

    result = run(read_job(file))

    first, *_, last = metrics(file)
    assert first["kl"] == pytest.approx(0, abs=1e-6) and last["kl"] > 1e-6
    assert 0 < first["entropy"] <= math.log(128)
    assert first["reward"] == 0.5
    assert first["logprob_gap_max"] < 1e-4
    assert {m["staleness"] > 0 for m in metrics(file)} == {True, False}
    assert "figures/clipped" in first
    assert result["staleness"] == {"0": 12, "2": 4}
    assert result["logprob_gap_max"] < 1e-4


@pytest.mark.parametrize("changed", [{"pack_tokens": 30}, {"gradient_checkpointing": True}])
def test_neither_the_size_of_packs_nor_checkpointing_changes_the_result(
    make: Make, rows: list[dict], changed: dict[str, Any]
) -> None:
    plain, other = make("plain", rows), make("other", rows, **changed)

    run(read_job(plain))
    run(read_job(other))

    for mine, theirs in zip(metrics(plain), metrics(other), strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], abs=1e-5)
        assert mine["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-4)


def test_full_weights_leave_a_model_and_lower_the_loss(make: Make, rows: list[dict]) -> None:
    file = make("job", rows, algorithm="sft", weights="full", epochs=4)

    result = run(read_job(file))

    assert metrics(file)[-1]["loss"] < metrics(file)[0]["loss"]
    assert result["digest"] == model_digest(Path(result["model"]))
    assert AutoModelForCausalLM.from_pretrained(result["model"]).config.vocab_size == 128


def test_training_goes_on_from_an_adapter(make: Make, rows: list[dict]) -> None:
    first = run(read_job(make("first", rows, algorithm="sft")))
    file = make("second", rows, algorithm="dpo", initial_adapter=first["adapter"], logprob_check="off")

    run(read_job(file))

    # the reference is the base, which the adapter has left already
    assert metrics(file)[0]["kl"] > 1e-4


@pytest.mark.parametrize("other", [{"num_hidden_layers": 3}, {"num_hidden_layers": 1}, {"hidden_size": 64}])
def test_training_goes_on_from_no_adapter_of_another_base(
    make: Make, rows: list[dict], tiny_model: Path, tmp_path: Path, other: dict[str, int]
) -> None:
    config = AutoConfig.from_pretrained(tiny_model, **other)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "other")
    theirs = run(read_job(make("t", rows, algorithm="sft", base=str(tmp_path / "other"), logprob_check="off")))

    with pytest.raises(JobError, match="of another base"):
        run(read_job(make("ours", rows, algorithm="sft", initial_adapter=theirs["adapter"])))


def test_training_stops_before_its_weights_are_no_numbers(make: Make, rows: list[dict]) -> None:
    rows[3]["weight"] = 1e308
    file = make("job", rows, algorithm="sft")

    with pytest.raises(JobError, match="weights that are no numbers"):
        run(read_job(file))
    assert not (file.parent / "out/adapter").exists()


def test_a_process_reward_model_keeps_its_head_beside_the_adapter(make: Make, rows: list[dict]) -> None:
    result = run(read_job(make("job", rows, algorithm="prm")))

    assert load_file(Path(result["adapter"]) / "reward_head.safetensors")["weight"].shape == (1, 32)


def test_rows_of_other_weights_stop_training_before_the_first_step(make: Make, rows: list[dict]) -> None:
    for row in rows:
        row["logprobs"] = [x - 1.0 + (i % 2) for i, x in enumerate(row["logprobs"])]
    file = make("job", rows)

    with pytest.raises(JobError, match=r"server and trainer disagree about 16 of 16 rows.*Likely cause: other weights"):
        run(read_job(file))
    assert not (file.parent / "out/metrics.jsonl").exists()


def test_rows_with_other_ids_than_sampled_are_told_from_those_that_agree(make: Make, rows: list[dict]) -> None:
    for row in rows[:4]:
        row["completion_token_ids"] = [row["completion_token_ids"][0], *([99] * (len(row["logprobs"]) - 1))]
    file = make("job", rows)

    with pytest.raises(JobError, match=r"Likely cause: other ids. 12 rows agree and 4 do not"):
        run(read_job(file))


def test_forced_tokens_are_not_compared(make: Make, rows: list[dict]) -> None:
    for row in rows:
        row["logprobs"][0] = 0.0
        row["forced"] = [[0, 1]]

    assert run(read_job(make("job", rows)))["logprob_gap_max"] < 1e-4


def test_stale_rows_are_dropped_by_age(make: Make, rows: list[dict]) -> None:
    for row in rows[:8]:
        row["policy_versions"][0]["version"] = 0

    result = run(read_job(make("job", rows, max_staleness=2)))

    assert (result["examples"], result["dropped"]) == (8, {"stale: more than 2 versions old": 8})


def test_suspected_reward_hacking_refuses_the_job_unless_told_otherwise(make: Make, rows: list[dict]) -> None:
    history = [{"reward": i / 10, "outcome": 0.5} for i in range(6)]

    with pytest.raises(JobError, match=r"reward hacking suspected: over 6 rounds the reward rose from 0 to 0.5"):
        run(read_job(make("job", rows, history=history)))
    result = run(read_job(make("told", rows, history=history, stop_on_reward_hacking=False)))
    assert result["reward_watch"]["verdict"] == "suspected"


@pytest.fixture
def speaking_model(tmp_path: Path, tiny_model: Path) -> Path:
    """The tiny model with a tokenizer (a token a letter, one for each pair of equal letters) and a chat template."""
    from tokenizers import Tokenizer, decoders, models

    letters = [chr(ord("a") + i) for i in range(26)]
    vocabulary = {token: i for i, token in enumerate(["<", ">", "|", *letters, *(2 * x for x in letters)])}
    tokenizer = Tokenizer(models.BPE(vocabulary, [(x, x) for x in letters]))
    tokenizer.decoder = decoders.Fuse()
    folder = tmp_path / "speaking"
    shutil.copytree(tiny_model, folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(
        "{% for m in messages %}<{{ m.content }}>{% endfor %}{% if add_generation_prompt %}|{% endif %}"
    )
    return folder


def spoken(folder: Path, served: str, written: str) -> list[dict[str, Any]]:
    """Rows whose log-probabilities the server captured for the prompt `served`, and whose ids say `written`; both are
    space-separated tokens."""
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    prompts = [[vocabulary[token] for token in text.split()] for text in (served, written)]
    rows = []
    for i in range(12):
        answer = [40 + i, 50, 2]
        with torch.no_grad():
            table = torch.log_softmax(model(input_ids=torch.tensor([prompts[0] + answer])).logits[0], -1)
        logprobs = [float(table[len(prompts[0]) - 1 + t, token]) for t, token in enumerate(answer)]
        rows.append({"prompt_token_ids": prompts[1], "completion_token_ids": answer, "logprobs": logprobs})
    return rows


@pytest.mark.parametrize(
    ("written", "cause"),
    [
        ("< a b b c > |", "tokenizer. 100% of the prompts are not the ids"),
        ("< a bb c >", "chat template. 100% of the prompts do not end as this model's template begins an answer"),
    ],
)
def test_a_tokenizer_or_template_mismatch_stops_training_and_is_named(
    make: Make, speaking_model: Path, written: str, cause: str
) -> None:
    rows = spoken(speaking_model, served="< a bb c > |", written=written)
    told = {"algorithm": "sft", "base": str(speaking_model), "logprob_tolerance": 1e-4}

    with pytest.raises(JobError, match=f"Likely cause: {cause}"):
        run(read_job(make("job", rows, **told)))
    agreeing = spoken(speaking_model, served="< a bb c > |", written="< a bb c > |")
    assert run(read_job(make("agreeing", agreeing, **told)))["logprob_gap_max"] < 1e-4
