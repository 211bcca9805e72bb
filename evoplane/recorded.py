"""An agent's recorded decisions, read from the log for a command or a flow."""

from __future__ import annotations

from evaluators.cases import Case, cases_of
from evaluators.rewards import RewardRule, rule_of
from evoplane.settings import Settings
from services.proxy.store import StoreReader, open_reader

_NOBODY_SAW = frozenset({"shadow", "pinned"})


def read_cases(
    config: Settings, agent: str, limit: int, rule: RewardRule | None = None, reader: StoreReader | None = None
) -> list[Case]:
    """Decisions of the newest `limit` trajectories a tenant, oldest first: served or imported, and fit to evaluate."""
    reader = reader or open_reader(config)
    rule = rule or rule_of(config, agent)
    cases: list[Case] = []
    for tenant in reader.tenants():
        for row in reader.trajectories(tenant, agent=agent, limit=limit):
            records = [reader.resolve(tenant, r) for r in reader.records(tenant, row.trajectory_id)]
            eligibility = ((records[0] if records else {}).get("gov") or {}).get("eligibility") or {}
            if eligibility.get("evaluate") != "deny":
                cases += cases_of(tenant, records, lambda context, t=tenant: reader.tools(t, context), rule=rule)  # type: ignore[misc]
    seen = [c for c in cases if c.purpose == "serve" and c.role not in _NOBODY_SAW]
    return sorted(seen, key=lambda c: (c.at, c.event_id))
