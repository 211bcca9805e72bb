import json

import msgspec

from evaluators import quality


def test_an_empty_batch_is_refused(case):
    result = quality.check(quality.frame([]), min_rows=10)
    assert not result.passed and result.findings[0].expectation == "row count"


def test_sound_decisions_pass_every_declared_expectation(case):
    result = quality.check(quality.frame([case() for _ in range(20)]), min_rows=10)
    assert result.passed, result.summary
    assert result.evaluated == result.declared > 5


def test_bad_rows_are_named_for_quarantine(case):
    bad = [case(reward=7.0), case(prompt_token_ids=[1, 2])]
    rows = [case() for _ in range(20)] + bad
    result = quality.check(quality.frame(rows), min_rows=10)
    assert not result.passed
    assert set(result.quarantined) == {c.event_id for c in bad}


def test_an_expectation_that_cannot_be_evaluated_is_a_failure_of_its_own(case, tmp_path):
    suite = json.loads(quality.SUITE.read_text())
    kwargs = {"column": "no_such_column"}
    suite["expectations"].append({"type": "expect_column_values_to_not_be_null", "kwargs": kwargs})
    file = tmp_path / "suite.json"
    file.write_text(json.dumps(suite))
    result = quality.check(quality.frame([case() for _ in range(20)]), 10, file)
    assert not result.passed
    assert any("could not be evaluated" in f.problem for f in result.findings), msgspec.to_builtins(result)
