"""What the serving path itself says: a promotion is over when users are answered by the new version."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from evoplane.settings import Settings
from registry import control, tenants

_DEADLINE_S = 20.0
_PAUSE_S = 0.1


class NotServed(Exception):
    """The gateway does not serve what the control plane decided."""


def verify(config: Settings, agent: str, version: str) -> float:
    """Ask the gateway which version is champion, then be answered by it; returns the seconds it took.

    The request is a real one under a key made for it (purpose `operate`: no statistics, no training) and
    revoked after. Raises `NotServed`.
    """
    started = time.monotonic()
    connection = control.connect(config.control_db)
    model = tenants.get_agent(connection, agent).model
    with probe_key(config, agent) as headers, httpx.Client(base_url=config.gateway_url, timeout=60) as client:
        seen: Any = None
        while time.monotonic() - started < _DEADLINE_S:
            try:
                seen = _look(client, headers, agent, model)
            except httpx.TransportError as error:
                seen = str(error)
            if seen == (version, version):
                return time.monotonic() - started
            time.sleep(_PAUSE_S)
    raise NotServed(f"version {version} of {agent} is not what the gateway serves: (route, answer) = {seen}")


@contextmanager
def probe_key(config: Settings, agent: str) -> Iterator[dict[str, str]]:
    """Headers with a key that exists only inside the block."""
    connection = control.connect(config.control_db)
    owners = tenants.list_tenants(connection)
    if not owners:
        raise NotServed("there is no tenant to probe the gateway with")
    key, secret = tenants.create_key(connection, owners[0].id, agent, "operate", owner="deliver")
    try:
        yield {"authorization": f"Bearer {secret}"}
    finally:
        tenants.revoke_key(connection, key.id)


def _look(client: httpx.Client, headers: dict[str, str], agent: str, model: str) -> tuple[Any, Any]:
    """(champion by the route endpoint, version that answered a request)."""
    route = client.get(f"/v1/agents/{agent}/route", headers=headers)
    if route.is_error:
        return f"{route.status_code} {route.text[:200]}", None
    body = {"model": model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}
    answer = client.post("/v1/chat/completions", json=body, headers=headers)
    return route.json().get("champion"), answer.headers.get("x-evoplane-agent-version")
