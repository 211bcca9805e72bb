"""What the serving path itself says: a promotion or rollback is over when users are answered by that version.

Every gateway that runs is asked, by a real request: a pointer that one of them does not follow is no promotion.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx

from evoplane.settings import Settings
from registry import control, presence, tenants
from registry.tenants import RegistryError

_DEADLINE_S = 20.0
_PAUSE_S = 0.05


class NotServed(RegistryError):
    """A gateway does not serve what the control plane decided."""


def verify(config: Settings, agent: str, version: str, deadline_s: float = _DEADLINE_S) -> float:
    """Ask every gateway which version is champion, then be answered by it; returns the seconds the last one took.

    The requests are real ones under a key made for them (purpose `operate`: no statistics, no training) and revoked
    after. Raises `NotServed`, which names the gateways that serve something else, or nothing.
    """
    started = time.monotonic()
    connection = control.connect(config.control_db)
    model = tenants.get_agent(connection, agent).model
    urls = presence.gateways(config) or [config.gateway_url]
    with probe_key(config, agent) as headers, ThreadPoolExecutor(len(urls)) as pool:

        def until_served(url: str) -> tuple[float, Any]:
            seen: Any = None
            with httpx.Client(base_url=url, timeout=60) as client:
                while time.monotonic() - started < deadline_s:
                    try:
                        seen = _look(client, headers, agent, model)
                    except httpx.TransportError as error:
                        seen = str(error)
                    if seen == (version, version):
                        return time.monotonic() - started, None
                    time.sleep(_PAUSE_S)
            return deadline_s, seen

        asked = list(pool.map(until_served, urls))
    wrong = [f"{url} says (route, answer) = {seen}" for url, (_, seen) in zip(urls, asked, strict=True) if seen]
    if wrong:
        raise NotServed(f"version {version} of {agent} is not what is served: {'; '.join(wrong)}")
    return max(seconds for seconds, _ in asked)


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
