"""A diagnosis as a page people read."""

from __future__ import annotations

from evaluators.diagnosis.diagnose import Cluster, Diagnosis


def page(agent: str, version: str, found: Diagnosis) -> str:
    """Markdown: what fails and how often, what each cluster suggests and why, and representative trajectories."""
    lines = [
        f"# Why {agent} version {version} fails",
        "",
        f"{found.failures} failures among {found.judged} judged outcomes.",
        *_remarks(found),
        "",
        "| cluster | share of outcomes | chance | tenants | tools or topics | surface |",
        "|---|---|---|---|---|---|",
    ]
    for c in found.clusters:
        breadth = " (broad)" if c.broad else ""
        chance = f"p = {c.p:.2g}" if c.p < 1 else "–"
        lines.append(
            f"| {_cell(c.name)}{breadth} | {c.prevalence} | {chance} | {', '.join(c.tenants)} "
            f"| {', '.join(c.kinds)} | {c.surface} |"
        )
    for c in found.clusters:
        lines += ["", f"## {c.name}", "", *_cluster(c)]
    return "\n".join(lines)


def _remarks(found: Diagnosis) -> list[str]:
    lines = []
    if found.disbelief is not None:
        doubted = found.disbelief
        lines += ["", f"**Rewards of {doubted.judge} are not believed**: {'; '.join(doubted.why)}. "
                      f"{found.left_out} decisions nobody else had judged are left out."]  # fmt: skip
    if found.shift is not None:
        within, mix = found.shift.within, found.shift.mix
        lines += ["", f"The newer half against the older: {within} within kinds of work, {mix:+.2f} by another mix."]
    return lines


def _cluster(c: Cluster) -> list[str]:
    lines = [f"Suggests **{c.surface}**: {c.why[0]}" if c.why else f"Suggests **{c.surface}**."]
    lines += [f"- {line}" for line in c.why[1:]]
    if c.templates:
        lines += ["", "Requests like: " + "; ".join(f"“{t}”" for t in c.templates)]
    lines += ["", *(f"- `{e.trajectory_id}` {e.text}" for e in c.examples)]
    return lines


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
