"""What people read on a run page: data gate, diagnosis, decision, delivery, progress."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from evaluators.diagnosis.mix import Change
from evaluators.drift import Drift, sort_of
from evaluators.watching import Seen
from flows.pages import finite as finite
from flows.pages import interval_text

from prefect.artifacts import create_progress_artifact, update_progress_artifact  # isort: skip


class Progress:
    """A progress bar on the run page; moves forward only, in steps people can see."""

    _STEP = 2.0

    def __init__(self, key: str, description: str):
        self._shown = 0.0
        self._id: UUID = create_progress_artifact(progress=0.0, key=key, description=description)

    def set(self, percent: float) -> None:
        percent = min(100.0, percent)
        if percent - self._shown >= self._STEP or (percent == 100.0 and self._shown < 100.0):
            self._shown = percent
            update_progress_artifact(artifact_id=self._id, progress=percent)


def drift_page(agent: str, drift: Drift, found: Seen, shift: Change | None) -> str:
    """The window's two halves beside each other, and what the watch over all looks says."""
    moved = "; ".join(map(str, found.moved)) or "nothing"
    lines = [
        f"# Drift of {agent}: {drift.state}",
        "",
        f"Over all looks at this version: {moved} drifted.",
        "",
        f"In this window, {drift.current} trajectories against {drift.reference} earlier ones:",
    ]
    if drift.columns:
        lines += [
            "",
            f"| column | about | p | below {drift.threshold:.4f} | effect | matters |",
            "|---|---|---|---|---|---|",
        ]
        for column, p in drift.columns.items():
            effect = drift.effects[column]
            lines.append(
                f"| {column} | {sort_of(column)} | {p:.4g} | {_yes(p < drift.threshold)} "
                f"| {effect} | {_yes(effect.matters)} |"
            )
    if drift.text is not None and drift.text.auc.n:
        lines += ["", f"Texts ({drift.text.method}): {drift.text.state}, AUC {drift.text.auc}, p {drift.text.p:.3g}."]
        lines += [f"- {text}" for text in drift.text.telling]
    if shift is not None:
        lines += [
            "",
            f"Success, newer half minus older: {shift.within} on the same work, {shift.mix:+.2f} by other work.",
        ]
    return "\n".join(lines)


def _yes(holds: bool) -> str:
    return "**yes**" if holds else "no"


def stage_page(stage: str, version: str, result: dict[str, Any], at: str) -> str:
    lines = [
        f"# {stage.capitalize()} of version {version}: {result['end']}",
        "",
        result["reason"],
        "",
        f"{result['candidate']} sessions of the candidate, {result['champion']} of the champion; decided at {at}.",
    ]
    if result.get("difference"):
        lines.append(f"\nCandidate minus champion: {interval_text(result['difference'])}.")
    return "\n".join(lines)


def approval_page(approval: dict[str, Any]) -> str:
    evidence = approval["evidence"]
    lines = [
        f"# Approve version {approval['version']} of {approval['agent']}?",
        "",
        f"{evidence['intervention']}: {evidence['change']} (replaces version {evidence['replaces']})",
        "",
        f"Approvers: {', '.join(approval['approvers'])}. Expires {approval['expires_at']}.",
        f"`evoplane approvals approve {approval['id']} --by NAME`, or Resume on this page.",
        "",
        "| evidence | |",
        "|---|---|",
        *(f"| canary: {k} | {v} |" for k, v in evidence["canary"].items()),
        *(f"| {k} | {v} |" for k, v in evidence["lineage"].items()),
    ]
    if evidence.get("diff"):
        lines += ["", "```diff", evidence["diff"], "```", "", f"Risk: {evidence['risk']}."]
    if evidence.get("why"):
        lines += ["", *(f"- {line}" for line in evidence["why"])]
    return "\n".join([*lines, "", f"[The version in MLflow]({evidence['mlflow']})"])
