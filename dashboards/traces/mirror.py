"""MLflow's copy of what is worth a look: failures, a few successes beside them, and what was said about each.

Our log is the source; MLflow gets a bounded number at each look and is asked for nothing. It may be away.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import httpx
import msgspec

from dashboards.traces.otlp import request, trace_id, traces
from evaluators.cases import Case
from evoplane import files
from services.proxy.reader import StoreReader

FAILURES, SUCCESSES = 15, 5
"""Trajectories told at one look, at most."""
_REMEMBERED = 5000
_TIMEOUT_S = 30.0


class Told(msgspec.Struct):
    """What MLflow has: trajectory -> number of assessments told, newest last."""

    known: dict[str, int] = {}


def choose(cases: Sequence[Case], told: Told) -> list[Case]:
    """One judged decision a trajectory: the newest failures not told yet, and successes chosen by their ids."""
    newest: dict[str, Case] = {}
    for case in cases:
        if case.success is not None and case.trajectory_id not in told.known:
            newest[case.trajectory_id] = case
    failures = [c for c in newest.values() if not c.success][-FAILURES:]
    drawn = sorted(
        (c for c in newest.values() if c.success), key=lambda c: hashlib.sha256(c.trajectory_id.encode()).digest()
    )
    return failures + drawn[:SUCCESSES]


def tell(
    reader: StoreReader, url: str, experiment: str, cases: Sequence[Case], told: Told, assess: Callable[..., None]
) -> int:
    """Send the chosen ones' traces and assessments; gives how many. Raises httpx's errors.

    `assess(trace_id, name, value, source kind, source id, why)` writes one assessment.
    """
    chosen = choose(cases, told)
    spans = [s for case in chosen for t in traces(reader, case.tenant, case.trajectory_id) for s in t]
    if not spans:
        return 0
    headers = {"content-type": "application/x-protobuf", "x-mlflow-experiment-id": experiment}
    httpx.post(f"{url}/v1/traces", content=request(spans), headers=headers, timeout=_TIMEOUT_S).raise_for_status()
    for case in chosen:
        id = f"tr-{trace_id(case.trajectory_id)}"
        assess(id, "success", bool(case.success), "CODE", "evoplane reward", "")
        for remark in case.corrections:
            assess(id, "user_correction", True, "HUMAN", "end_user", remark.text)
        told.known[case.trajectory_id] = 1 + len(case.corrections)
    while len(told.known) > _REMEMBERED:
        del told.known[next(iter(told.known))]
    return len(chosen)


def read(file: Path) -> Told:
    return msgspec.json.decode(file.read_bytes(), type=Told) if file.exists() else Told()


def write(file: Path, told: Told) -> None:
    files.write_whole(file, msgspec.json.encode(told))
