"""Alerts to other systems: signed POSTs from an outbox that survives, tried again with a bound, failures shown.

The body is the alert as JSON. `x-evoplane-signature` is `t=<unix time>,v1=<hex HMAC-SHA256 of "<t>.<body>">`, the form
Stripe made known: a receiver checks both the sender and the age. `x-evoplane-delivery` is the same each time an alert
is sent to a hook, so a receiver can drop what it has had.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
import msgspec

from evoplane import files
from evoplane.settings import AlertHook, Settings
from flows.locks import Busy, exclusive

_log = logging.getLogger("flows.alert_hooks")
_PAUSE_S = 0.5
_TURN_S = 60.0
"""How long one waits for another process that is sending."""


class Waiting(msgspec.Struct, kw_only=True):
    """One alert for one hook, in the outbox."""

    id: str
    hook: str
    body: str
    since: float
    failures: int = 0
    last: str = ""


class Report(msgspec.Struct, frozen=True):
    sent: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    """`hook: why`, still waiting or given up."""


def enqueue(config: Settings, event: str, id: str, payload: Mapping[str, Any], at: float) -> None:
    """Write it down for every hook that asked for such events; the same id again changes nothing."""
    for name, hook in config.alert_hooks.items():
        if event not in hook.events:
            continue
        body = msgspec.json.encode({"event": event, "id": id, "at": at, **payload}).decode()
        file = outbox(config) / f"{id}.{name}.json"
        if not file.exists() and not (given_up(config) / file.name).exists():
            _write(file, Waiting(id=id, hook=name, body=body, since=at))


def send(
    config: Settings,
    *,
    only: str | None = None,
    post: Callable[..., httpx.Response] = httpx.post,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.time,
) -> Report:
    """Try what waits, or of it the alert `only`; processes take turns.

    Delivered means 2xx; what was not taken within `alerts.keep_hours` is put aside, not deleted.
    """
    if not any(outbox(config).glob("*.json")):
        return Report()
    try:
        with exclusive(outbox(config) / "sending.lock", _TURN_S):
            return _send(config, only, post, sleep, clock)
    except Busy as error:
        return Report(failed=(f"webhooks: {error}",))


def _send(
    config: Settings,
    only: str | None,
    post: Callable[..., httpx.Response],
    sleep: Callable[[float], None],
    clock: Callable[[], float],
) -> Report:
    sent: list[str] = []
    failed: list[str] = []
    for file in sorted(outbox(config).glob("*.json")):
        waiting = msgspec.json.decode(file.read_bytes(), type=Waiting)
        if only not in (None, waiting.id):
            continue
        hook = config.alert_hooks.get(waiting.hook)
        why = "no such hook any more" if hook is None else _try(config, hook, waiting, post, sleep, clock)
        if why is None:
            file.unlink()
            sent.append(waiting.hook)
            continue
        _write(file, msgspec.structs.replace(waiting, failures=waiting.failures + 1, last=why))
        _log.error("alert %s was not taken by %s: %s", waiting.id, waiting.hook, why)
        if hook is None or clock() - waiting.since > config.alerts.keep_hours * 3600:
            given_up(config).mkdir(parents=True, exist_ok=True)
            file.replace(given_up(config) / file.name)
            why += "; given up"
        failed.append(f"{waiting.hook}: {why}")
    return Report(tuple(sent), tuple(failed))


def sign(secret: bytes, at: int, body: bytes) -> str:
    """The signature header's value."""
    mac = hmac.new(secret, f"{at}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={at},v1={mac}"


def outbox(config: Settings) -> Path:
    folder = config.var / "alerts"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def given_up(config: Settings) -> Path:
    return config.var / "alerts" / "given_up"


def _try(
    config: Settings,
    hook: AlertHook,
    waiting: Waiting,
    post: Callable[..., httpx.Response],
    sleep: Callable[[float], None],
    clock: Callable[[], float],
) -> str | None:
    """None when it was taken, else why not. A refusal other than 408 and 429 is not asked again at this look."""
    secret = os.environ.get(hook.secret_env)
    if not secret:
        return f"{hook.secret_env} is not set"
    why = ""
    for attempt in range(config.alerts.attempts):
        if attempt:
            sleep(_PAUSE_S * 2 ** (attempt - 1))
        body = waiting.body.encode()
        headers = {
            "content-type": "application/json",
            "x-evoplane-delivery": f"{waiting.id}.{waiting.hook}",
            "x-evoplane-signature": sign(secret.encode(), int(clock()), body),
        }
        try:
            response = post(hook.url, content=body, headers=headers, timeout=config.alerts.timeout_s)
        except httpx.HTTPError as error:
            why = f"{type(error).__name__}: {error}"
            continue
        if response.is_success:
            return None
        why = f"HTTP {response.status_code}"
        if response.status_code < 500 and response.status_code not in (408, 429):
            break
    return why


def _write(file: Path, waiting: Waiting) -> None:
    files.write_durably(file, msgspec.json.encode(waiting))
