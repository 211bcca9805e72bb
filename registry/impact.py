"""Who was served what: the sessions that a version answered while it was exposed, and whether somebody corrected it."""

from __future__ import annotations

import sqlite3
from typing import Any, Protocol

import msgspec

from registry import history, pointers
from registry.tenants import RegistryError

_CORRECTIONS = frozenset({"user_correction", "demonstration", "escalation", "ticket_reopened"})
"""Signals that say a person put it right, or asked for that."""


class Log(Protocol):
    """What is needed of the event log (`services.proxy.store.StoreReader`)."""

    def tenants(self) -> list[str]: ...
    def trajectories(self, tenant: str, agent: str | None = ..., since: str | None = ...) -> list[Any]: ...
    def records(self, tenant: str, trajectory_id: str) -> list[dict[str, Any]]: ...
    def find_event(self, event_id: str, tenant: str | None = ...) -> tuple[str, str] | None: ...


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """One session that the version answered."""

    tenant: str
    session_id: str
    trajectory_id: str
    roles: tuple[str, ...]
    events: tuple[str, ...]
    """Its answers, in order."""
    first: str
    last: str
    corrected: tuple[str, ...] = ()
    """Signals by which somebody corrected an answer."""
    acted: tuple[str, ...] = ()
    """Tools that were run on the word of those answers."""


class Impact(msgspec.Struct, frozen=True, kw_only=True):
    agent: str
    version: str
    exposures: list[history.Exposure]
    since: str | None
    until: str | None
    sessions: list[Served]

    @property
    def answers(self) -> int:
        return sum(len(session.events) for session in self.sessions)

    @property
    def corrected(self) -> int:
        """Sessions in which somebody corrected an answer."""
        return sum(bool(session.corrected) for session in self.sessions)


def impact(
    connection: sqlite3.Connection,
    log: Log,
    agent: str,
    version: str | None = None,
    since: str | None = None,
    until: str | None = None,
) -> Impact:
    """What users were served by a version: by default the one that they were last moved away from.

    `since` and `until` (RFC 3339) narrow the time. Answers to probes and evaluations are nobody's and not listed.
    """
    if version is None:
        version = history.last_taken_back(connection, agent)
        if version is None:
            raise RegistryError(f"nothing of {agent} was rolled back or aborted: name a version with --version")
    if version not in pointers.versions(connection, agent):
        raise RegistryError(f"{agent} has no version {version!r}")
    exposed = history.exposures(connection, agent, version)
    start = since or (exposed[0].since if exposed else None)
    sessions: list[Served] = []
    for tenant in log.tenants():
        for row in log.trajectories(tenant, agent=agent, since=start):
            served = _served(tenant, log.records(tenant, row.trajectory_id), version, since, until)
            if served is not None:
                sessions.append(served)
    return Impact(
        agent=agent, version=version, exposures=exposed, since=since, until=until,
        sessions=sorted(sessions, key=lambda s: s.first),
    )  # fmt: skip


def _served(
    tenant: str, records: list[dict[str, Any]], version: str, since: str | None, until: str | None
) -> Served | None:
    answers = []
    for record in records:
        tags = (record.get("m") or {}).get("tags") or {}
        mine = record.get("kind") == "llm_call" and str(tags.get("agent_version")) == version
        public = tags.get("role", "champion") in ("champion", "canary") and tags.get("purpose", "serve") == "serve"
        if mine and public and (since is None or record["time"] >= since) and (until is None or record["time"] < until):
            answers.append(record)
    if not answers:
        return None
    header = next((r for r in records if r["record"] == "trajectory"), {})
    ids = {answer["id"] for answer in answers}
    corrected = []
    acted = []
    for record in records:
        if record["record"] == "annotation" and record.get("name") in _CORRECTIONS:
            named = {t["event_id"] for t in record.get("targets") or [] if t.get("event_id")}
            if not named or named & ids:
                corrected.append(str(record["name"]))
        elif record.get("kind") == "tool_call" and any(c.get("id") in ids for c in record.get("causes") or []):
            acted.append(str((record.get("a") or {}).get("name") or ""))
    roles = [((a.get("m") or {}).get("tags") or {}).get("role", "champion") for a in answers]
    return Served(
        tenant=tenant,
        session_id=str(header.get("session_id") or answers[0]["trajectory_id"]),
        trajectory_id=answers[0]["trajectory_id"],
        roles=tuple(dict.fromkeys(roles)),
        events=tuple(answer["id"] for answer in answers),
        first=answers[0]["time"],
        last=answers[-1]["time"],
        corrected=tuple(dict.fromkeys(corrected)),
        acted=tuple(dict.fromkeys(filter(None, acted))),
    )
