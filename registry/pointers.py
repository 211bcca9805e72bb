"""Which versions an agent's users get: champion, canary, shadow, previous, as one atomic row.

Every gateway watches the row and obeys within a fraction of a second. A flip is one transaction
that also writes the audit log, so what is served and why can never disagree.
"""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Mapping

import msgspec

from registry import audit, canaries, candidates
from registry.control import data_version, now, transaction
from registry.manifest import AgentVersion
from registry.tenants import RegistryError

__all__ = ["Route", "RouteChanged", "all_routes", "clear_canary", "clear_shadow", "data_version", "delete_version",
           "put_version", "read_route", "resolve", "rollback", "set_canary_weight", "set_champion", "start_canary",
           "start_shadow", "versions"]  # fmt: skip


class RouteChanged(RegistryError):
    """The champion is not the one the caller took its decision about."""


class Route(msgspec.Struct, frozen=True, kw_only=True):
    agent: str
    champion: str
    previous: str | None = None
    withdrawn: str | None = None
    """The version a rollback last moved users away from: `previous`, but not to be served by that name."""
    canary: str | None = None
    canary_weight: float = 0.0
    """Share of sessions, 0 to 1."""
    canary_tenants: tuple[str, ...] | None = None
    """Tenants the canary may touch; None is all that have not opted out."""
    canary_weights: dict[str, float] = {}
    """Share of a tenant's sessions, where it is not `canary_weight`."""
    shadow: str | None = None
    shadow_share: float = 0.0
    shadow_requests: int | None = None
    """Requests a gateway may spend on this stage; None is without limit."""
    shadow_tokens: int | None = None
    shadow_since: str = ""
    """When the stage began: its budget is its own."""
    salt: str = ""
    """Changes with every canary, so that the same sessions aren't always the ones exposed."""
    revision: int = 0
    changed_at: str = ""


def read_route(connection: sqlite3.Connection, agent: str) -> Route:
    """Raises `RegistryError` when the agent has no serving version yet."""
    row = connection.execute("SELECT body FROM routes WHERE agent=?", (agent,)).fetchone()
    if row is None:
        raise RegistryError(f"agent {agent!r} has no serving version: register one first")
    return msgspec.json.decode(row["body"], type=Route)


def all_routes(connection: sqlite3.Connection) -> dict[str, Route]:
    rows = connection.execute("SELECT agent, body FROM routes")
    return {row["agent"]: msgspec.json.decode(row["body"], type=Route) for row in rows}


def put_version(connection: sqlite3.Connection, version: AgentVersion) -> None:
    """Make a version known to the gateways. A label never changes its manifest."""
    known = versions(connection, version.agent).get(version.version)
    if known is not None and known.digest != version.digest:
        raise RegistryError(f"{version.agent} version {version.version} exists with another manifest")
    connection.execute(
        "INSERT INTO versions VALUES (?,?,?,?,?) ON CONFLICT (agent, version) DO UPDATE SET body=excluded.body",
        (
            version.agent,
            version.version,
            version.digest,
            msgspec.json.encode(version),
            version.created_at or now(),
        ),
    )


def versions(connection: sqlite3.Connection, agent: str) -> dict[str, AgentVersion]:
    rows = connection.execute("SELECT version, body FROM versions WHERE agent=? ORDER BY created_at", (agent,))
    return {row["version"]: msgspec.json.decode(row["body"], type=AgentVersion) for row in rows}


def set_champion(
    connection: sqlite3.Connection, agent: str, version: str, why: str, actor: str, expected: str | None = None
) -> Route:
    """Promote: all new requests get `version`; the old champion stays warm as `previous`.

    With `expected`, raises `RouteChanged` when another version is champion by now.
    """
    with transaction(connection):
        _require(connection, agent, version)
        route = all_routes(connection).get(agent)
        if route is not None and route.champion == version:
            return route
        _expect(route, expected)
        if route is not None:
            _end_canary(connection, agent, "superseded", f"version {version} is champion now")
            candidates.settle(connection, agent, route.champion, "superseded", f"by version {version}", actor)
        changed = Route(
            agent=agent,
            champion=version,
            previous=route.champion if route else None,
            revision=route.revision if route else 0,
        )
        return _write(connection, changed, actor, "promote", {"from": route and route.champion, "why": why})


