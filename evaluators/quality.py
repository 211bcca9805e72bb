"""The data gate: may this snapshot be learned from? Great Expectations over its decisions.

The suite is `data/expectations/decisions.json`. A passing result means: there are enough rows (checked
first: an empty batch passes every not-null check), every declared expectation was evaluated, none of
them raised, and none found an unexpected row.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from evaluators.cases import Case

if TYPE_CHECKING:
    import pandas as pd

SUITE = Path(__file__).parents[1] / "data" / "expectations" / "decisions.json"


class Finding(msgspec.Struct, frozen=True):
    """One expectation that did not hold."""

    expectation: str
    problem: str
    rows: tuple[str, ...] = ()
    """Event ids to quarantine."""


class QualityResult(msgspec.Struct, frozen=True):
    passed: bool
    rows: int
    declared: int
    evaluated: int
    findings: tuple[Finding, ...]

    @property
    def quarantined(self) -> tuple[str, ...]:
        return tuple(sorted({row for f in self.findings for row in f.rows}))

    @property
    def summary(self) -> str:
        if self.passed:
            return f"passed: {self.evaluated} expectations over {self.rows} decisions"
        return "failed: " + "; ".join(f"{f.expectation}: {f.problem}" for f in self.findings)


def frame(cases: Sequence[Case]) -> pd.DataFrame:
    """The decisions as the columns the suite speaks about."""
    import pandas as pd

    return pd.DataFrame(
        [
            {
                "event_id": c.event_id,
                "trajectory_id": c.trajectory_id,
                "tenant": c.tenant,
                "agent_version": c.agent_version,
                "status": c.status,
                "reward": c.reward,
                "messages": len(c.messages),
                "request_chars": len(c.request),
                "prompt_tokens": len(c.prompt_token_ids) or None,
                "input_tokens": c.input_tokens,
            }
            for c in cases
        ],
        columns=["event_id", "trajectory_id", "tenant", "agent_version", "status", "reward", "messages",
                 "request_chars", "prompt_tokens", "input_tokens"],
    )  # fmt: skip


def check(rows: pd.DataFrame, min_rows: int, suite_file: Path = SUITE) -> QualityResult:
    """Run the suite; every reason to refuse the rows is a finding."""
    declared = json.loads(suite_file.read_text())["expectations"]
    if len(rows) < min_rows:
        problem = f"{len(rows)} rows, at least {min_rows} are needed"
        return QualityResult(False, len(rows), len(declared), 0, (Finding("row count", problem),))
    result = _run(rows, declared)
    findings = []
    if len(result["results"]) != len(declared):
        problem = f"{len(result['results'])} of {len(declared)} were evaluated"
        findings.append(Finding("declared expectations", problem))
    for outcome in result["results"]:
        name = _name(outcome["expectation_config"])
        raised = _raised(outcome.get("exception_info"))
        if raised:
            findings.append(Finding(name, f"could not be evaluated: {raised}"))
        elif not outcome["success"]:
            found = outcome.get("result") or {}
            ids = tuple(str(row["event_id"]) for row in found.get("unexpected_index_list") or [])
            problem = f"{found.get('unexpected_count', 'some')} unexpected of {found.get('element_count', len(rows))}"
            findings.append(Finding(name, problem, ids))
    return QualityResult(not findings, len(rows), len(declared), len(result["results"]), tuple(findings))


def _run(rows: pd.DataFrame, declared: list[dict[str, Any]]) -> dict[str, Any]:
    gx = _great_expectations()
    from great_expectations.data_context.types.base import ProgressBarsConfig

    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    asset = context.data_sources.add_pandas("snapshot").add_dataframe_asset("decisions")
    batch = asset.add_batch_definition_whole_dataframe("all")
    suite = context.suites.add(gx.ExpectationSuite(name="decisions", expectations=declared))
    validation = context.validation_definitions.add(gx.ValidationDefinition(name="decisions", data=batch, suite=suite))
    checkpoint = context.checkpoints.add(
        gx.Checkpoint(
            name="snapshot",
            validation_definitions=[validation],
            result_format={"result_format": "COMPLETE", "unexpected_index_column_names": ["event_id"]},
        )
    )
    outcome = checkpoint.run(batch_parameters={"dataframe": rows})
    (validated,) = outcome.run_results.values()
    return validated.to_json_dict()


@lru_cache(maxsize=1)
def _great_expectations() -> Any:
    """Imported late: it costs many CPU-seconds, and a failed row count doesn't need it."""
    import os

    os.environ.setdefault("GX_ANALYTICS_ENABLED", "false")
    import great_expectations as gx

    return gx


def _raised(info: Any) -> str | None:
    """The exception in an `exception_info`, which is flat or keyed by metric."""
    if not isinstance(info, dict):
        return None
    blocks = [info] if "raised_exception" in info else [b for b in info.values() if isinstance(b, dict)]
    return next((str(b.get("exception_message")) for b in blocks if b.get("raised_exception")), None)


def _name(config: dict[str, Any]) -> str:
    kwargs = config.get("kwargs") or {}
    columns = kwargs.get("column") or kwargs.get("column_list") or kwargs.get("column_A") or ""
    return f"{config['type']}({columns})"
