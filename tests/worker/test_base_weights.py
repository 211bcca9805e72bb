"""Changing the base weights in place: what goes wrong changes nothing, and says so."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from services.worker.serving.base_weights import BaseWeights, Kept
from services.worker.serving.policies import Policies, Policy, PolicyConflict, Probe, ProbeMismatch
from services.worker.serving.updates import Updates
from services.worker.serving.vllm import VllmError
from services.worker.serving.weights import WeightsError, weights_digest
from tests.worker.engine import FakeEngine

PROBE = Probe([1], [2, 3], [-0.7, -0.7])


@pytest.fixture
def base(untied_model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(untied_model, tmp_path / "base"))


@pytest.fixture
def wanted(base: Path, tmp_path: Path) -> Kept:
    path = Path(shutil.copytree(base, tmp_path / "next"))
    return Kept("w2", str(path), weights_digest(path))


@pytest.fixture
def engine(base: Path) -> FakeEngine:
    return FakeEngine(base, {"base": -0.1, "next": -0.7})


class Worker:
    def __init__(self, folder: Path, base: Path) -> None:
        self.updates = Updates()
        self.policies = Policies(folder / "policies.json", 1e-3, self.updates)
        self.weights = BaseWeights(folder / "weights.json", base, "model", 1e-3, self.updates)


@pytest.fixture
def worker(tmp_path: Path, base: Path) -> Worker:
    return Worker(tmp_path / "worker", base)


async def test_users_wait_while_weights_change_and_are_let_in_after_the_probe(
    worker: Worker, engine: FakeEngine, wanted: Kept
) -> None:
    engine.running = [2, 1, 0]
    update = await worker.weights.change(engine, worker.policies, wanted, PROBE, drain_s=5)  # type: ignore[arg-type]
    assert engine.log == ["reload next", "score model", "release w2"]
    assert (update.state, update.probe_difference, worker.weights.name) == ("served", 0.0, "w2")
    assert set(update.seconds) == {"asked", "holding", "reloading", "probing"}


async def test_weights_that_answer_otherwise_than_trained_are_taken_back(
    worker: Worker, engine: FakeEngine, wanted: Kept
) -> None:
    engine.logprob["next"] = -2.0
    with pytest.raises(ProbeMismatch, match=r"differ by up to 1\.3 nats"):
        await worker.weights.change(engine, worker.policies, wanted, PROBE, drain_s=1)  # type: ignore[arg-type]
    assert (engine.loaded.name, engine.stamp, worker.weights.name) == ("base", "", "")
    assert worker.updates.listed()[-1].state == "refused"
    assert "1.3 nats" in (worker.updates.listed()[-1].problem or "")


async def test_a_reload_that_fails_leaves_no_engine_with_layers_missing(
    worker: Worker, engine: FakeEngine, wanted: Kept
) -> None:
    engine.broken_reload = True
    with pytest.raises(VllmError):
        await worker.weights.change(engine, worker.policies, wanted, PROBE, drain_s=1)  # type: ignore[arg-type]
    assert engine.log == ["reload base", "score model", "release "]


@pytest.mark.parametrize("wrong", ["digest", "directory"])
async def test_a_wrong_directory_is_refused_before_anybody_waits(
    worker: Worker, engine: FakeEngine, wanted: Kept, wrong: str
) -> None:
    other = Kept("w2", wanted.path if wrong == "digest" else "/nowhere", "sha256:" + "0" * 64)
    with pytest.raises(WeightsError):
        await worker.weights.change(engine, worker.policies, other, PROBE, drain_s=1)  # type: ignore[arg-type]
    assert engine.log == []


async def test_requests_that_do_not_end_stop_the_update_and_not_the_users(
    worker: Worker, engine: FakeEngine, wanted: Kept
) -> None:
    engine.running = [1] * 100
    with pytest.raises(VllmError, match="1 requests were still being answered"):
        await worker.weights.change(engine, worker.policies, wanted, PROBE, drain_s=0.1)  # type: ignore[arg-type]
    assert engine.log == ["release "]
    assert not engine.holding


async def test_adapters_of_the_present_base_stand_in_the_way(
    worker: Worker, engine: FakeEngine, wanted: Kept, tmp_path: Path
) -> None:
    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / "adapter_config.json").write_text("{}")
    (folder / "adapter_model.safetensors").write_bytes(b"x")
    from services.worker.policies import policy_digest

    await worker.policies.add(engine, Policy("v1", str(folder), policy_digest(folder)))  # type: ignore[arg-type]
    with pytest.raises(PolicyConflict, match="take them out first: v1"):
        await worker.weights.change(engine, worker.policies, wanted, PROBE, drain_s=1)  # type: ignore[arg-type]
    assert engine.loaded.name == "base"


async def test_after_a_restart_the_weights_in_force_are_known(
    worker: Worker, engine: FakeEngine, wanted: Kept, tmp_path: Path, base: Path
) -> None:
    await worker.weights.change(engine, worker.policies, wanted, PROBE, drain_s=1)  # type: ignore[arg-type]
    again = Worker(tmp_path / "worker", base).weights
    assert (again.name, again.directory) == ("w2", Path(wanted.path))
    await again.change(engine, worker.policies, None, None, drain_s=1)  # type: ignore[arg-type]
    assert Worker(tmp_path / "worker", base).weights.directory is None


async def test_an_adapter_is_unloaded_when_nobody_uses_it_any_more(
    worker: Worker, engine: FakeEngine, tmp_path: Path
) -> None:
    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / "adapter_config.json").write_text("{}")
    (folder / "adapter_model.safetensors").write_bytes(b"x")
    from services.worker.policies import policy_digest

    engine.logprob["adapter"] = -0.7
    await worker.policies.add(engine, Policy("v1", str(folder), policy_digest(folder), PROBE))  # type: ignore[arg-type]
    engine.running = [2, 1]
    gone = await worker.policies.remove(engine, "v1", drain_s=5)  # type: ignore[arg-type]
    assert gone is not None and gone["left_in_flight"] == 0
    assert engine.log == ["load v1", "score v1", "unload v1"]
    assert worker.updates.listed()[-1].state == "gone"
