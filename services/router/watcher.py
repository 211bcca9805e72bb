"""The gateway's picture of the control database: keys, tenants, agents, versions, routes, all in memory.

The database is asked every 100 ms whether anything was written (one cheap pragma), and its path whether another file
is there now (a restored backup); only then is the picture made anew. No request ever reads the database.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from registry import admission, control, keyring, pointers, tenant_policy, tenants
from registry.admission import Admission
from registry.keyring import TenantKeys
from registry.manifest import AgentVersion, Manifest, Policy
from registry.pointers import Route
from registry.tenant_policy import TenantPolicy
from registry.tenants import Agent, Key, Tenant

_log = logging.getLogger(__name__)

POLL_S = 0.1
"""A promotion or rollback must reach every gateway well within a second."""

UNREGISTERED = "0"
"""Version label of an agent that has no registered version yet: the base model as it is."""


@dataclass(frozen=True)
class Picture:
    """What the control database said at one moment."""

    keys: Mapping[str, Key] = field(default_factory=dict)
    """By the SHA-256 of the secret."""
    tenants: Mapping[str, Tenant] = field(default_factory=dict)
    agents: Mapping[str, Agent] = field(default_factory=dict)
    routes: Mapping[str, Route] = field(default_factory=dict)
    versions: Mapping[str, Mapping[str, AgentVersion]] = field(default_factory=dict)
    """By agent and label."""
    policies: Mapping[str, TenantPolicy] = field(default_factory=dict)
    closed: Mapping[str, Admission] = field(default_factory=dict)
    """Agents whose training wants no more rollouts now."""
    """Of the tenants that have one; see `tenant_policy.DEFAULT`."""
    tenant_keys: Mapping[str, TenantKeys] = field(default_factory=dict)


class ControlWatcher:
    def __init__(self, path: Path, base_model: str, keys_dir: Path | None = None) -> None:
        """`keys_dir` is where the master key is; without one no tenant's keys are read."""
        self._path = path
        self._keys_dir = keys_dir
        self._master: bytes | None = None
        self._base_model = base_model
        self._connection: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None
        """Which file is open (device, inode): the one at the path may be another since."""
        self._data_version = -1
        self._trouble = ""
        """What was last said to be wrong with the database, until it can be read again."""
        self._task: asyncio.Task[None] | None = None
        self._looked = time.monotonic()
        self.picture = Picture()

    @property
    def age_s(self) -> float:
        """Seconds since the database was last looked at with success."""
        return time.monotonic() - self._looked

    async def start(self) -> None:
        control.connect(self._path).close()
        self._master = None if self._keys_dir is None else keyring.master_key(self._keys_dir)
        self.refresh()
        self._task = asyncio.create_task(self._watch())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        if self._connection is not None:
            self._connection.close()

    def refresh(self) -> bool:
        """Look once; True when the picture changed. Raises `OSError` when there is no database, and SQLite's errors."""
        found = self._path.stat()
        if self._connection is None or self._file != (found.st_dev, found.st_ino):
            self._open((found.st_dev, found.st_ino))
        assert self._connection is not None
        data_version = control.data_version(self._connection)
        changed = data_version != self._data_version
        if changed:
            if self._master is not None:
                for tenant in tenants.list_tenants(self._connection):
                    keyring.ensure(self._connection, self._master, tenant.id)
            self.picture = _read(self._connection, self._master)
            self._data_version = data_version
        self._looked = time.monotonic()
        return changed

    def _open(self, file: tuple[int, int]) -> None:
        """Go on with what is at the path now, which was `file` a moment ago: if it is not, the next look opens it."""
        opened, before = control.connect(self._path, must_exist=True), self._connection
        self._connection, self._file, self._data_version = opened, file, -1
        if before is not None:
            before.close()
            _log.warning("the control database %s was replaced: what is there now counts", self._path)

    def version(self, agent: str, label: str) -> AgentVersion | None:
        """A version by its label; `UNREGISTERED` is the base model."""
        known = self.picture.versions.get(agent, {}).get(label)
        if known is None and label == UNREGISTERED:
            return _unregistered(agent, self._base_model)
        return known

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(POLL_S)
            try:
                self.refresh()
            except Exception as error:
                # the last picture goes on being served; the next look is in 100 ms, whatever went wrong
                if self._trouble != repr(error):
                    _log.error("the control database %s can't be read: %r", self._path, error)
                self._trouble = repr(error)
            else:
                if self._trouble:
                    _log.warning("the control database %s can be read again", self._path)
                self._trouble = ""


@lru_cache(maxsize=1024)
def _unregistered(agent: str, base_model: str) -> AgentVersion:
    manifest = Manifest(policy=Policy(base=base_model, served_name=base_model))
    return AgentVersion(agent=agent, version=UNREGISTERED, digest=manifest.digest, manifest=manifest)


def _read(connection: sqlite3.Connection, master: bytes | None) -> Picture:
    """Everything as of one moment: a read transaction, so that a flip is never seen half."""
    connection.execute("BEGIN")
    try:
        agents = {agent.name: agent for agent in tenants.list_agents(connection)}
        return Picture(
            keys=tenants.load_keys(connection),
            tenants={tenant.id: tenant for tenant in tenants.list_tenants(connection)},
            agents=agents,
            routes=pointers.all_routes(connection),
            versions={name: pointers.versions(connection, name) for name in agents},
            policies=tenant_policy.all_policies(connection),
            closed=admission.closed(connection),
            tenant_keys={} if master is None else keyring.load(connection, master),
        )
    finally:
        connection.execute("ROLLBACK")
