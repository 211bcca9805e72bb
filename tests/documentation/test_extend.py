"""The examples of docs/extend.md are a package that works when it is installed as the page says."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import msgspec
import orjson
import pytest

from atdp import convert
from evaluators import gates
from evaluators.decision import NO_OP, Evaluated, decide
from evaluators.environments.registry import load
from evaluators.intervals import Interval
from evaluators.replay import Replay
from flows.interventions import interventions
from services.worker.training.algorithms import algorithm
from tests.documentation.blocks import DOCS, block, blocks
from tests.surfaces.making import CONFIG, evidence, manifest
from tests.surfaces.test_harness import told

PAGE = DOCS / "extend.md"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package `ours`, as pip would leave it."""
    (tmp_path / "ours.py").write_text("\n\n".join(blocks(PAGE, "python")))
    info = tmp_path / "ours-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ours\nVersion: 1.0\n")
    groups = tomllib.loads(block(PAGE, "toml"))["project"]["entry-points"]
    lines = [f"[{group}]\n" + "\n".join(f"{k} = {v}" for k, v in points.items()) for group, points in groups.items()]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "ours", raising=False)


def candidate(judged: int) -> Evaluated:
    sure = Interval(value=0.5, low=0.3, high=0.7, n=judged)
    nothing = Interval(value=0.0, low=0.0, high=0.0, n=0)
    replay = Replay(
        results=(), improvement=sure, fixed=sure, lost=nothing, by_tenant={}, unknown=0, unanswered=0
    )  # fmt: skip
    return Evaluated("memory-1", "memory", 0.0, replay)


def test_the_gate_of_the_page_refuses_what_rests_on_too_little(installed: None) -> None:
    assert decide([candidate(40)], max_regression=0.1, gates=gates.installed()).chosen == "memory-1"
    decision = decide([candidate(20)], max_regression=0.1, gates=gates.installed())
    assert decision.chosen == NO_OP
    assert any("gate short-diff: 20 of 30 judged cases" in row.why for row in decision.ranking)


def test_a_gate_that_fails_or_cannot_be_loaded_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: Evaluated) -> str | None:
        raise ZeroDivisionError

    assert decide([candidate(40)], max_regression=0.1, gates={"mine": broken}).chosen == NO_OP
    info = tmp_path / "gone-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: gone\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[evoplane.gates]\ngone = nowhere:gate\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert decide([candidate(40)], max_regression=0.1, gates=gates.installed()).chosen == NO_OP


def test_the_surface_of_the_page_proposes_and_applies_its_change(installed: None) -> None:
    surface = interventions()["politeness"]
    assert surface.propose(evidence(told("Be polite please.", 2)), CONFIG) == []
    (proposal,) = surface.propose(evidence(told("Be polite please.", 3)), CONFIG)
    assert "Thank the user." in surface.describe(proposal)
    assert surface.apply(manifest(), proposal, {}).harness.system_append == "Thank the user."


def test_the_algorithm_of_the_page_is_known_by_its_name(installed: None) -> None:
    assert msgspec.structs.asdict(algorithm("hinge", {"margin": 0.5}))["margin"] == 0.5


def test_the_environment_of_the_page_keeps_its_copies_apart(installed: None) -> None:
    world = load("counter")
    world.reset()
    other = world.clone()
    assert world.step({"name": "add", "arguments": {"by": 2}})[0] == "The count is 2."
    assert (world.state(), other.state()) == ({"count": 2}, {"count": 0})


def test_the_converter_of_the_page_reads_and_writes_its_format(installed: None) -> None:
    line = b'{"question": "How long?", "answer": "45 days"}\n'
    found = convert.detect([line])
    assert found.name == "qa"
    read = found.read(line)
    drafts = [orjson.loads(msgspec.json.encode(item)) for item in read.records if not isinstance(item, convert.Content)]
    written = found.write(drafts, lambda _: None)
    assert orjson.loads(written.data) == orjson.loads(line)
