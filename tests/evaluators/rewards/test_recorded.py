"""Rules on recorded signals: judges beside an environment, late and double feedback, a reward on every step."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from evaluators.rewards import declare, resolve
from evoplane.cli.main import app
from evoplane.settings import settings
from registry import control, tenants
from services.proxy.store import open_reader
from tests.evaluators.recorded import annotations, events, read
from tests.shared import DATA, REASON

pytestmark = pytest.mark.skipif(not DATA.exists(), reason=REASON)
AIRLINE = DATA / "tau2-airline"


@pytest.fixture(scope="module")
def tensorzero() -> dict[str, Any]:
    return read(*sorted((DATA / "tensorzero-feedback").glob("*.jsonl")))


def test_feedback_older_than_its_target_counts_like_any_other(tensorzero: dict[str, Any]) -> None:
    rule = declare(clauses=[{"name": "haiku_score"}, {"name": "exact_match"}, {"name": "*_score"}])
    early = counted = 0
    for records in tensorzero.values():
        made = {e["id"]: e["time"] for e in events(records)}
        said = [a for a in annotations(records) if a["kind"] == "reward"]
        for signal in resolve(said, rule, events=events(records)).signals:
            older = any(signal.written < made[id] for id in signal.events if id in made)
            early += older
            counted += older and not signal.ignored
    assert early > 100
    assert counted > 0


def test_of_two_values_of_one_metric_for_one_target_the_rule_says_which_counts(tensorzero: dict[str, Any]) -> None:
    double = {}
    for records in tensorzero.values():
        by: dict[tuple[str, ...], list[Any]] = {}
        for a in annotations(records):
            if a["kind"] == "reward":
                by.setdefault((a["name"], str(a["targets"])), []).append(a)
        double |= {key: said for key, said in by.items() if len({float(a["value"]) for a in said}) > 1}
    ((name, _),) = double
    (said,) = double.values()
    latest = max(said, key=lambda a: a["observed_at"])
    rewards = {}
    for conflict in ("latest", "lowest", "abstain"):
        found = resolve(said, declare(clauses=[{"name": name, "about": "trajectory"}], conflict=conflict)).trajectory
        rewards[conflict] = None if found is None else found.reward
    values = [float(a["value"]) for a in said]
    assert rewards["latest"] == float(latest["value"])
    assert rewards["lowest"] == min(values)
    assert rewards["abstain"] is None


def test_rewards_of_steps_make_a_trajectorys_and_credit_the_steps_that_led_there() -> None:
    runs = read(DATA / "intercode-python" / "gpt-4_7turns.json")
    steps = [{"name": "step_reward"}]
    solved = dict.fromkeys(("last", "max", "min", "mean"), 0)
    best = 0
    for records in runs.values():
        said = annotations(records)
        best += next(a["value"] for a in said if a["name"] == "max_reward") == 1
        for how in solved:
            found = resolve(said, declare(clauses=steps, trajectory_from=how), events=events(records))
            assert found.trajectory is not None
            assert len(found.steps) == sum(a["name"] == "step_reward" for a in said)
            solved[how] += found.trajectory.reward == 1
    assert solved["max"] == best > 0
    assert solved["min"] <= solved["mean"] <= solved["last"] <= solved["max"]
    credited = resolve(said, declare(clauses=steps, credit_decay=0.5), events=events(records))
    calls = [e["id"] for e in events(records) if e["kind"] == "llm_call"]
    assert set(calls) <= set(credited.steps)  # each call decided an execution that was judged


@pytest.fixture
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("EVOPLANE_PATHS__VAR", str(tmp_path / "var"))
    monkeypatch.setenv("EVOPLANE_CONFIG", str(tmp_path / "evoplane.toml"))
    (tmp_path / "evoplane.toml").write_text(
        '[rewards.airline]\nclauses = [{ name = "reward", kinds = ["environment"] },'
        ' { name = "judge.*", precedence = 1, min_agreement = 0.6 }]'
    )
    settings.cache_clear()
    yield
    settings.cache_clear()


def run(*arguments: str) -> Any:
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.mark.usefixtures("own_directory")
def test_the_command_shows_judges_beside_the_environment_and_trusts_none_that_disagrees() -> None:
    connection = control.connect(settings().control_db)
    tenants.create_tenant(connection, "acme")
    files = [AIRLINE / "gpt-4o_airline.json", *sorted(AIRLINE.glob("judge_*.jsonl"))]
    run("trajectories", "import", *map(str, files), "--tenant", "acme", "--agent", "airline", "--json")
    before = run("rewards", "--agent", "airline", "--json")
    good = {s["source"][0]: round(s["positive"]["value"] * s["trajectories"]) for s in before["sources"]}
    assert {name.removeprefix("judge.").removesuffix("_v1"): n for name, n in good.items() if "check" not in name} == {
        "reward": 23,
        "quick_triage": 46,
        "customer_outcome": 35,
        "policy_conversation": 29,
        "policy_chain_of_thought": 32,  # 10 say "pass", 22 "satisfied"; 5 say something else, which is no value
    }
    pairs = [p for p in before["pairs"] if p["other"][0] == "reward" and p["one"][0].startswith("judge")]
    assert sorted((round(p["agreement"]["value"] * p["agreement"]["n"]), p["agreement"]["n"]) for p in pairs) == [
        (18, 45),
        (20, 50),
        (25, 50),
        (34, 50),
    ]
    measured = run("rewards", "calibrate", "--agent", "airline", "--json")
    after = run("rewards", "--agent", "airline", "--json")
    assert after["rule"]["digest"] == measured["rule"] != before["rule"]["digest"]
    assert all(m["low"] < 0.6 for m in measured["calibrated"])  # the best of them: 34 of 50, at least 0.54
    assert len(measured["calibrated"]) == 4
    reports = {r["judge"][0]: r for r in run("rewards", "judges", "--agent", "airline", "--json")}
    assert {r["state"] for r in reports.values()} == {"not trusted"}
    assert reports["judge.quick_triage_v1"]["leniency"]["low"] > 0.2
    reader = open_reader(settings())
    calls = [
        e for e in reader.records("acme", reader.trajectories("acme")[0].trajectory_id) if e.get("kind") == "llm_call"
    ]
    credit = run("rewards", "credit", calls[-1]["id"], "--json")
    assert credit["reward"]["source"] == "reward (environment)"
    assert {"decision", "observation"} <= {c["kind"] for c in credit["credit"]}
    judges = [s for s in after["sources"] if s["source"][1] == "llm_judge"]
    assert sum(s["counted"] for s in judges) == 0
