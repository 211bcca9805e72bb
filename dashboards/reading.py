"""Cases from the event log: read again only where something happened."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from evaluators.cases import Case, Key, cases_of
from evaluators.next_state.replies import Reply, replies_of
from evaluators.rewards import RewardRule, rule_of
from evoplane.settings import Settings, settings
from services.proxy.reader import StoreReader, open_reader

_NOBODY_SAW = frozenset({"shadow", "pinned"})


class CaseReader:
    """An agent's recorded decisions, newest trajectories first in each tenant.

    Trajectories that have not grown since the last call are not read again, so polling is cheap. What they are
    worth says `rule`: the agent's own, unless given.
    """

    def __init__(self, reader: StoreReader, agent: str, rule: RewardRule | None = None):
        self._reader = reader
        self._agent = agent
        self._rule = rule or rule_of(settings(), agent)
        self._known: dict[Key, tuple[int, list[Case]]] = {}
        self._tools: dict[tuple[str, str], list[dict[str, Any]]] = {}

    def read(self, since: str | None = None, limit: int | None = None) -> list[Case]:
        """Decisions of trajectories active since `since`, at most `limit` trajectories a tenant, oldest first."""
        cases: list[Case] = []
        for tenant in self._reader.tenants():
            for row in self._reader.trajectories(tenant, agent=self._agent, since=since, limit=limit):
                key = tenant, row.trajectory_id
                length, known = self._known.get(key, (-1, []))
                if length != row.events:
                    known = self._load(tenant, row.trajectory_id)
                    self._known[key] = (row.events, known)
                cases += known
        return sorted(cases, key=lambda c: (c.at, c.event_id))

    def _load(self, tenant: str, trajectory_id: str) -> list[Case]:
        return self.of(tenant, self.records(tenant, trajectory_id))

    def records(self, tenant: str, trajectory_id: str) -> list[dict[str, Any]]:
        """A trajectory's records, resolved."""
        return self._reader.resolve_all(tenant, self._reader.records(tenant, trajectory_id))

    def of(self, tenant: str, records: list[dict[str, Any]]) -> list[Case]:
        """The decisions these records tell of."""
        return cases_of(tenant, records, lambda context: self.tools(tenant, context), rule=self._rule)

    def tools(self, tenant: str, context: str) -> list[dict[str, Any]]:
        """A context's tools as the client sent them."""
        key = (tenant, context)
        if key not in self._tools:
            self._tools[key] = self._reader.tools(tenant, context)
        return self._tools[key]


def served(cases: list[Case], version: str | None = None) -> list[Case]:
    """Real work of the champion: no evaluation, no canary, no shadow; of one version if given."""
    return [
        c
        for c in cases
        if c.purpose == "serve" and c.role == "champion" and (version is None or c.agent_version == version)
    ]


def read_cases(
    config: Settings, agent: str, limit: int, rule: RewardRule | None = None, reader: StoreReader | None = None
) -> list[Case]:
    """Decisions of the newest `limit` trajectories a tenant, oldest first: served or imported, and fit to evaluate."""
    reader = reader or open_reader(config)
    rule = rule or rule_of(config, agent)
    cases: list[Case] = []
    for tenant, records in _evaluable(reader, agent, limit):
        cases += cases_of(tenant, records, lambda context, t=tenant: reader.tools(t, context), rule=rule)  # type: ignore[misc]
    seen = [c for c in cases if c.purpose == "serve" and c.role not in _NOBODY_SAW]
    return sorted(seen, key=lambda c: (c.at, c.event_id))


def read_replies(config: Settings, agent: str, limit: int) -> dict[str, list[Reply]]:
    """What users said after answers, by tenant, in the newest `limit` trajectories of each that may be evaluated."""
    rule = rule_of(config, agent)
    found: dict[str, list[Reply]] = {}
    for tenant, records in _evaluable(open_reader(config), agent, limit):
        found.setdefault(tenant, []).extend(replies_of(records, rule, tenant))
    return found


def _evaluable(reader: StoreReader, agent: str, limit: int) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Tenants and the resolved records of trajectories that may be evaluated."""
    for tenant in reader.tenants():
        for row in reader.trajectories(tenant, agent=agent, limit=limit):
            records = reader.resolve_all(tenant, reader.records(tenant, row.trajectory_id))
            eligibility = ((records[0] if records else {}).get("gov") or {}).get("eligibility") or {}
            if eligibility.get("evaluate") != "deny":
                yield tenant, records
