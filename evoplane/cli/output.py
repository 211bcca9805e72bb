"""What commands print: a table for people, one JSON value with `--json`, errors on standard error."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from functools import cached_property
from math import isfinite
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console


_ID = re.compile(r"(?<![a-z])[a-z]{2,4}_[0-9a-f][0-9a-f-]{15,}")
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(\.\d+)?Z")
_OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters but tab and line feed, marks that turn the direction of what follows, and halves of pairs."""
_GAP = 2
_LEAST = 10
"""Characters that a column which may be folded keeps."""


class Printer:
    """A rich console that is imported and made when something is printed."""

    def __init__(self, *, stderr: bool = False) -> None:
        self._stderr = stderr

    @cached_property
    def console(self) -> Console:
        from rich.console import Console

        return Console(stderr=self._stderr, soft_wrap=True)

    def print(self, *objects: Any, **how: Any) -> None:
        self.console.print(*(harmless(each) if isinstance(each, str) else each for each in objects), **how)


def harmless(text: str) -> str:
    """The text with what a terminal would obey, or can't show, written as an escape: agents and files say anything."""
    return _OBEYED.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


out = Printer()
err = Printer(stderr=True)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON value instead of a table.")]


def show(value: Any, as_json: bool) -> None:
    """Print one object (as key and value lines) or one list of objects (as a table)."""
    if as_json:
        print_json(value)
    elif isinstance(value, Mapping):
        from rich.markup import escape

        for key, item in value.items():
            out.print(f"[bold]{key}[/bold]  {escape(readable(item))}", highlight=False)
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
    """Columns are folded where the terminal is narrow, between words while there is room for that; ids never: a table
    of them runs over the edge instead."""
    if not rows:
        out.print("nothing yet", style="dim")
        return
    from rich.table import Table
    from rich.text import Text

    cells = {column: [_cell(row.get(column)) for row in rows] for column in rows[0]}
    natural = {column: max(len(column), *map(len, texts)) for column, texts in cells.items()}
    widths = {column: min(natural[column], _least(column, texts)) for column, texts in cells.items()}
    room = out.console.width - sum(widths.values()) - _GAP * len(widths)
    lacking = {column: max(0, _longest_word(texts) - widths[column]) for column, texts in cells.items()}
    for column in sorted(lacking, key=lambda c: (any(" " in text for text in cells[c]), lacking[c])):
        if lacking[column] <= room:
            widths[column] += lacking[column]
            room -= lacking[column]
    for n, column in enumerate(sorted(widths, key=lambda c: natural[c] - widths[c])):
        more = max(0, min(natural[column] - widths[column], room // (len(widths) - n)))
        widths[column] += more
        room -= more
    whole = sum(widths.values()) + _GAP * len(widths)
    table = Table(box=None, header_style="bold", pad_edge=False, width=whole)
    for column, width in widths.items():
        table.add_column(Text(column), overflow="fold", width=width)
    for texts in zip(*cells.values(), strict=True):
        table.add_row(*map(Text, texts))
    out.print(table)


def _least(column: str, texts: Sequence[str]) -> int:
    """The width a column keeps on however narrow a terminal."""
    if column == "id" or column.endswith("_id"):
        return max(len(column), *map(len, texts))
    ids = [len(word) for text in texts for word in text.split() if _ID.search(word)]
    return max(len(column), _LEAST, *ids)


def _longest_word(texts: Sequence[str]) -> int:
    return max((len(word) for text in texts for word in text.split()), default=0)


def _cell(value: Any) -> str:
    """A time is told to the second."""
    told = readable(value)
    time = _TIME.fullmatch(told)
    return f"{time[1]} {time[2]}" if time else told


def readable(value: Any) -> str:
    """A value as people read it."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(readable, value)) or "-"
    if isinstance(value, Mapping):
        return harmless(json.dumps(value, ensure_ascii=False, default=str))
    return harmless(str(value))
