"""The worker service on a real vLLM: what it serves is what was trained, and it stays so."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from services.worker.policies import policy_digest
from services.worker.serving.weights import weights_digest
from services.worker.training.examples import Example
from services.worker.training.job import read_job
from services.worker.training.run import run
from tests.worker.conftest import write_job

pytestmark = [pytest.mark.stack, pytest.mark.timeout(900)]

PORT, VLLM_PORT = 8551, 8552
BASE = "smollm2-135m"
ROOT = Path(__file__).parents[2]
TOOL = {
    "type": "function",
    "function": {
        "name": "track",
        "description": "Find an order.",
        "parameters": {"type": "object", "properties": {"order": {"type": "string"}}},
    },
}


class Worker:
    """`python -m services.worker` over a tiny random model, with its own var directory."""

    def __init__(self, var: Path) -> None:
        self.var = var
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{PORT}", timeout=60)
        self.vllm = httpx.Client(base_url=f"http://127.0.0.1:{VLLM_PORT}", timeout=60)
        environment = os.environ | {
            "EVOPLANE_PATHS__VAR": str(var),
            "EVOPLANE_PATHS__MODELS": str(var / "models"),
            "EVOPLANE_WORKER__PORT": str(PORT),
            "EVOPLANE_WORKER__VLLM_PORT": str(VLLM_PORT),
            "EVOPLANE_WORKER__THREADS": "1",
            "EVOPLANE_WORKER__FULL_WEIGHTS": "true",
            "EVOPLANE_WORKER__MAX_MODEL_LEN": "512",
            "EVOPLANE_WORKER__MAX_NUM_SEQS": "8",
        }
        with (var / "worker.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "services.worker"], cwd=ROOT, env=environment, stdout=log, stderr=log
            )

    def wait_until_up(self) -> dict[str, Any]:
        deadline = time.monotonic() + 600
        while time.monotonic() < deadline:
            assert self.process.poll() is None, (self.var / "worker.log").read_text()[-3000:]
            try:
                answer = self.http.get("/healthz")
            except httpx.HTTPError:
                answer = None
            if answer is not None and answer.status_code == 200:
                return answer.json()
            time.sleep(0.5)
        raise AssertionError((self.var / "logs" / "vllm.log").read_text()[-3000:])

    def chat(self, model: str) -> httpx.Response:
        body = {
            "model": model,
            "messages": [{"role": "user", "content": "Where is A1?"}],
            "tools": [TOOL],
            "max_tokens": 5,
            "temperature": 0,
        }
        return self.vllm.post("/v1/chat/completions", json=body)

    def in_flight(self, name: str) -> int:
        return int(self.vllm.post("/evoplane/gate", json={}).json()["in_flight"].get(name, 0))

    def served(self) -> list[str]:
        return [policy["name"] for policy in self.http.get("/v1/policies").json()["policies"]]


@pytest.fixture(scope="module")
def served_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A var directory whose model is tiny and random, with a byte-level tokenizer."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    var = tmp_path_factory.mktemp("var")
    directory = var / "models" / BASE
    letters = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    letters += ["<tool_call>", "</tool_call>"]
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(letters[:3])
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<|im_start|>", eos_token="<|im_end|>", pad_token="<|im_end|>"
    ).save_pretrained(directory)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(letters),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
    )
    LlamaForCausalLM(config).save_pretrained(directory)
    return var


@pytest.fixture(scope="module")
def policies(served_model: Path) -> dict[str, dict[str, Any]]:
    """Two adapters by our own trainer, with their probes."""
    examples = [
        Example(prompt_token_ids=[1, 70, 71, 72 + i], completion_token_ids=[90 + i % 3] * 4 + [2]) for i in range(12)
    ]
    base = served_model / "models" / BASE
    return {
        name: run(read_job(write_job(served_model / name, base, examples, seed=seed, learning_rate=0.02)))
        for name, seed in (("one", 1), ("two", 2))
    }


@pytest.fixture(scope="module")
def worker(served_model: Path, policies: dict[str, dict[str, Any]]) -> Iterator[Worker]:
    running = Worker(served_model)
    try:
        running.wait_until_up()
        yield running
    finally:
        running.process.terminate()
        running.process.wait(60)


@pytest.fixture
def body(policies: dict[str, dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    def build(name: str, probe_of: str | None = None) -> dict[str, Any]:
        trained = policies[name]
        return {
            "name": f"support-{name}",
            "path": trained["adapter"],
            "digest": trained["digest"],
            "probe": policies[probe_of or name]["probe"],
        }

    return build


def test_the_base_model_answers_chat_requests_that_carry_tools(worker: Worker) -> None:
    answer = worker.chat(BASE)

    assert answer.status_code == 200
    assert answer.json()["usage"]["completion_tokens"] > 0


def test_a_trained_policy_is_served_after_its_probe_agrees(worker: Worker, body: Callable[..., dict[str, Any]]) -> None:
    answer = worker.http.post("/v1/policies", json=body("one"))

    assert answer.status_code == 200, answer.text
    assert answer.json()["probe_difference"] < 1e-3
    assert worker.served() == ["support-one"]
    assert worker.chat("support-one").json()["model"] == "support-one"


def test_a_policy_is_probed_while_others_are_answered(worker: Worker, body: Callable[..., dict[str, Any]]) -> None:
    """vLLM 0.32 ended when a prompt was scored beside more than one running request, wherever the output layer could
    have an adapter."""
    long = {"model": "support-one", "prompt": "abc", "max_tokens": 300, "ignore_eos": True}
    with ThreadPoolExecutor(6) as pool:
        for _ in range(3):
            running = [pool.submit(worker.vllm.post, "/v1/completions", json=long) for _ in range(6)]
            while worker.in_flight("support-one") < 6:
                time.sleep(0.01)
            added = worker.http.post("/v1/policies", json=body("two"))
            assert added.status_code == 200, added.text
            assert not any(request.done() for request in running), "probed after they had ended"
            assert [request.result().status_code for request in running] == [200] * 6
            assert worker.http.delete("/v1/policies/support-two").status_code == 200


def test_an_adapter_of_what_is_not_served_is_refused(
    worker: Worker, body: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    folder = tmp_path / "adapter"
    shutil.copytree(body("two")["path"], folder)
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(config | {"target_modules": ["q_proj", "lm_head"]}))

    answer = worker.http.post(
        "/v1/policies", json=body("two") | {"path": str(folder), "digest": policy_digest(folder), "probe": None}
    )

    assert answer.status_code == 404 and "lm_head" in answer.text
    assert worker.served() == ["support-one"]


def test_adding_what_is_served_changes_nothing(worker: Worker, body: Callable[..., dict[str, Any]]) -> None:
    assert worker.http.post("/v1/policies", json=body("one")).status_code == 200
    assert worker.served() == ["support-one"]


def test_a_policy_that_disagrees_with_its_probe_is_refused_with_the_numbers_and_unloaded(
    worker: Worker, body: Callable[..., dict[str, Any]]
) -> None:
    answer = worker.http.post("/v1/policies", json=body("two", probe_of="one"))

    assert answer.status_code == 409
    assert answer.json()["error"]["max_difference"] > 1e-3
    assert worker.served() == ["support-one"]
    assert worker.chat("support-two").status_code == 404


@pytest.mark.parametrize(
    ("changes", "status", "said"),
    [
        ({"path": "/nowhere"}, 404, "is not an adapter"),
        ({"digest": "sha256:" + "0" * 64}, 409, "has digest"),
        ({"name": BASE}, 409, "base model"),
        ({"name": "a/b"}, 422, "name"),
        ({"probe": {"prompt_token_ids": [1], "completion_token_ids": [2], "logprobs": []}}, 422, "same length"),
    ],
)
def test_a_wrong_request_is_refused_and_says_why(
    worker: Worker,
    body: Callable[..., dict[str, Any]],
    changes: dict[str, Any],
    status: int,
    said: str,
) -> None:
    answer = worker.http.post("/v1/policies", json=body("two") | changes)

    assert answer.status_code == status
    assert said in answer.text


def test_other_weights_cannot_take_a_served_name(worker: Worker, body: Callable[..., dict[str, Any]]) -> None:
    answer = worker.http.post("/v1/policies", json=body("two") | {"name": "support-one"})

    assert answer.status_code == 409
    assert "already serves" in answer.text


def test_policies_come_back_when_vllm_dies(worker: Worker) -> None:
    before = worker.http.get("/healthz").json()["vllm"]
    os.kill(before["pid"], signal.SIGKILL)
    deadline = time.monotonic() + 10
    while worker.http.get("/healthz").status_code == 200 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert worker.http.get("/healthz").status_code == 503

    after = worker.wait_until_up()["vllm"]

    assert after["restarts"] == before["restarts"] + 1
    assert worker.served() == ["support-one"]
    assert worker.chat("support-one").status_code == 200


def test_a_deleted_policy_is_no_longer_served(worker: Worker) -> None:
    assert worker.http.delete("/v1/policies/support-one").status_code == 200
    assert worker.served() == []
    assert worker.chat("support-one").status_code == 404
    assert worker.http.delete("/v1/policies/support-one").status_code == 404


@pytest.fixture(scope="module")
def other_weights(served_model: Path) -> dict[str, Any]:
    """Weights of the same form with other numbers in them, and what they answer."""
    import torch
    from transformers import AutoModelForCausalLM

    directory = served_model / "other"
    model = AutoModelForCausalLM.from_pretrained(served_model / "models" / BASE, dtype=torch.float32)
    torch.manual_seed(7)
    with torch.no_grad():
        for weights in model.parameters():
            weights.add_(torch.randn_like(weights) * 0.05)
    model.save_pretrained(directory)
    prompt, completion = [1, 70, 71, 72], [90, 91, 92, 2]
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1]
    logprobs = torch.log_softmax(logits, -1)[torch.arange(4), torch.tensor(completion)].tolist()
    probe = {"prompt_token_ids": prompt, "completion_token_ids": completion, "logprobs": logprobs}
    return {"name": "w2", "path": str(directory), "digest": weights_digest(directory), "probe": probe}


def test_base_weights_that_answer_otherwise_than_trained_are_taken_back(
    worker: Worker, other_weights: dict[str, Any]
) -> None:
    before = worker.chat(BASE).json()["choices"][0]["message"]
    wrong = other_weights | {"probe": other_weights["probe"] | {"logprobs": [-0.1] * 4}}

    answer = worker.http.put("/v1/weights", json=wrong)

    assert answer.status_code == 409, answer.text
    assert answer.json()["error"]["max_difference"] > 1e-3
    after = worker.chat(BASE)
    assert after.json()["choices"][0]["message"] == before
    assert "x-evoplane-weights" not in after.headers


def test_base_weights_with_a_tensor_missing_are_refused_and_the_engine_lives(
    worker: Worker, other_weights: dict[str, Any], served_model: Path
) -> None:
    from safetensors.torch import load_file, save_file

    broken = Path(shutil.copytree(other_weights["path"], served_model / "broken"))
    tensors = load_file(broken / "model.safetensors")
    tensors.pop("model.norm.weight")
    save_file(tensors, broken / "model.safetensors")

    answer = worker.http.put("/v1/weights", json=other_weights | {"path": str(broken)})

    assert answer.status_code == 404
    assert "model.norm.weight" in answer.text
    assert worker.chat(BASE).status_code == 200


def test_base_weights_change_in_place_and_back_and_answers_say_which_gave_them(
    worker: Worker, other_weights: dict[str, Any]
) -> None:
    before = worker.chat(BASE).json()["choices"][0]["message"]

    changed = worker.http.put("/v1/weights", json=other_weights)

    assert changed.status_code == 200, changed.text
    assert changed.json()["probe_difference"] < 1e-3
    assert set(changed.json()["seconds"]) == {"asked", "holding", "reloading", "probing"}
    answer = worker.chat(BASE)
    assert answer.headers["x-evoplane-weights"] == "w2"
    assert answer.json()["choices"][0]["message"] != before
    assert worker.http.get("/v1/policies").json()["weights"] == "w2"

    assert worker.http.delete("/v1/weights").status_code == 200
    assert worker.chat(BASE).json()["choices"][0]["message"] == before


def test_no_vllm_process_outlives_a_killed_worker(worker: Worker) -> None:
    family = psutil.Process(worker.process.pid).children(recursive=True)
    assert family
    worker.process.kill()

    _, alive = psutil.wait_procs(family, timeout=30)

    assert alive == []