def start_shadow(
    connection: sqlite3.Connection,
    agent: str,
    version: str,
    share: float,
    actor: str = "deliver",
    requests: int | None = None,
    tokens: int | None = None,
) -> Route:
    """Mirror a share of the sessions to `version`; `requests` and `tokens` are what a gateway may spend on it."""
    with transaction(connection):
        _require(connection, agent, version)
        route = _change(
            read_route(connection, agent),
            shadow=version,
            shadow_share=_share(share),
            shadow_requests=requests,
            shadow_tokens=tokens,
            shadow_since=now(),
        )
        detail = {"version": version, "share": share, "requests": requests, "tokens": tokens}
        return _write(connection, route, actor, "shadow.start", detail)


def clear_shadow(
    connection: sqlite3.Connection, agent: str, why: str = "", actor: str = "deliver", only: str | None = None
) -> Route:
    """Stop mirroring; with `only`, if it is that version that is mirrored."""
    with transaction(connection):
        route = read_route(connection, agent)
        if route.shadow is None or (only is not None and route.shadow != only):
            return route
        cleared = _change(route, shadow=None, shadow_share=0.0)
        return _write(connection, cleared, actor, "shadow.stop", {"version": route.shadow, "why": why})


def start_canary(
    connection: sqlite3.Connection,
    agent: str,
    version: str,
    weight: float,
    tenants: tuple[str, ...] | None = None,
    actor: str = "deliver",
    weights: Mapping[str, float] | None = None,
) -> Route:
    """Expose `version` to a share of new sessions, `weights` for single tenants. Another candidate's canary ends
    with it, and so does what was learned about that one: a new candidate's test begins from nothing."""
    with transaction(connection):
        _require(connection, agent, version)
        route = read_route(connection, agent)
        if route.champion == version:
            raise RegistryError(f"version {version} is already the champion of {agent}")
        salt = route.salt if route.canary == version else secrets.token_hex(8)
        own = {tenant: _share(share) for tenant, share in (weights or {}).items()}
        canary = canaries.start(connection, agent, version, route.champion, _share(weight), tenants)
        changed = _change(
            route, canary=version, canary_weight=weight, canary_tenants=tenants, canary_weights=own, salt=salt
        )
        detail = {"version": version, "weight": weight, "id": canary.id, "tenants": tenants, "weights": own}
        return _write(connection, changed, actor, "canary.start", detail)


def set_canary_weight(
    connection: sqlite3.Connection, agent: str, weight: float, actor: str = "deliver", only: str | None = None
) -> Route:
    with transaction(connection):
        route = read_route(connection, agent)
        if only is not None and route.canary != only:
            return route
        if route.canary is None:
            raise RegistryError(f"{agent} has no canary")
        changed = _change(route, canary_weight=_share(weight))
        canary = canaries.running(connection, agent)
        if canary is not None:
            canaries.reweigh(connection, canary, weight)
        return _write(connection, changed, actor, "canary.weight", {"version": route.canary, "weight": weight})


def clear_canary(
    connection: sqlite3.Connection,
    agent: str,
    why: str = "",
    actor: str = "deliver",
    only: str | None = None,
    end: canaries.End = "withdrawn",
) -> Route:
    """Take the canary out: every new request, in whatever session, is on the champion again.

    `end` says how it ended. With `only`, if it is that version that is the canary.
    """
    with transaction(connection):
        route = read_route(connection, agent)
        if route.canary is None or (only is not None and route.canary != only):
            return route
        _end_canary(connection, agent, end, why)
        cleared = _change(route, canary=None, canary_weight=0.0, canary_tenants=None, canary_weights={})
        return _write(connection, cleared, actor, "canary.stop", {"version": route.canary, "end": end, "why": why})


