"""Every surface is an intervention; a package may bring another; what lost is not proposed again."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path

import pytest

from flows.interventions import INTERVENTIONS, interventions
from flows.interventions.found import BrokenSurface
from flows.interventions.rejections import fresh
from tests.surfaces.making import CONFIG, evidence, manifest
from tests.surfaces.test_harness import told

SOURCE = """
from flows.interventions.base import Proposal, Surface

class Greeting(Surface):
    surface = "greeting"
    def cost(self, config): return 0.5
    def risk(self, config): return 0.0
    def propose(self, evidence, config):
        return [Proposal(surface="greeting", summary="hello", diff="+ hello", content={}, cost=0.5, risk="none")]
    def apply(self, manifest, proposal, made): return manifest

class Nothing: surface = "nothing"
"""


def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entries: str) -> None:
    """A package as pip would leave it: a module, and a distribution that names its entry points."""
    (tmp_path / "greeting_surface.py").write_text(SOURCE)
    info = tmp_path / "greeting_surface-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: greeting-surface\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[evoplane.interventions]\n{entries}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "greeting_surface", raising=False)
    assert any(e.name for e in metadata.entry_points(group="evoplane.interventions"))


def test_the_surfaces_are_seven_and_each_tells_what_it_costs() -> None:
    assert set(INTERVENTIONS) == {"memory", "skill", "harness", "tools", "policy", "rollback", "no-op"}
    for name, intervention in INTERVENTIONS.items():
        assert intervention.surface == name
        assert intervention.cost(CONFIG) >= 0
        assert intervention.risk(CONFIG) >= 0


def test_an_installed_package_brings_a_surface(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "greeting = greeting_surface:Greeting")
    found = interventions()
    assert set(found) == {*INTERVENTIONS, "greeting"}
    (proposal,) = found["greeting"].propose(evidence(told("x")), CONFIG)
    assert "hello" in found["greeting"].describe(proposal)
    assert found["greeting"].apply(manifest(), proposal, {}) == manifest()


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ("nothing = greeting_surface:Nothing", "it has no propose"),
        ("hello = greeting_surface:Greeting", "it calls itself 'greeting'"),
        ("gone = greeting_surface:Gone", "Gone"),
    ],
)
def test_a_surface_that_cannot_be_used_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: str, why: str
) -> None:
    install(tmp_path, monkeypatch, entry)
    with pytest.raises(BrokenSurface, match=why):
        interventions()


def test_what_lost_is_not_proposed_again_until_there_is_new_evidence() -> None:
    cases = told("Always confirm the order number first.")
    harness = INTERVENTIONS["harness"]
    (lost,) = harness.propose(evidence(cases), CONFIG)
    record = {"parent": "1", "rejected": [lost.fingerprint]}
    (again,) = harness.propose(evidence(cases), CONFIG)
    assert fresh([again], [record], "1") == ([], [(again, "lost before, and there is no new evidence")])
    assert fresh([again], [record], "2") == ([again], []), "another champion is another question"
    (more,) = harness.propose(evidence([*cases, *told("Always confirm the order number first.", 1)]), CONFIG)
    assert fresh([more], [record], "1") == ([more], [])


def test_a_proposal_is_described_with_its_diff_cost_and_evidence() -> None:
    (proposal,) = INTERVENTIONS["harness"].propose(evidence(told("Always confirm the order number first.")), CONFIG)
    page = INTERVENTIONS["harness"].describe(proposal)
    assert "+ Always confirm the order number first." in page
    assert "cost 0.005, risk 0.005" in page
    assert proposal.evidence[0] in page
