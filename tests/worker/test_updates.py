"""Weight updates without an engine: the states, the gate, and what is judged before anything is touched."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from services.worker.serving.inside.evoplane_gate import PASS, Gate
from services.worker.serving.updates import TRANSITIONS, IllegalTransition, Update
from services.worker.serving.weights import WeightsError, validate, weights_digest


def test_an_update_goes_only_where_the_table_lets_it() -> None:
    update = Update("adapter", "v1", "sha256:0")
    for state in ("loading", "probing", "served", "draining", "gone"):
        update.to(state)
    with pytest.raises(IllegalTransition, match="gone → served"):
        update.to("served")
    assert set(update.seconds) == {"asked", "loading", "probing", "served", "draining"}


def test_every_state_is_in_the_table_and_only_the_last_two_end_there() -> None:
    assert {state for state, after in TRANSITIONS.items() if not after} == {"gone", "refused"}
    assert all(after <= TRANSITIONS.keys() for after in TRANSITIONS.values())


class Engine:
    """An ASGI application that answers when it is let, and counts whom it has seen."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.go = asyncio.Event()
        self.go.set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.seen.append(json.loads((await receive())["body"])["model"])
        await self.go.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})


async def ask(
    gate: Gate, body: Any, path: str = "/v1/chat/completions", headers: Any = (), method: str = "POST"
) -> dict[str, Any]:
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    await gate({"type": "http", "method": method, "path": path, "headers": list(headers)}, receive, send)
    return {"status": sent[0]["status"], "headers": dict(sent[0]["headers"]), "body": json.loads(sent[-1]["body"])}


async def test_the_gate_counts_requests_in_flight_by_model_name() -> None:
    engine = Engine()
    gate = Gate(engine)
    engine.go.clear()
    running = [asyncio.create_task(ask(gate, {"model": name})) for name in ("v1", "v1", "v2")]
    await asyncio.sleep(0)
    assert (await ask(gate, {}, "/evoplane/gate", method="GET"))["body"]["in_flight"] == {"v1": 2, "v2": 1}
    engine.go.set()
    await asyncio.gather(*running)
    assert (await ask(gate, {}, "/evoplane/gate", method="GET"))["body"]["in_flight"] == {}


async def test_while_weights_change_users_wait_the_probe_passes_and_the_answer_says_which_weights_gave_it() -> None:
    engine = Engine()
    gate = Gate(engine)
    await ask(gate, {"hold": True}, "/evoplane/gate")
    waiting = asyncio.create_task(ask(gate, {"model": "user"}))
    await asyncio.sleep(0.01)
    await ask(gate, {"model": "probe"}, headers=[(PASS, b"1")])
    assert engine.seen == ["probe"]
    await ask(gate, {"hold": False, "weights": "w2"}, "/evoplane/gate")
    answer = await waiting
    assert engine.seen == ["probe", "user"]
    assert answer["headers"][b"x-evoplane-weights"] == b"w2"


async def test_a_request_that_is_held_too_long_is_refused_and_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.worker.serving.inside.evoplane_gate.LONGEST_HOLD_S", 0.01)
    gate = Gate(Engine())
    await ask(gate, {"hold": True}, "/evoplane/gate")
    assert (await ask(gate, {"model": "user"}))["status"] == 503
    assert (await ask(gate, {}, "/evoplane/gate", method="GET"))["body"]["held"] == 0


@pytest.fixture
def other(untied_model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(untied_model, tmp_path / "other"))


def test_whole_weights_of_the_same_form_pass(untied_model: Path, other: Path) -> None:
    validate(other, untied_model)
    assert weights_digest(other) == weights_digest(untied_model)


def test_a_cut_off_file_is_refused_before_the_engine_is_touched(untied_model: Path, other: Path) -> None:
    file = other / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(WeightsError, match="bytes long"):
        validate(other, untied_model)


def test_a_missing_tensor_is_refused_before_the_engine_is_touched(untied_model: Path, other: Path) -> None:
    from safetensors.torch import load_file, save_file

    file = other / "model.safetensors"
    tensors = load_file(file)
    tensors.pop("model.norm.weight")
    save_file(tensors, file)
    with pytest.raises(WeightsError, match=r"1 tensors are missing, model\.norm\.weight"):
        validate(other, untied_model)


@pytest.mark.parametrize("file", ["config.json", "model.safetensors"])
def test_a_directory_without_a_model_is_refused(untied_model: Path, other: Path, file: str) -> None:
    (other / file).unlink()
    with pytest.raises(WeightsError, match="holds no model"):
        validate(other, untied_model)


def test_another_architecture_is_refused(untied_model: Path, other: Path) -> None:
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    with pytest.raises(WeightsError, match="num_hidden_layers is 3"):
        validate(other, untied_model)


def test_tied_embeddings_are_refused_before_the_engine_is_touched(tiny_model: Path) -> None:
    with pytest.raises(WeightsError, match="ties its embeddings"):
        validate(tiny_model, tiny_model)
