"""What went wrong for others between sampling and training; each case is one test that states the right value."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from flows import rows
from services.worker.serving.base_weights import BaseWeights, Kept
from services.worker.serving.inside.evoplane_gate import Gate
from services.worker.serving.policies import Policies, Policy, Probe, ProbeMismatch
from services.worker.serving.updates import Updates
from services.worker.serving.weights import weights_digest
from tests.flows.test_rows import call
from tests.worker.conftest import untied_model  # noqa: F401  (a fixture)
from tests.worker.engine import FakeEngine
from tests.worker.test_updates import Engine, ask


def test_case_29_ids_are_trained_on_as_captured_and_a_reencoded_history_is_not_merged_with_them() -> None:
    from tokenizers import Tokenizer, models

    tokenizer = Tokenizer(models.BPE(vocab={"a": 0, "b": 1, "ab": 2, "?": 3}, merges=[("a", "b")]))
    sampled = [0, 1]  # "ab", letter by letter: a model may sample what no tokenizer writes
    again = tokenizer.encode("ab").ids
    assert again == [2] and tokenizer.decode(sampled).replace(" ", "") == "ab"

    first = call("first", [3], sampled)
    kept = call("second", [3, *sampled, 3], [2])
    reencoded = call("second", [3, *again, 3], [2])

    assert [row.whole for row in rows.build([first, kept]).rows] == [[3, 0, 1, 3, 2]]
    built = rows.build([first, reencoded])
    assert [(row.prompt, row.completion) for row in built.rows] == [([3], [0, 1]), ([3, 2, 3], [2])]
    assert built.unmatched == 1


async def test_case_30_a_request_in_flight_keeps_its_weights_and_later_ones_wait_for_the_probe(
    untied_model: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    base, other = tmp_path / "base", tmp_path / "next"
    for path in (base, other):
        shutil.copytree(untied_model, path)
    engine, gate = FakeEngine(base, {"base": -0.1, "next": -0.7}), Gate(app := Engine())
    answered: list[tuple[str, str, str]] = []

    async def request(name: str) -> None:
        answer = await ask(gate, {"model": name})
        stamp: bytes = answer["headers"].get(b"x-evoplane-weights", b"")
        answered.append((name, engine.loaded.name, stamp.decode()))

    async def hold() -> int:
        state = (await ask(gate, {"hold": True}, "/evoplane/gate"))["body"]
        engine.holding = True
        return sum(state["in_flight"].values())

    async def release(weights: str) -> None:
        await ask(gate, {"hold": False, "weights": weights}, "/evoplane/gate")

    engine.hold, engine.release = hold, release  # type: ignore[method-assign]
    app.go.clear()
    early = asyncio.create_task(request("early"))
    await asyncio.sleep(0)
    weights = BaseWeights(tmp_path / "w.json", base, "model", 1e-3, updates := Updates())
    wanted = Kept("w2", str(other), weights_digest(other))
    policies: Any = Policies(tmp_path / "p.json", 1e-3, updates)
    change = asyncio.create_task(weights.change(engine, policies, wanted, Probe([1], [2], [-0.7]), 5))  # type: ignore[arg-type]
    while not engine.holding:
        await asyncio.sleep(0.01)
    late = asyncio.create_task(request("late"))
    await asyncio.sleep(0.05)
    assert engine.loaded.name == "base", "somebody is still being answered"
    app.go.set()
    await asyncio.gather(early, change, late)
    assert answered == [("early", "base", ""), ("late", "next", "w2")]


async def test_case_30_an_adapter_that_answers_otherwise_than_trained_is_never_served(tmp_path: Path) -> None:
    from services.worker.policies import policy_digest

    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / "adapter_config.json").write_text("{}")
    (folder / "adapter_model.safetensors").write_bytes(b"damaged")
    engine = FakeEngine(tmp_path, {"adapter": -0.3})
    policies = Policies(tmp_path / "p.json", 1e-3)
    policy = Policy("v2", str(folder), policy_digest(folder), Probe([1], [2], [-0.7]))
    with pytest.raises(ProbeMismatch):
        await policies.add(engine, policy)  # type: ignore[arg-type]
    assert (policies.served(), engine.adapters) == ([], {})
