"""`evoplane demo`: the whole loop on this machine."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from evoplane.cli.output import Json, err, out, print_json
from evoplane.settings import settings

_REPORT = Path("demo-report.json")


def demo(
    keep: Annotated[bool, typer.Option("--keep", help="Leave the stack and its UIs running.")] = False,
    json: Json = False,
) -> None:
    """Run the whole loop on the real stack and report what it did. Exit 1 if any bar was missed.

    Uses a run-time directory of its own, `var/demo`, emptied first. The report is also written to
    `demo-report.json`.

    Example: evoplane demo
    Example: evoplane demo --keep   (then open the UIs that `evoplane status` lists)
    """
    os.environ.setdefault("EVOPLANE_PATHS__VAR", "var/demo")
    settings.cache_clear()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the stack is stopped on the way out
    from evoplane.demo.story import Story
    from evoplane.demo.waiting import DemoFailed

    try:
        report = Story(settings(), lambda line: err.print(line, highlight=False)).run(keep)
    except DemoFailed as failure:
        report = {"shortcomings": [str(failure)]}
    text = _write(report)
    if json:
        print_json(report)
    else:
        _print(report)
        out.print(f"\nreport: {text}", style="dim")
    if keep:
        var = settings().var
        err.print(f"the stack is still up: export EVOPLANE_PATHS__VAR={var}; evoplane status; evoplane down")
    raise typer.Exit(1 if report["shortcomings"] else 0)


def _write(report: dict[str, Any]) -> Path:
    import orjson

    _REPORT.write_bytes(orjson.dumps(report, option=orjson.OPT_INDENT_2) + b"\n")
    return _REPORT


def _print(report: dict[str, Any]) -> None:
    for surface in ("policy", "memory"):
        if surface not in report:
            continue
        lift = report[surface]
        out.print(
            f"[bold]{surface}[/bold]: held-out success {_rate(lift['before'], lift['before_interval'])} → "
            f"{_rate(lift['after'], lift['after_interval'])}, lift {lift['lift']:+.2f}, "
            f"at least {lift['lift_low']:+.2f} (95%, paired, n={lift['n']})",
            highlight=False,
        )
    if bad := report.get("bad_candidate"):
        state = "rolled back" if bad["rolled_back"] else "NOT rolled back"
        out.print(
            f"[bold]bad candidate[/bold]: {state}, {bad['sessions_touched']} sessions touched, "
            f"all traffic back in {bad['seconds_to_all_back']:.2f} s",
            highlight=False,
        )
    if verify := report.get("verify"):
        out.print(f"[bold]verify[/bold]: {verify['events']} events, {'clean' if verify['ok'] else 'NOT CLEAN'}")
    if "seconds" in report:
        out.print(f"[bold]time[/bold]: {report['seconds']:.0f} s")
    for shortcoming in report["shortcomings"]:
        out.print(f"missed: {shortcoming}", style="red", highlight=False)


def _rate(value: float, interval: list[float]) -> str:
    return f"{value:.2f} \\[{interval[0]:.2f}, {interval[1]:.2f}]"
