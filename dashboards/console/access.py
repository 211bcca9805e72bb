"""Who looks at the console, and what they may see: a key logs in, its owner's roles say how far.

A login is a random token in a cookie; what it stands for stays here. The key is looked up at every request, so a
revoked one is out at once. Nothing here ever holds the key's secret, only its digest.
"""

from __future__ import annotations

import secrets
import sqlite3
import time
from collections import OrderedDict, deque
from dataclasses import dataclass, field

from registry import roles
from registry.approvals import Signer
from registry.tenants import Key, key_digest, list_agents, list_tenants, load_keys

LIFETIME_S = 12 * 3600.0
IDLE_S = 2 * 3600.0
_MOST = 1000
"""Logins at once: the oldest goes first."""
_TRIES, _TRIES_S = 10, 60.0
"""Wrong keys from one address, and in which time, before it has to wait."""
_SEES_ALL = frozenset({"operator", "analyst", "privacy_officer"})


class Refused(Exception):
    """No login; the message says what to do."""


@dataclass(frozen=True)
class Viewer:
    """Somebody who is logged in."""

    name: str
    key: Key
    agents: frozenset[str]
    tenants: frozenset[str]
    """Whose trajectories they may read."""
    csrf: str
    """What a form of this login must bring back."""

    @property
    def may_approve(self) -> bool:
        return "approve" in self.key.scopes

    @property
    def signer(self) -> Signer:
        """As whom they decide: the key has proven the name."""
        return Signer(name=self.name, key_id=self.key.id, agent=self.key.agent)


@dataclass
class _Login:
    digest: str
    csrf: str
    began: float
    seen: float


@dataclass
class Logins:
    """The logins of this process. For use from several threads: each step is one dictionary operation."""

    known: OrderedDict[str, _Login] = field(default_factory=OrderedDict)
    failed: OrderedDict[str, deque[float]] = field(default_factory=OrderedDict)

    def enter(self, connection: sqlite3.Connection, secret: str, address: str, now: float | None = None) -> str:
        """A new login's token; raises `Refused`."""
        at = time.monotonic() if now is None else now
        tries = self.failed.get(address, deque())
        while tries and at - tries[0] > _TRIES_S:
            tries.popleft()
        if len(tries) >= _TRIES:
            raise Refused(f"Too many wrong keys from this address: wait {_TRIES_S:.0f} seconds.")
        digest = key_digest(secret)
        key = load_keys(connection).get(digest)
        if key is None or "read" not in key.scopes:
            tries.append(at)
            self.failed[address] = tries
            while len(self.failed) > _MOST:
                self.failed.popitem(last=False)
            raise Refused(
                "This key is not in force." if key is None
                else "This key may not read: make one with `evoplane key create --purpose operate`."
            )  # fmt: skip
        token = secrets.token_urlsafe(32)
        self.known[token] = _Login(digest, secrets.token_urlsafe(24), at, at)
        while len(self.known) > _MOST:
            self.known.popitem(last=False)
        return token

    def leave(self, token: str) -> None:
        self.known.pop(token, None)

    def viewer(self, connection: sqlite3.Connection, token: str | None, now: float | None = None) -> Viewer | None:
        """Whose token it is, as their key and roles are at this moment."""
        login = self.known.get(token or "")
        if login is None or token is None:
            return None
        at = time.monotonic() if now is None else now
        key = load_keys(connection).get(login.digest)
        if key is None or at - login.began > LIFETIME_S or at - login.seen > IDLE_S:
            self.leave(token)
            return None
        login.seen = at
        everywhere, single = roles.of(connection, key.owner)
        agents, tenants = frozenset({key.agent}), frozenset({key.tenant})
        if everywhere & _SEES_ALL:
            agents = frozenset(agent.name for agent in list_agents(connection))
            tenants = frozenset(tenant.id for tenant in list_tenants(connection))
        tenants |= {role.partition("/")[0] for role in single if role.partition("/")[2] in _SEES_ALL}
        return Viewer(key.owner, key, agents, tenants, login.csrf)
