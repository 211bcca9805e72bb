"""What evolutions of one agent may cost within a day, counted from its decision records."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from evoplane.settings import Settings
from registry import decisions


def over_budget(config: Settings, connection: sqlite3.Connection, agent: str) -> str | None:
    """Why no further evolution may start today, counted from the agent's decision records; None when one may."""
    records = decisions.list_decisions(connection, agent)
    replayed = [r for r in _today(records) if any(c["replay"] for c in r["candidates"].values())]
    trained = trained_today(records)
    if len(replayed) >= config.evolve.budget_per_day:
        return f"{len(replayed)} evolutions of {agent} within a day; the budget is {config.evolve.budget_per_day}"
    if trained >= config.evolve.trainings_per_day:
        return f"{trained} trainings for {agent} within a day; the budget is {config.evolve.trainings_per_day}"
    return None


def _today(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    since = (datetime.now(UTC) - timedelta(days=1)).isoformat()
    return [r for r in records if r["at"] >= since]


def trained_today(records: Sequence[dict[str, Any]]) -> int:
    """Candidates trained within a day, by decision records of one agent."""
    return sum(bool(c.get("training")) for r in _today(records) for c in r["candidates"].values())
