"""Replay's throughput beside `vllm bench serve`, on the same requests, against the same server, in turn."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from evaluators.replay.branch import Branch
from evaluators.replay.engine import Engine, replay_all
from evaluators.replay.recording import Recording
from evoplane.settings import Settings
from flows.answering import Answerer
from registry.manifest import Manifest, Policy

Say = Callable[[str], None]
_SUBJECTS = ("parcel", "invoice", "refund", "warranty", "delivery slot", "gift card", "password", "opening hours")
_ASKED = (
    "Where is my {0} number {1}? I have been waiting for {2} days now.",
    "Please tell me about the {0} with number {1}; a friend told me it takes {2} days.",
    "I need help with {0} {1}. It is the {2}th time that I ask, and nobody answered.",
)


class NotMeasured(Exception):
    """One of the two could not be measured; the message says why."""


def questions(n: int) -> list[str]:
    """Short questions of customers, no two alike."""
    return [_ASKED[i % 3].format(_SUBJECTS[i % len(_SUBJECTS)], f"A{1000 + 37 * i}", 2 + i % 29) for i in range(n)]


def share_of_vllm_bench(
    config: Settings, folder: Path, say: Say, *, requests: int, tokens: int, rounds: int
) -> dict[str, float]:
    """Output tokens a second of both, best round each, and their ratio.

    Every answer has exactly `tokens` tokens. A first pass that nobody times fills the prefix cache for both; who goes
    first changes from round to round.
    """
    asked = questions(requests)
    # ShareGPT's form is the one `vllm bench` reads without pandas, which vLLM itself does not need
    dataset = folder / "requests.json"
    said = [[{"from": "human", "value": q}, {"from": "gpt", "value": "(not used)"}] for q in asked]
    dataset.write_text(json.dumps([{"conversations": turns} for turns in said]))
    say("an untimed pass")
    _replay(config, asked, tokens)
    found: dict[str, list[float]] = {"replay": [], "bench": []}
    for number in range(rounds):
        for who in ("replay", "bench") if number % 2 == 0 else ("bench", "replay"):
            speed = (
                _replay(config, asked, tokens) if who == "replay" else _bench(config, folder, dataset, asked, tokens)
            )
            say(f"{who}: {speed:.1f} tokens/s")
            found[who].append(speed)
    replay, bench = max(found["replay"]), max(found["bench"])
    return {
        "share_of_vllm_bench": replay / bench,
        "replay_tokens_per_s": replay,
        "vllm_bench_tokens_per_s": bench,
        "replay_requests_per_s": replay / tokens,
    }


def _replay(config: Settings, asked: list[str], tokens: int) -> float:
    """Output tokens a second of the replay engine, from the first request to the last answer."""
    name = config.model.name
    params = {"max_tokens": tokens, "ignore_eos": True, "temperature": 0}
    recordings = [
        Recording(id=f"tr_{i}", messages=[{"role": "user", "content": q}, {"role": "assistant", "content": ""}],
                  params=params)
        for i, q in enumerate(asked)
    ]  # fmt: skip

    async def run() -> list[list[Branch]]:
        async with Answerer(config, Manifest(policy=Policy(base=name, served_name=name))) as answer:
            starts = [(recording, 1) for recording in recordings]
            return await replay_all(Engine(), starts, answer, side_by_side=answer.concurrency)

    started = time.perf_counter()
    made = asyncio.run(run())
    took = time.perf_counter() - started
    if any(b.end != "finished" for branches in made for b in branches):
        raise NotMeasured("the server did not answer every request of the replay")
    return len(asked) * tokens / took


def _bench(config: Settings, folder: Path, dataset: Path, asked: list[str], tokens: int) -> float:
    """The same of `vllm bench serve`, as it reports it."""
    result = folder / "bench.json"
    result.unlink(missing_ok=True)
    python = Path.cwd() / config.worker.vllm_python
    command = [
        str(python.with_name("vllm")), "bench", "serve",
        "--backend=openai-chat", "--endpoint=/v1/chat/completions", f"--base-url={config.vllm_url}",
        f"--model={config.model.name}", f"--tokenizer={config.model_dir.resolve()}", "--dataset-name=sharegpt",
        f"--dataset-path={dataset}", f"--sharegpt-output-len={tokens}", "--disable-shuffle",
        f"--num-prompts={len(asked)}", f"--max-concurrency={2 * config.worker.max_num_seqs}", "--ignore-eos",
        "--temperature=0", "--disable-tqdm", "--save-result", f"--result-dir={folder}", "--result-filename=bench.json",
    ]  # fmt: skip
    environment = _offline(config)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    if done.returncode != 0 or not result.exists():
        raise NotMeasured(f"vllm bench serve: {(done.stderr or done.stdout)[-1500:]}")
    found = json.loads(result.read_text())
    if found["completed"] != len(asked) or found["total_output_tokens"] != len(asked) * tokens:
        raise NotMeasured(f"vllm bench serve completed {found['completed']} of {len(asked)}, "
                          f"{found['total_output_tokens']} tokens")  # fmt: skip
    return float(found["output_throughput"])


def _offline(config: Settings) -> dict[str, str]:
    from services.worker.serving import vllm

    return {**vllm.environment(config), "PYTHONPATH": ""}
