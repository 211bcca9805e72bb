"""Replayed against live improvement in a deployment that ran: out of its decision records and approvals."""

from __future__ import annotations

import re
import sqlite3
from typing import Any

import msgspec

from benchmarks.replay.simulation import agrees
from evaluators.intervals import Interval
from registry import approvals, decisions, pointers

_WRITTEN = re.compile(r"(-?[\d.]+) \[(-?[\d.]+), (-?[\d.]+)\] \(n=(\d+)\)")


class Delivered(msgspec.Struct, frozen=True):
    """A version whose canary was measured, beside what replay had promised for it."""

    agent: str
    version: str
    surface: str
    replay: Interval
    canary: Interval

    @property
    def agrees(self) -> bool:
        return agrees(self.replay, self.canary)


def delivered(connection: sqlite3.Connection, agent: str) -> list[Delivered]:
    """Every version of an agent that passed a canary and came from a decision with a replay, oldest first."""
    known = pointers.versions(connection, agent)
    found = []
    for approval in approvals.list_approvals(connection, agent):
        version = known.get(approval.version)
        seen = interval_in((approval.evidence.get("canary") or {}).get("difference") or "")
        decision = (version.lineage if version else {}).get("decision")
        if version is None or seen is None or not decision:
            continue
        record = decisions.get(connection, decision)
        replay = (record["candidates"].get(record["chosen"]) or {}).get("replay")
        if replay and replay["improvement"]["n"]:
            promised = msgspec.convert(replay["improvement"], Interval)
            found.append(Delivered(agent, approval.version, version.intervention, promised, seen))
    return found


def interval_in(text: Any) -> Interval | None:
    """An interval written as `Interval` writes itself; None where there is none."""
    found = _WRITTEN.search(str(text))
    if not found:
        return None
    value, low, high = (float(x) for x in found.groups()[:3])
    return Interval(value=value, low=low, high=high, n=int(found[4]))
