"""Traces out: every trajectory that has ended, to the operator's OpenTelemetry collector, once it is acknowledged.

A consumer of the event log: at least once, in the order of commits. A trajectory is told when it closes; what is open
is remembered and looked at again.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

import httpx
import msgspec

from dashboards.traces.otlp import request, traces
from evoplane.settings import Settings, SettingsError
from services.proxy.consumers import open_consumers
from services.proxy.reader import open_reader

_log = logging.getLogger(__name__)
CONSUMER = "otlp-out"
_BATCH = 2000
"""Records looked at together."""
_SPANS = 500
"""Spans in one request."""
_MOST_OPEN = 20_000


class Open(msgspec.Struct):
    """Trajectories that had records and have not ended: tenant -> ids."""

    waiting: dict[str, list[str]] = {}


def headers_of(config: Settings) -> dict[str, str]:
    """The collector's headers, from the environment; raises `SettingsError` for a variable that is not set."""
    found = {}
    for name, variable in config.otlp.headers.items():
        if variable not in os.environ:
            raise SettingsError(f"otlp.headers.{name}: the environment variable {variable} is not set")
        found[name] = os.environ[variable]
    return found


def forward(config: Settings) -> int:
    """Send what has ended since the last time; gives the number of trajectories. Raises httpx's errors.

    What was not taken by the collector is sent again the next time.
    """
    if not config.otlp.url:
        return 0
    file = config.var / "traces" / "open.json"
    state = msgspec.json.decode(file.read_bytes(), type=Open) if file.exists() else Open()
    consumers, reader = open_consumers(config), open_reader(config)
    sent = 0
    try:
        with httpx.Client(headers=headers_of(config), timeout=config.otlp.timeout_s) as http:
            while True:
                records, cursor = consumers.fetch(CONSUMER, _BATCH)
                for tenant, record in records:
                    waiting = state.waiting.setdefault(tenant, [])
                    if record["trajectory_id"] not in waiting[-50:]:
                        waiting.append(record["trajectory_id"])
                spans = []
                for tenant, ids in state.waiting.items():
                    still = []
                    for id in dict.fromkeys(ids):
                        row = reader.trajectory(tenant, id)
                        if row is None or row.closed is None:
                            still.append(id)
                            continue
                        try:
                            spans += [span for trace in traces(reader, tenant, id) for span in trace]
                            sent += 1
                        except (KeyError, TypeError, ValueError) as error:
                            # one that has no form as spans must not keep all after it from being told
                            _log.warning("trajectory %s of %s is not told: %r", id, tenant, error)
                    state.waiting[tenant] = still[-_MOST_OPEN:]
                for start in range(0, len(spans), _SPANS):
                    reply = http.post(
                        config.otlp.url,
                        content=request(spans[start : start + _SPANS]),
                        headers={"content-type": "application/x-protobuf"},
                    )
                    reply.raise_for_status()
                _keep(file, state)
                consumers.ack(CONSUMER, cursor)
                if len(records) < _BATCH:
                    return sent
    finally:
        consumers.close()
        reader.close()


def _keep(file: Path, state: Open) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_suffix(".tmp")
    draft.write_bytes(msgspec.json.encode(state))
    draft.replace(file)
