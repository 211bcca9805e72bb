"""The same frameworks before a real vLLM: the same words as without the gateway, and token ids in the trajectory."""

from __future__ import annotations

import subprocess
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from atdp.messages import loads_or_none
from evoplane.settings import read_settings, settings
from services.worker.serving import vllm
from tests.contract.audit import Stored
from tests.contract.conftest import ROOT, Served, free_port, python, run_client, start

pytestmark = [pytest.mark.stack, pytest.mark.timeout(900)]

_START_S = 600
_TENANT = "vllm"
_CHAT = ("chat", "chat_stream", "langchain", "pydantic_ai", "agents_chat")
_OTHERS = ("responses", "agents_responses", "anthropic", "anthropic_stream")


@dataclass
class Answers:
    """What the client got, and what was stored."""

    direct: dict[str, Any]
    through: dict[str, Any]
    stored: Stored

    def call(self, name: str) -> dict[str, Any]:
        """The first call of a scenario's conversation."""
        return next(call for call in self.stored.calls() if self.stored.conversation(call) == name)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A gateway before vLLM with the base model, as the stack serves it."""
    here = settings()
    interpreter = ROOT / here.worker.vllm_python
    models = ROOT / here.paths.models
    if not interpreter.exists() or not (models / here.model.name).is_dir():
        pytest.skip("needs the vLLM environment and the base model: `make env model` makes them")
    folder = tmp_path_factory.mktemp("vllm")
    file = folder / "evoplane.toml"
    lines = [
        "[paths]", f'var = "{folder}"', f'models = "{models}"',
        "[gateway]", f"port = {free_port()}",
        "[worker]", f"vllm_port = {free_port()}", f'vllm_python = "{interpreter}"', "max_num_seqs = 2",
    ]  # fmt: skip
    file.write_text("\n".join(lines) + "\n")
    configured = read_settings(file, {})
    with (folder / "vllm.log").open("wb") as log:
        process = subprocess.Popen(
            vllm.command(configured), env=vllm.environment(configured), stdout=log, stderr=log, cwd=folder
        )
        try:
            _wait_for(f"{configured.vllm_url}/health", process, folder / "vllm.log")
            yield from start(file, configured.model.name)
        finally:
            process.terminate()
            process.wait(60)


def _wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + _START_S
    while time.monotonic() < until:
        assert process.poll() is None, log.read_text()[-3000:]
        try:
            with urllib.request.urlopen(url, timeout=1):
                return
        except OSError:
            time.sleep(0.5)
    raise AssertionError(log.read_text()[-3000:])


@pytest.fixture(scope="module")
def answers(gateway: Served, tmp_path_factory: pytest.TempPathFactory) -> Answers:
    interpreter, folder, key = python(".venv-clients"), tmp_path_factory.mktemp("clients"), gateway.key(_TENANT)
    direct, through = (
        run_client(interpreter, "served_model.py", url, key, folder / name, CONTRACT_MODEL=gateway.settings.model.name)
        for name, url in (("direct", gateway.settings.vllm_url), ("through", gateway.url))
    )
    return Answers(direct, through, Stored.read(gateway.reader, _TENANT))


@pytest.mark.parametrize("name", [*_CHAT, *_OTHERS])
def test_the_model_says_the_same_through_the_gateway(answers: Answers, name: str) -> None:
    assert "raised" not in answers.direct[name]
    assert answers.through[name] == answers.direct[name]


@pytest.mark.parametrize("name", _CHAT)
def test_a_chats_tokens_are_stored_as_generated(answers: Answers, name: str) -> None:
    call = answers.call(name)
    usage, tokens = call["m"]["usage"], call["tokens"]
    assert len(tokens["prompt_token_ids"]) == usage["input_tokens"]
    assert len(tokens["completion_token_ids"]) == len(tokens["logprobs"]) == usage["output_tokens"]
    assert all(logprob <= 0 for logprob in tokens["logprobs"])
    assert "tokens_incomplete" not in call["ext"]


@pytest.mark.parametrize("name", [*_CHAT, *_OTHERS])
def test_every_answer_is_stored_with_its_words_usage_and_id(answers: Answers, name: str) -> None:
    call = answers.call(name)
    assert call["y"]["status"] == "ok"
    assert call["m"]["usage"]["output_tokens"] > 0
    assert call["ext"]["response"]["id"]
    got = list(_leaves(answers.through[name]))
    for part in call["a"]["messages"][0]["parts"]:
        if part["type"] == "text":
            assert part["content"] in "".join(leaf for leaf in got if isinstance(leaf, str))
        else:
            assert part["name"] in got
            read = [loads_or_none(leaf) for leaf in got if isinstance(leaf, str)]
            assert part["arguments"] in [*got, *read]


def _leaves(value: Any) -> Iterator[Any]:
    """The texts in what a client got, and the objects."""
    if isinstance(value, dict):
        yield value
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _leaves(item)
    if isinstance(value, str):
        yield value


def test_a_required_call_its_result_and_the_answer_are_one_trajectory(answers: Answers) -> None:
    id = answers.call("chat")["trajectory_id"]
    kinds = [record["kind"] for record in answers.stored.trajectories[id] if record["record"] == "event"]
    calls = len(answers.through["chat"][0][0]["calls"])
    assert kinds == ["user_message", "llm_call", *["tool_call"] * calls, "llm_call"]
    second = answers.stored.trajectories[id][-1]
    assert second["tokens"]["completion_token_ids"]
