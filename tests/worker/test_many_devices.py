"""Two processes under torchrun: data parallel and FSDP give one process's result."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from services.worker.training.examples import Example
from services.worker.training.job import read_job
from services.worker.training.run import run
from tests.worker.conftest import write_job

pytestmark = pytest.mark.stack

FSDP = {
    "ACCELERATE_USE_FSDP": "true",
    "FSDP_VERSION": "2",
    "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
    "FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT",
    "FSDP_CPU_RAM_EFFICIENT_LOADING": "false",
}


def torchrun(job_file: Path, **environment: str) -> dict:
    told = {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*command, "-m", "services.worker.training.run", "--job", str(job_file)],
        env=os.environ | told | environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((read_job(job_file).output / "result.json").read_bytes())


@pytest.mark.parametrize(
    ("weights", "environment"),
    [("lora", {}), ("full", FSDP), ("lora", FSDP)],
    ids=["lora ddp", "full fsdp", "lora fsdp"],
)
def test_two_processes_train_what_one_trains(
    tmp_path: Path, tiny_model: Path, examples: list[Example], weights: str, environment: dict[str, str]
) -> None:
    alone = run(read_job(write_job(tmp_path / "alone", tiny_model, examples, weights=weights, epochs=1)))

    together = torchrun(
        write_job(tmp_path / "together", tiny_model, examples, weights=weights, epochs=1), **environment
    )

    assert together["heldout_loss"] == pytest.approx(alone["heldout_loss"], abs=1e-4)
    kind, file = ("model", "model.safetensors") if weights == "full" else ("adapter", "adapter_model.safetensors")
    mine, theirs = (load_file(Path(r[kind]) / file) for r in (alone, together))
    assert mine.keys() == theirs.keys()
    assert all(torch.allclose(mine[name], theirs[name], atol=2e-3) for name in mine)
