"""What commands print: a table for people, one JSON value with `--json`, errors on standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from functools import cached_property
from math import isfinite
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console


class Printer:
    """A rich console that is imported and made when something is printed."""

    def __init__(self, *, stderr: bool = False) -> None:
        self._stderr = stderr

    @cached_property
    def console(self) -> Console:
        from rich.console import Console

        return Console(stderr=self._stderr, soft_wrap=True)

    def print(self, *objects: Any, **how: Any) -> None:
        self.console.print(*objects, **how)


out = Printer()
err = Printer(stderr=True)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON value instead of a table.")]


def show(value: Any, as_json: bool) -> None:
    """Print one object (as key and value lines) or one list of objects (as a table)."""
    if as_json:
        print_json(value)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            out.print(f"[bold]{key}[/bold]  {_text(item)}", highlight=False)
    else:
        _table(value)


def print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n")


def finite(value: Any) -> Any:
    """The value with null for numbers that JSON doesn't have (NaN, infinities)."""
    if isinstance(value, float) and not isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list | tuple) else value


def _table(rows: Sequence[Mapping[str, Any]]) -> None:
    if not rows:
        out.print("nothing yet", style="dim")
        return
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in rows[0]:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(_text(row.get(column)) for column in rows[0]))
    out.print(table)


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value)) or "-"
    if isinstance(value, Mapping):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)
