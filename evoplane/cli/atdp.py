"""`evoplane atdp`: the record format itself."""

from __future__ import annotations

import json as jsonlib
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from atdp.conformance import RULES, check
from evoplane.cli.given_files import require_regular
from evoplane.cli.output import Json, err, out, print_json, show

app = typer.Typer(no_args_is_help=True, help="The record format: check files, list the rules.")

_SHOWN = 100
"""Findings printed for people, at most; `--json` has all."""


@app.command("check")
def check_file(
    file: Annotated[Path, typer.Argument(help="ATDP records, one a line; or a JSON object or array of records.")],
    excerpt: Annotated[
        bool, typer.Option(help="Records are missing on purpose: ask only what can be said of each alone.")
    ] = False,
    json: Json = False,
) -> None:
    """Check a file against ATDP 1.0's conformance rules. Exit 1 when something does not conform.

    A JSON document of records (an example in a specification) is taken as an excerpt.

    Example: evoplane atdp check northwind.atdp.jsonl
    """
    require_regular(file)
    quoted = _quoted(file)
    records = 0

    def counted(lines: Iterable[str | bytes]) -> Iterable[str | bytes]:
        nonlocal records
        for line in lines:
            records += bool(line.strip())
            yield line

    if quoted is not None:
        findings = list(check(counted(quoted), excerpt=True))
    else:
        with file.open("rb") as lines:
            findings = list(check(counted(lines), excerpt=excerpt))
    if json:
        print_json(
            {
                "ok": not findings,
                "records": records,
                "excerpt": excerpt or quoted is not None,
                "findings": [finding._asdict() for finding in findings],
            }
        )
    else:
        for finding in findings[:_SHOWN]:
            err.print(f"{file}:{finding.line}: [{finding.rule}] {finding.message}", highlight=False, markup=False)
        if len(findings) > _SHOWN:
            err.print(f"… and {len(findings) - _SHOWN} more; --json has all")
        said = "conforms to ATDP 1.0" if not findings else f"{len(findings)} findings"
        out.print(f"{records} records{' (an excerpt)' if excerpt or quoted is not None else ''}: {said}")
    raise typer.Exit(1 if findings else 0)


@app.command("rules")
def rules(json: Json = False) -> None:
    """List the conformance rules.

    Example: evoplane atdp rules
    """
    show([{"rule": rule, "asks": asks} for rule, asks in RULES.items()], json)


def _quoted(file: Path) -> list[str] | None:
    """The records of a JSON document, one a line; None for JSON lines."""
    with file.open("rb") as stream:
        first = stream.readline()
        try:
            if isinstance(jsonlib.loads(first), dict):
                return None
        except (ValueError, RecursionError):
            pass
        stream.seek(0)
        try:
            document = jsonlib.load(stream)
        except (ValueError, RecursionError):
            return None
    items = list(document.values()) if isinstance(document, dict) else document
    if not isinstance(items, list):
        return None
    return [jsonlib.dumps(item) for item in items]