def rollback(
    connection: sqlite3.Connection, agent: str, to: str, why: str, actor: str, expected: str | None = None
) -> Route:
    """Serve `to` (a version label, or `previous`) again, at once and without gates; canary and shadow end too.

    `previous` is refused when it is the version the last rollback moved away from: asked for twice, a
    rollback must not bring the trouble back. With `expected`, raises `RouteChanged` when another version is
    champion by now.
    """
    with transaction(connection):
        route = read_route(connection, agent)
        _expect(route, expected)
        target = route.previous if to == "previous" else to
        if target is None:
            raise RegistryError(f"{agent} has no previous version to roll back to")
        if to == "previous" and target == route.withdrawn:
            raise RegistryError(
                f"{agent} was just rolled back from version {target} to {route.champion}; to serve another one,"
                f" name it: `evoplane rollback --agent {agent} --to VERSION`"
            )
        _require(connection, agent, target)
        if target == route.champion and route.canary is None and route.shadow is None:
            return route
        stays = target == route.champion
        _end_canary(connection, agent, "withdrawn", why)
        if not stays:
            candidates.settle(connection, agent, route.champion, "rolled_back", why, actor)
            candidates.settle(connection, agent, target, "serving", why, actor)
        changed = Route(
            agent=agent,
            champion=target,
            previous=route.previous if stays else route.champion,
            withdrawn=route.withdrawn if stays else route.champion,
            revision=route.revision,
        )
        detail = {"from": route.champion, "to": target, "canary": route.canary, "why": why}
        return _write(connection, changed, actor, "rollback", detail)


def delete_version(connection: sqlite3.Connection, agent: str, version: str) -> None:
    """Forget a version; raises `RegistryError` for one that a pointer names, or that is on its way to users."""
    with transaction(connection):
        _require(connection, agent, version)
        route = all_routes(connection).get(agent)
        names = ("champion", "previous", "canary", "shadow")
        named = [name for name in names if route is not None and getattr(route, name) == version]
        if named:
            raise RegistryError(f"version {version} of {agent} is its {named[0]}: move that pointer first")
        known = candidates.get(connection, agent, version)
        if known is not None and known.state in ("accepted", "shadow", "canary", "approval"):
            raise RegistryError(f"version {version} of {agent} is being delivered (state {known.state})")
        connection.execute("DELETE FROM versions WHERE agent=? AND version=?", (agent, version))
        audit.append(connection, "cli", "version.delete", agent, {"version": version})


def resolve(connection: sqlite3.Connection, agent: str, name: str) -> AgentVersion:
    """A version by its label or by a pointer's name (`champion`, `previous`, `canary`, `shadow`).

    Raises `RegistryError` when the pointer is not set, or names what does not exist.
    """
    label = name
    if name in ("champion", "previous", "canary", "shadow"):
        pointed = getattr(read_route(connection, agent), name)
        if pointed is None:
            raise RegistryError(f"{agent} has no {name}")
        label = pointed
    known = versions(connection, agent).get(label)
    if known is None:
        raise RegistryError(
            f"{agent} has no version {label!r}" + (f", which its {name} names" if label != name else "")
        )
    return known


def _end_canary(connection: sqlite3.Connection, agent: str, end: canaries.End, why: str) -> None:
    canary = canaries.running(connection, agent)
    if canary is not None:
        canaries.move(connection, canary, end, why)


def _write(
    connection: sqlite3.Connection, route: Route, actor: str, action: str, detail: Mapping[str, object]
) -> Route:
    route = _change(route, revision=route.revision + 1, changed_at=now())
    connection.execute(
        "INSERT INTO routes VALUES (?,?) ON CONFLICT (agent) DO UPDATE SET body=excluded.body",
        (route.agent, msgspec.json.encode(route)),
    )
    detail = {**detail, "champion": route.champion, "revision": route.revision}
    audit.append(connection, actor, action, route.agent, detail)
    return route


def _change(route: Route, **fields: object) -> Route:
    return msgspec.structs.replace(route, **fields)


def _expect(route: Route | None, champion: str | None) -> None:
    if champion is not None and (route is None or route.champion != champion):
        serving = route.champion if route else None
        raise RouteChanged(f"version {serving} is champion now, not {champion}")


def _require(connection: sqlite3.Connection, agent: str, version: str) -> None:
    if version not in versions(connection, agent):
        raise RegistryError(f"{agent} has no version {version!r}")


def _share(value: float) -> float:
    if not 0 <= value <= 1:
        raise RegistryError(f"a share of sessions lies between 0 and 1, not {value}")
    return value
