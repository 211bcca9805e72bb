"""What people read of an evolution, as Markdown: data gate and decision. The command prints them without Prefect."""

from __future__ import annotations

from typing import Any

from evaluators.quality import QualityResult


def quality_page(result: QualityResult) -> str:
    lines = [
        f"# Data gate: {'passed' if result.passed else 'FAILED'}",
        "",
        f"{result.rows} decisions, {result.evaluated} of {result.declared} declared expectations evaluated.",
    ]
    if result.findings:
        lines += ["", "| expectation | problem | quarantined |", "|---|---|---|"]
        lines += [f"| {f.expectation} | {f.problem} | {', '.join(f.rows[:20])} |" for f in result.findings]
    return "\n".join(lines)


def decision_page(decision_id: str, record: dict[str, Any]) -> str:
    lines = [
        f"# Decision {decision_id}: {record['chosen']}",
        "",
        f"Agent {record['agent']}, parent version {record['parent']}. Because: {record['reason']}.",
        f"Snapshot `{record['snapshot']}` ({record['trajectories']} trajectories); data gate {record['data_gate']}.",
        "",
        "| candidate | surface | lower bound minus cost and risk | chosen | why |",
        "|---|---|---|---|---|",
    ]
    for row in record["ranking"]:
        chosen = "**yes**" if row["chosen"] else "no"
        lines.append(f"| {row['name']} | {row['surface']} | {row['score']:+.3f} | {chosen} | {row['why']} |")
    for name, c in record["candidates"].items():
        lines += ["", f"## {name}", "", c["summary"], "", "```diff", c["diff"], "```", "", f"Risk: {c['risk']}."]
        if c["replay"]:
            r = c["replay"]
            lines += [
                "",
                "| replay, beside the champion | value [95%] |",
                "|---|---|",
                f"| improvement | {interval_text(r['improvement'])} |",
                *_more(c),
                f"| failures fixed | {interval_text(r['fixed'])} |",
                f"| known successes lost | {interval_text(r['lost'])} |",
                *(f"| improvement, tenant {t} | {interval_text(i)} |" for t, i in r["by_tenant"].items()),
                f"| could not be judged | {r['unknown']} of {len(r['results'])} |",
            ]
    return "\n".join(lines)


def _more(candidate: dict[str, Any]) -> list[str]:
    rows = []
    if candidate.get("simultaneous"):
        rows.append(f"| improvement, bounds for all candidates at once | {interval_text(candidate['simultaneous'])} |")
    if candidate.get("probes_lost"):
        rows.append(f"| what used to work, lost | {interval_text(candidate['probes_lost'])} |")
    if candidate.get("failed_tests"):
        rows.append(f"| own tests failed | {len(candidate['failed_tests'])} of {candidate['tests']} |")
    return rows


def interval_text(interval: dict[str, Any]) -> str:
    """An interval as it was before JSON: `0.31 [0.25, 0.38] (n=220)`."""
    if not interval["n"]:
        return "not observed"
    return f"{interval['value']:.2f} [{interval['low']:.2f}, {interval['high']:.2f}] (n={interval['n']})"


def finite(value: Any) -> Any:
    """JSON has no NaN or infinity; an unobserved figure becomes null."""
    if isinstance(value, dict):
        return {k: finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [finite(v) for v in value]
    if isinstance(value, float) and (value != value or abs(value) == float("inf")):
        return None
    return value
