"""Who served when: the champions of an agent one after the other, as the audit log has them."""

from __future__ import annotations

import sqlite3
from datetime import datetime

import msgspec

from registry import audit
from registry.tenants import RegistryError


class Period(msgspec.Struct, frozen=True, kw_only=True):
    """A time in which one version was champion."""

    version: str
    since: str
    until: str | None
    """None: it still is."""
    action: str
    """`promote` or `rollback`: how it began."""
    actor: str
    why: str
    ended_by: str = ""
    """How, by whom and why it ended."""


class Exposure(msgspec.Struct, frozen=True, kw_only=True):
    """A time in which a version may have answered users, as champion or as canary."""

    role: str
    since: str
    until: str | None


def champions(connection: sqlite3.Connection, agent: str) -> list[Period]:
    """Every champion with its time, oldest first."""
    periods: list[Period] = []
    for entry in audit.entries(connection, agent):
        if entry.action not in ("promote", "rollback") or "champion" not in entry.detail:
            continue
        version, why = str(entry.detail["champion"]), str(entry.detail.get("why") or "")
        if periods and periods[-1].version == version:
            continue
        if periods:
            ended = f"{entry.action} by {entry.actor}: {why}"
            periods[-1] = msgspec.structs.replace(periods[-1], until=entry.at, ended_by=ended)
        begun = Period(
            version=version, since=entry.at, until=None, action=entry.action, actor=entry.actor, why=why
        )  # fmt: skip
        periods.append(begun)
    return periods


def before(connection: sqlite3.Connection, agent: str, version: str, at: str) -> str:
    """The champion that served before `version` came to users, seen from an answer it gave at `at`.

    Of a canary's answer that is the champion of that time. Raises `RegistryError` when nothing served before it.
    """
    moment = datetime.fromisoformat(at)
    earlier = [p for p in champions(connection, agent) if datetime.fromisoformat(p.since) <= moment]
    if earlier and earlier[-1].version != version:
        return earlier[-1].version
    others = [p.version for p in earlier if p.version != version]
    if not others:
        raise RegistryError(f"no version of {agent} served before {version} did")
    return others[-1]


def last_taken_back(connection: sqlite3.Connection, agent: str) -> str | None:
    """The version that users were last moved away from: a champion by a rollback, or a canary that was aborted."""
    taken: str | None = None
    champion: str | None = None
    for entry in audit.entries(connection, agent):
        detail = entry.detail
        if entry.action == "canary.stop" and detail.get("end") == "aborted":
            taken = str(detail["version"])
        elif entry.action == "rollback" and champion is not None and detail.get("champion") != champion:
            taken = champion
        champion = str(detail["champion"]) if detail.get("champion") is not None else champion
    return taken


def exposures(connection: sqlite3.Connection, agent: str, version: str) -> list[Exposure]:
    """When users may have been answered by a version."""
    found = [
        Exposure(role="champion", since=p.since, until=p.until)
        for p in champions(connection, agent)
        if p.version == version
    ]
    begun: str | None = None
    for entry in audit.entries(connection, agent):
        mine = entry.detail.get("version") == version
        if entry.action == "canary.start" and mine and begun is None:
            begun = entry.at
        ends = entry.action in ("promote", "rollback", "canary.stop") or (entry.action == "canary.start" and not mine)
        if begun is not None and ends:
            found.append(Exposure(role="canary", since=begun, until=entry.at))
            begun = None
    if begun is not None:
        found.append(Exposure(role="canary", since=begun, until=None))
    return sorted(found, key=lambda e: e.since)
