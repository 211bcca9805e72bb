"""Telling the gateway: signals found by evaluators go through `/v1/feedback` like anybody's."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import httpx

_KEY_WAIT_S = 5.0
"""Gateways see a new key within a tenth of a second; a slow one may need longer."""
_PAUSE_S = 0.1
_AT_ONCE = 500
_TIMEOUT_S = 30.0


class NotTaken(Exception):
    """The gateway did not take the signals; those of earlier batches it has. Posting again is harmless."""


def post(gateway_url: str, key: str, signals: Sequence[dict[str, Any]], client: httpx.Client | None = None) -> int:
    """Post signals with a key of their tenant; returns how many are about something the log has. Raises `NotTaken`."""
    bound = 0
    http = client or httpx.Client(timeout=_TIMEOUT_S)
    try:
        for start in range(0, len(signals), _AT_ONCE):
            reply = _sent(http, gateway_url, key, signals[start : start + _AT_ONCE])
            if reply.status_code != httpx.codes.ACCEPTED:
                raise NotTaken(f"the gateway refused with {reply.status_code}: {reply.text[:500]}")
            bound += sum(reply.json()["bound"])
    except httpx.TransportError as error:
        raise NotTaken(f"the gateway does not answer at {gateway_url}: {error}") from error
    finally:
        if client is None:
            http.close()
    return bound


def _sent(http: httpx.Client, gateway_url: str, key: str, signals: Sequence[dict[str, Any]]) -> httpx.Response:
    """The gateway's answer; a key it doesn't know yet is tried again for a while."""
    deadline = time.monotonic() + _KEY_WAIT_S
    while True:
        reply = http.post(f"{gateway_url}/v1/feedback", json=list(signals), headers={"authorization": f"Bearer {key}"})
        if reply.status_code != httpx.codes.UNAUTHORIZED or time.monotonic() > deadline:
            return reply
        time.sleep(_PAUSE_S)
