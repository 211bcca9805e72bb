"""Which rule is an agent's, and that what is read from the log is judged by it."""

from __future__ import annotations

from pathlib import Path

import pytest

from evaluators.cases import cases_of
from evaluators.rewards import DEFAULT_RULE, declare, rule_of
from evaluators.rewards.rule import Calibrated, keep_calibration
from evoplane.settings import SettingsError, read_settings
from tests.evaluators.rewards.making import event, says

_TOML = """
[rewards.support]
conflict = "mean"
[[rewards.support.clauses]]
name = "judge.*"
kinds = ["llm_judge"]
min_agreement = 0.7
[rewards.default]
clauses = [{ name = "stars", scale = [1, 5] }]
"""


@pytest.fixture
def config(tmp_path: Path):
    file = tmp_path / "evoplane.toml"
    file.write_text(_TOML)
    return read_settings(file, {"EVOPLANE_PATHS__VAR": str(tmp_path)})


def test_an_agent_has_its_own_rule_or_that_of_all_or_the_default(config) -> None:
    assert rule_of(config, "support").declared.conflict == "mean"
    assert rule_of(config, "coder").declared.clauses[0].name == "stars"
    none = config.model_copy(update={"rewards": {}})
    assert rule_of(none, "support").digest == DEFAULT_RULE.digest


def test_a_misspelled_key_of_a_rule_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text('[rewards.a]\nclauses = [{ naem = "x" }]')
    with pytest.raises(SettingsError, match="naem"):
        read_settings(tmp_path / "x.toml", {})


def test_what_was_measured_of_a_source_is_part_of_the_rule_and_of_its_version(config) -> None:
    before = rule_of(config, "support")
    measured = [Calibrated(name="judge.x", kind="llm_judge", id="m@1", n=90, agreement=0.9, low=0.82, at="2026")]
    keep_calibration(config, "support", measured)
    after = rule_of(config, "support")
    assert after.calibration == tuple(measured)
    assert after.digest != before.digest
    assert rule_of(config, "coder").calibration == ()


def test_cases_carry_their_reward_the_signals_it_was_made_of_and_the_rules_digest() -> None:
    ask = {"messages": [{"role": "user", "parts": [{"type": "text", "content": "hi"}]}]}
    records = [
        {"record": "trajectory", "trajectory_id": "tr"},
        event("e1", o=ask, ctx="c"),
        event("t1", "tool_call", (("e1", "decided_by"),), a={"name": "look", "arguments": {}}),
        event("u2", "user_message"),
        event("e2", o=ask, ctx="c"),
        says("n1", 0.25, "tests", "environment", about="t1"),
        says("n2", 1, "helpful", "human"),
    ]
    rule = declare(clauses=[{"name": "*"}], credit_decay=0.5)
    first, second = cases_of("t", records, lambda context: [], rule=rule)
    assert (first.reward, first.success, second.reward, second.success) == (0.25, False, 1, True)
    assert [s.id for s in first.signals] == ["n1", "n2"]
    assert [s.id for s in second.signals] == ["n2"]
    assert first.reward_rule == rule.digest
    assert first.reward_source == "credit from t1"
