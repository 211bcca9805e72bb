"""`evoplane bench store`: what the event log can take, next to MLflow's traces and to SQLite alone.

How each figure is taken is said in `benchmarks/README.md` and in the module that takes it.
"""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.group_commit import group_commit
from benchmarks.ingest import EVENTS, ingest
from benchmarks.mlflow_traces import mlflow_traces
from benchmarks.session_size import session_size

Progress = Callable[[str], None]


def store(events: int = EVENTS, progress: Progress = lambda _: None) -> dict[str, float]:
    """All figures of the store, by name."""
    figures: dict[str, float] = {}
    progress("a session of 100 turns")
    figures |= session_size()
    progress("durable events, and a bare SQLite loop in turns with them")
    figures |= group_commit()
    progress("MLflow's traces (its server takes up to a minute to start)")
    figures |= mlflow_traces()
    progress(f"{events:,} events, watching the memory")
    figures |= ingest(events)
    return figures
