"""`python -m benchmarks.gpu`: training and serving a 1B-class model with random weights, beside what the chip could do.

    python -m benchmarks.gpu                     on a machine with a CUDA GPU and the `gpu` extra installed
    python -m benchmarks.gpu --device cpu --tiny a smoke test of the script itself

Without a GPU it says so and exits 0. Random weights cost what real ones cost, and need no download.

The roofline of training is compute: 6 × parameters floating-point operations a token (Kaplan et al., 2020; 4 ×
when the base is frozen, since its weights' gradients are not computed) over the dense matrix rate measured here
by one large product in the same precision. The roofline of serving one stream is memory: every weight is read for
every token, over the copy bandwidth measured here; of a batch, the same reads shared by all streams.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

_LARGE: dict[str, Any] = {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
}
_TINY: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
_STEPS = 5
_STREAMS = 64
_ANSWER = 256


def build(folder: Path, *, tiny: bool) -> int:
    """Save a random Llama (1.1B parameters: Llama 3.2's shape with a vocabulary of 49,152); returns its parameters."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=512 if tiny else 49_152,
        num_key_value_heads=2 if tiny else 8,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        **(_TINY if tiny else _LARGE),
    )
    model = LlamaForCausalLM(config)
    model.save_pretrained(folder)
    return sum(weight.numel() for weight in model.parameters())


def timed(device: str, work: Callable[[], Any], times: int) -> float:
    """Seconds each, after one warm-up."""
    work()
    _wait(device)
    started = time.perf_counter()
    for _ in range(times):
        work()
    _wait(device)
    return (time.perf_counter() - started) / times


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def matrix_rate(device: str, kind: torch.dtype, side: int) -> float:
    """Floating-point operations a second of a dense product."""
    a = torch.randn(side, side, device=device, dtype=kind)
    return float(2 * side**3 / timed(device, lambda: a @ a, 10))


def bandwidth(device: str, mib: int) -> float:
    """Bytes a second read, by copying (each byte is read and written)."""
    a = torch.empty(mib * 2**20, dtype=torch.uint8, device=device)
    b = torch.empty_like(a)
    return 2 * a.numel() / timed(device, lambda: b.copy_(a), 10)


def train(folder: Path, *, tiny: bool, device: str, parameters: int) -> dict[str, float]:
    """The training loop's own step on GRPO-shaped rows, LoRA, fp32 (TF32 products where the chip has them)."""
    import msgspec

    from services.worker.training.algorithms import algorithm
    from services.worker.training.examples import Example
    from services.worker.training.job import Job
    from services.worker.training.loop import Trainer

    torch.set_float32_matmul_precision("high")
    draw = random.Random(0)
    groups, members, prompt, longest = (2, 2, 16, 8) if tiny else (8, 8, 512, 256)
    rows: list[dict[str, Any]] = []
    for group in range(groups):
        ids = [draw.randrange(3, 500) for _ in range(prompt)]
        for member in range(members):
            answer = [draw.randrange(3, 500) for _ in range(draw.randint(longest // 4, longest))]
            rows.append(
                {
                    "prompt_token_ids": ids,
                    "completion_token_ids": answer,
                    "reward": float(member % 2),
                    "group": str(group),
                }
            )
    (folder / "rows.jsonl").touch()
    job = Job(
        base=folder,
        examples=folder / "rows.jsonl",
        output=folder / "out",
        algorithm="grpo",
        epochs=_STEPS + 1,
        batch_size=len(rows),
        pack_tokens=16_384,
    )
    trainer = Trainer(job, algorithm("grpo"), [msgspec.convert(r, Example) for r in rows], lambda _: None)
    trainer.prepare()
    trainer.policy.train()
    computed = trainer.step(0)["computed_tokens"]
    _wait(device)
    started = time.perf_counter()
    for step in range(1, _STEPS + 1):
        trainer.step(step)
    _wait(device)
    seconds = (time.perf_counter() - started) / _STEPS
    whole = sum(len(r["prompt_token_ids"]) + len(r["completion_token_ids"]) for r in rows)
    rate = matrix_rate(device, torch.float32, 256 if tiny else 8192)
    roofline = rate / (4 * parameters)
    return {
        "train_tokens_per_s": computed / seconds,
        "train_rows_tokens_per_s": whole / seconds,
        "train_roofline_tokens_per_s": roofline,
        "train_share_of_roofline": computed / seconds / roofline,
    }


def serve(folder: Path, *, device: str, parameters: int) -> dict[str, float] | None:
    """vLLM, bf16, ids in and ids out; None where it is not installed."""
    try:
        from vllm import LLM, SamplingParams
    except ImportError:
        return None
    engine = LLM(str(folder), skip_tokenizer_init=True, dtype="bfloat16", max_model_len=2048)
    sampling = SamplingParams(max_tokens=_ANSWER, min_tokens=_ANSWER, detokenize=False, ignore_eos=True)
    draw = random.Random(1)
    weights = 2 * parameters
    read = bandwidth(device, 2048)
    found: dict[str, float] = {}
    for streams in (1, _STREAMS):
        prompts = [{"prompt_token_ids": [draw.randrange(3, 500) for _ in range(128)]} for _ in range(streams)]
        engine.generate(prompts, sampling, use_tqdm=False)
        started = time.perf_counter()
        engine.generate(prompts, sampling, use_tqdm=False)
        rate = streams * _ANSWER / (time.perf_counter() - started)
        found[f"serve_tokens_per_s_c{streams}"] = rate
        found[f"serve_share_of_roofline_c{streams}"] = rate / (streams * read / weights)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a model of a second: tries the script, measures nothing")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        print("no CUDA GPU on this machine: nothing measured (--device cpu --tiny tries the script)", file=sys.stderr)
        return 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        parameters = build(folder, tiny=options.tiny)
        chip = torch.cuda.get_device_name() if options.device == "cuda" else "cpu"
        found: dict[str, Any] = {"device": chip, "parameters": parameters}
        found |= train(folder, tiny=options.tiny, device=options.device, parameters=parameters)
        if options.device == "cuda":
            torch.cuda.empty_cache()
            served = serve(folder, device=options.device, parameters=parameters)
            found |= (
                served
                if served is not None
                else {"serve": "vLLM is not installed in this environment (pip install evoplane[gpu])"}
            )
    print(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
