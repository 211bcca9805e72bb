"""Newly judged trajectories: read from the log since a cursor, each exactly once, at its first judgement.

Judgements are annotations; the log gives them in the order of their commits. Whether a trajectory was judged before is
asked of its own records up to there, so nothing has to be remembered but the cursor. What a trajectory is worth later
changes statistics, not the triggers: an outcome that came in is never taken back.
"""

from __future__ import annotations

from collections.abc import Iterator

from dashboards.reading import CaseReader, served
from evaluators.cases import Case
from services.proxy.store import StoreReader

_KINDS = ("reward", "critique", "preference", "label")
_BATCH = 1000


def newly_judged(
    reader: StoreReader, agent: str, version: str, cursor: dict[str, int]
) -> Iterator[tuple[list[list[Case]], dict[str, int]]]:
    """Batches of (the champion's decisions by trajectory, the cursor after them)."""
    cases = CaseReader(reader, agent)
    position = dict(cursor)
    while True:
        found, after = reader.events(agent, after=position, kinds=_KINDS, limit=_BATCH)
        if not found:
            return
        first: dict[tuple[str, str], int] = {}
        for tenant, record in found:
            key = tenant, record["trajectory_id"]
            first[key] = min(first.get(key, record["seq"]), record["seq"])
        judged = [_judged(cases, tenant, id, seq, version) for (tenant, id), seq in first.items()]
        position = after
        yield [members for members in judged if members], after


def _judged(cases: CaseReader, tenant: str, id: str, seq: int, version: str) -> list[Case]:
    """A trajectory's decisions if these records are the first to judge it, else nothing."""
    records = cases.records(tenant, id)
    now = served(cases.of(tenant, records), version)
    if not any(c.success is not None for c in now):
        return []
    before = cases.of(tenant, [r for r in records if r.get("seq", 0) < seq])
    return [] if any(c.success is not None for c in before) else now
