"""`evoplane bench`: measurements, run from the repository (`benchmarks/README.md` says how each is taken)."""

from __future__ import annotations

from typing import Annotated

import typer

from evoplane.cli.output import Json, err, show

app = typer.Typer(no_args_is_help=True, help="Measure this machine's Evoplane.")


@app.command("store")
def store(
    events: Annotated[int, typer.Option(help="Events of the memory measurement.")] = 1_000_000,
    json: Json = False,
) -> None:
    """Durable events a second against MLflow's traces and bare SQLite; size of a session; memory of an ingest.

    Example: evoplane bench store --json
    """
    from benchmarks.store import store as measure  # only in the repository, and heavy

    show(measure(events, lambda line: err.print(line, style="dim", highlight=False)), json)
