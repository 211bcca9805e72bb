"""Asking the worker: which policies it serves, to load one (probed before it may serve), to take one out."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import httpx
import msgspec

from evoplane.settings import Settings
from registry import pointers
from registry.manifest import Policy

_LOAD_TIMEOUT_S = 180.0
_LIST_TIMEOUT_S = 10.0


class PolicyRefused(Exception):
    """The worker would not serve the adapter; the message carries its reason."""


def load(config: Settings, policy: Policy, probe: dict[str, Any] | None) -> None:
    """Have the worker serve the adapter. Loading what is already served is a no-op for the worker.

    Raises `PolicyRefused` when its probe does not match or its directory is unusable.
    """
    if policy.adapter is None or policy.path is None:
        return
    path = (config.var / policy.path).resolve()
    body = {"name": policy.served_name, "path": str(path), "digest": policy.adapter, "probe": probe}
    try:
        reply = httpx.post(f"{config.worker_url}/v1/policies", json=body, timeout=_LOAD_TIMEOUT_S)
    except httpx.TransportError as error:
        raise PolicyRefused(f"the worker does not answer at {config.worker_url}: {error}") from error
    if reply.is_error:
        raise PolicyRefused(f"{policy.served_name}: {reply.status_code} {reply.text[:500]}")


def load_version(config: Settings, connection: sqlite3.Connection, agent: str, version: str) -> None:
    """Have the worker serve a version's weights before users get it; an unknown version is left to the registry.

    What champion and previous need is always loaded, so going there never depends on the worker. Raises
    `PolicyRefused`.
    """
    known = pointers.versions(connection, agent).get(version)
    route = pointers.all_routes(connection).get(agent)
    if known is None or (route is not None and version in (route.champion, route.previous)):
        return
    load(config, known.manifest.policy, known_probe(config, known.manifest.policy.adapter))


def unload(config: Settings, name: str) -> bool:
    """Take a policy out; returns whether it was there."""
    try:
        reply = httpx.delete(f"{config.worker_url}/v1/policies/{name}", timeout=_LOAD_TIMEOUT_S)
    except httpx.TransportError:
        return False
    return reply.is_success


def served(config: Settings) -> list[str]:
    """Names of the adapters the worker serves; none when it does not answer."""
    try:
        reply = httpx.get(f"{config.worker_url}/v1/policies", timeout=_LIST_TIMEOUT_S)
    except httpx.TransportError:
        return []
    return [policy["name"] for policy in reply.json()["policies"]] if reply.is_success else []


def directory(config: Settings, digest: str) -> Path:
    """Where an adapter with this digest is kept."""
    return config.var / "policies" / digest.removeprefix("sha256:")[:12]


def remember_probe(config: Settings, digest: str, probe: dict[str, Any] | None) -> None:
    """Keep what training says the adapter answers, so that a later load is probed too."""
    if probe:
        _probe_file(config, digest).write_bytes(msgspec.json.encode(probe))


def known_probe(config: Settings, digest: str | None) -> dict[str, Any] | None:
    if digest is None or not _probe_file(config, digest).exists():
        return None
    probe: dict[str, Any] = msgspec.json.decode(_probe_file(config, digest).read_bytes())
    return probe


def _probe_file(config: Settings, digest: str) -> Path:
    folder = directory(config, digest)
    return folder.with_name(folder.name + ".probe.json")
