"""One side of the comparison, in a process of its own: `python -m benchmarks.train.side evoplane|trl --model DIR`.

Reads a workload's name a line, trains on it for one step, prints a line of JSON: seconds, CPU seconds, loss, norm
of the gradient, and what memory the step took at its peak beyond what lay there before the first.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch: spinning waits cost ten times the computation

from benchmarks.train.workloads import GROWTH, GRPO, QUICK, SFT, Workload

RANK = 16
LEARNING_RATE = 1e-4
STEPS = 16
"""Of the schedule; fewer are taken."""

Step = Callable[[], tuple[float, float]]
"""Takes one optimiser step; returns the loss before it and the gradient's norm."""


def same_adapter(module: Any) -> None:
    """The same LoRA weights on both sides: A by its name, B zero as PEFT has it. Reads every weight once: files are
    mapped into memory, and what is first touched during a step would be taken for the step's own memory."""
    import torch

    assert all(bool(weight.isfinite().all()) for weight in module.parameters())
    for name, weight in module.named_parameters():
        if "lora_A" in name:
            seed = zlib.crc32(name[name.index("layers.") :].encode())
            weight.data.copy_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(seed)) * 0.02)


def evoplane(work: Workload, model: Path, threads: int) -> Step:
    """The training loop's own step."""
    import msgspec

    from services.worker.training.algorithms import algorithm
    from services.worker.training.examples import Example
    from services.worker.training.job import Job
    from services.worker.training.loop import Trainer

    folder = Path(tempfile.mkdtemp())
    (folder / "rows.jsonl").touch()
    job = Job(
        base=model,
        examples=folder / "rows.jsonl",
        output=folder,
        algorithm=work.algorithm,
        epochs=STEPS,
        batch_size=len(work.rows()),
        learning_rate=LEARNING_RATE,
        lora_rank=RANK,
        warmup_steps=4,
        logprob_check="off",
        threads=threads,
    )
    rows = [msgspec.convert(row, Example) for row in work.rows()]
    trainer = Trainer(job, algorithm(job.algorithm), rows, lambda _: None)
    same_adapter(trainer.policy)
    trainer.prepare()
    trainer.policy.train()
    steps = iter(range(STEPS))

    def step() -> tuple[float, float]:
        told = trainer.step(next(steps))
        return told["loss"], told["grad_norm"]

    return step


def _no_reward(completions: list[Any], **_: Any) -> list[float | None]:
    """TRL wants one; these rows bring their rewards."""
    return [0.0] * len(completions)


def trl(work: Workload, model: Path, threads: int) -> Step:
    """TRL's GRPO or SFT trainer: its loss, backward pass and optimiser, on rows it did not have to sample."""
    import torch
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

    from benchmarks.train import references
    from benchmarks.train.trl_losses import rollout_inputs
    from services.worker.policies import LORA_TARGETS

    torch.set_num_threads(threads)
    rows = work.rows()
    told: dict[str, Any] = {
        "output_dir": tempfile.mkdtemp(),
        "per_device_train_batch_size": len(rows),
        "learning_rate": LEARNING_RATE,
        "weight_decay": 0.0,
        "bf16": False,
        "use_cpu": True,
        "gradient_checkpointing": False,
        "report_to": [],
        "max_steps": STEPS,
    }
    lora = LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules=list(LORA_TARGETS), task_type="CAUSAL_LM")
    net = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, local_files_only=True)
    tokenizer = AutoTokenizer.from_pretrained(model, local_files_only=True)
    inputs: dict[str, Any]
    trainer: Any
    if work.algorithm == "grpo":
        trainer = GRPOTrainer(
            model=net,
            reward_funcs=_no_reward,
            args=GRPOConfig(
                **told, num_generations=work.group_size, max_completion_length=work.longest, beta=0.0, loss_type="grpo"
            ),
            train_dataset=Dataset.from_list([{"prompt": "x"}] * len(rows)),
            processing_class=tokenizer,
            peft_config=lora,
        )
        inputs = rollout_inputs(rows, references.group_advantages(rows, "standardised"))
        inputs["num_items_in_batch"] = inputs["completion_mask"].sum()
        trainer._prepare_inputs = lambda given: given
        trainer.current_gradient_accumulation_steps = 1
    else:
        data = [
            {
                "input_ids": row["prompt_token_ids"] + row["completion_token_ids"],
                "completion_mask": [0] * len(row["prompt_token_ids"]) + [1] * len(row["completion_token_ids"]),
            }
            for row in rows
        ]
        trainer = SFTTrainer(
            model=net,
            args=SFTConfig(**told, max_length=None, completion_only_loss=True),
            train_dataset=Dataset.from_list(data),
            processing_class=tokenizer,
            peft_config=lora,
        )
        inputs = trainer.data_collator([trainer.train_dataset[i] for i in range(len(rows))])
    same_adapter(trainer.model)
    trainer.create_optimizer()
    trainer.model.train()
    number = iter(range(STEPS))

    def step() -> tuple[float, float]:
        from services.worker.training.loop import learning_rate_share

        rate = LEARNING_RATE * learning_rate_share(next(number), STEPS, warmup=4)
        for group in trainer.optimizer.param_groups:
            group["lr"] = rate
        counted = inputs["num_items_in_batch"] if work.algorithm == "grpo" else (inputs["labels"] != -100).sum()
        loss = trainer.training_step(trainer.model, dict(inputs), counted)
        norm = trainer.accelerator.clip_grad_norm_(trainer.model.parameters(), 1.0)
        trainer.optimizer.step()
        trainer.optimizer.zero_grad()
        return float(loss), float(norm)

    return step


def resident(what: str) -> int:
    """Bytes: `VmRSS` now, or `VmHWM`, its highest since `forget_peak`."""
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith(what))
    return int(line.split()[1]) * 1024


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("side", choices=["evoplane", "trl"])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the libraries print is no answer
    known = {work.name: work for work in [GRPO, SFT, *QUICK, *GROWTH]}
    make = {"evoplane": evoplane, "trl": trl}[options.side]
    steps: dict[str, Step] = {}
    before: dict[str, int] = {}
    for line in sys.stdin:
        name = line.strip()
        if name not in steps:
            steps.clear()
            steps[name] = make(known[name], options.model, options.threads)
            before[name] = resident("VmRSS")
            told: dict[str, Any] = {"ready": True}
        else:
            forget_peak()
            wall, cpu = time.perf_counter(), time.process_time()
            loss, norm = steps[name]()
            told = {
                "seconds": time.perf_counter() - wall,
                "cpu_seconds": time.process_time() - cpu,
                "loss": loss,
                "grad_norm": norm,
                "peak_bytes": resident("VmHWM") - before[name],
            }
        print(json.dumps(told), file=answers, flush=True)


if __name__ == "__main__":
    main()
