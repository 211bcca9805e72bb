"""Session → agent version: sticky, weighted, and at once obedient to the pointers."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal

from registry import tenant_policy
from registry.manifest import AgentVersion
from registry.pointers import Route
from services.proxy.sessions import Session
from services.router.watcher import UNREGISTERED, ControlWatcher

Role = Literal["champion", "canary", "shadow", "pinned"]


@dataclass(frozen=True)
class Served:
    """The version that answers a request, and why it is this one."""

    version: AgentVersion
    role: Role

    @property
    def unregistered(self) -> bool:
        """Has the agent no registered version yet?"""
        return self.version.version == UNREGISTERED


class UnknownVersion(Exception):
    """A version was asked for by name that the registry does not have."""


class Router:
    def __init__(self, control: ControlWatcher) -> None:
        self._control = control

    def serve(self, session: Session, pinned: str | None = None) -> Served:
        """The version for this request; remembered in the session, as long as it is served at all."""
        agent = session.key.agent
        if pinned is not None:
            return Served(self._version(agent, pinned), "pinned")
        route = self._control.picture.routes.get(agent)
        if route is None:
            return Served(self._version(agent, UNREGISTERED), "champion")
        label = session.version
        if label is None or label not in (route.champion, route.canary) or not self._allowed(label, route, session):
            label = assign(route, session.session_id, session.key.tenant, self._exposure(session.key.tenant))
            session.version = label
        return Served(self._version(agent, label), "canary" if label == route.canary else "champion")

    def shadow(self, session: Session) -> Served | None:
        """The version this session is mirrored to, if it is."""
        route = self._control.picture.routes.get(session.key.agent)
        if route is None or route.shadow is None or session.key.purpose != "serve":
            return None
        if self._exposure(session.key.tenant) == "none":
            return None
        if _share(session.session_id, f"shadow/{route.shadow}") >= route.shadow_share:
            return None
        version = self._control.version(session.key.agent, route.shadow)
        return Served(version, "shadow") if version is not None else None

    def route(self, agent: str) -> Route | None:
        return self._control.picture.routes.get(agent)

    def _allowed(self, label: str, route: Route, session: Session) -> bool:
        """May the session stay where it is? A tenant that is not in the canary (any more) loses its sessions there."""
        tenant = session.key.tenant
        return label != route.canary or weight_of(route, tenant, self._exposure(tenant)) > 0

    def _exposure(self, tenant: str) -> str:
        return self._control.picture.policies.get(tenant, tenant_policy.DEFAULT).exposure

    def _version(self, agent: str, label: str) -> AgentVersion:
        version = self._control.version(agent, label)
        if version is None:
            raise UnknownVersion(f"agent {agent!r} has no version {label!r}")
        return version


def assign(route: Route, session_id: str, tenant: str, exposure: str = "canary") -> str:
    """Champion or canary for a session, the same on every gateway and after every restart."""
    weight = weight_of(route, tenant, exposure)
    if route.canary is None or weight == 0:
        return route.champion
    return route.canary if _share(session_id, route.salt) < weight else route.champion


def weight_of(route: Route, tenant: str, exposure: str = "canary") -> float:
    """The share of a tenant's sessions that the canary gets: none of a tenant that it is not for, or that opted out."""
    chosen = route.canary_tenants is None or tenant in route.canary_tenants
    if route.canary is None or not chosen or exposure != "canary":
        return 0.0
    return route.canary_weights.get(tenant, route.canary_weight)


def _share(session_id: str, salt: str) -> float:
    """A number in [0, 1) that depends on nothing but the session and the salt."""
    digest = hashlib.blake2b(f"{salt}\0{session_id}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64
