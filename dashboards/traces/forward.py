"""Traces out: every trajectory that has ended, to the operator's OpenTelemetry collector, once it is acknowledged.

A consumer of the event log: at least once, in the order of commits. A trajectory is told when it closes; what is open
is remembered and looked at again.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx
import msgspec

from atdp.convert.otlp.spans import Span
from dashboards.traces.otlp import request, traces
from evoplane import files
from evoplane.settings import Settings, SettingsError
from services.gateway import traces_out
from services.gateway.traces_out import Counts
from services.proxy.consumers import open_consumers
from services.proxy.reader import StoreReader, open_reader

_log = logging.getLogger(__name__)
CONSUMER = "otlp-out"
_BATCH = 2000
"""Records looked at together."""
_SPANS = 500
"""Spans in one request."""
_MOST_OPEN = 20_000
_NEVER = frozenset({400, 413, 415, 422})
"""It is what was sent that is wrong. Other refusals (credentials, a wrong address, a collector in trouble) are the
collector's or its operator's to mend: nothing is dropped for them."""


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
    """Send what has ended since the last time; gives the number of trajectories taken. Raises httpx's errors.

    What the collector could not take now is sent again the next time. What it says it will never take is dropped, and
    counted (`evoplane_traces_refused_total`): it must not keep all after it from being told.
    """
    if not config.otlp.url:
        return 0
    file = config.var / "traces" / "_open.json"  # beside files that have agents' names
    state = msgspec.json.decode(file.read_bytes(), type=Open) if file.exists() else Open()
    consumers, reader = open_consumers(config), open_reader(config)
    taken = 0
    try:
        with httpx.Client(headers=headers_of(config), timeout=config.otlp.timeout_s) as http:
            while True:
                records, cursor = consumers.fetch(CONSUMER, _BATCH)
                for tenant, record in records:
                    waiting = state.waiting.setdefault(tenant, [])
                    if record["trajectory_id"] not in waiting[-50:]:
                        waiting.append(record["trajectory_id"])
                told = _send(http, config.otlp.url, _ended(reader, state))
                _keep(file, state)
                _count(config, told)
                consumers.ack(CONSUMER, cursor)
                taken += told.taken
                if len(records) < _BATCH:
                    return taken
    finally:
        consumers.close()
        reader.close()


def _ended(reader: StoreReader, state: Open) -> list[list[Span]]:
    """The spans of each trajectory that has ended; what is open stays in the state."""
    found = []
    for tenant, ids in state.waiting.items():
        still = []
        for id in dict.fromkeys(ids):
            row = reader.trajectory(tenant, id)
            if row is None or row.closed is None:
                still.append(id)
                continue
            try:
                found.append([span for trace in traces(reader, tenant, id) for span in trace])
            except (KeyError, TypeError, ValueError) as error:
                # one that has no form as spans must not keep all after it from being told
                _log.warning("trajectory %s of %s is not told: %r", id, tenant, error)
        state.waiting[tenant] = still[-_MOST_OPEN:]
    return found


def _send(http: httpx.Client, url: str, ended: Sequence[list[Span]]) -> Counts:
    """Some trajectories a request; where one is refused for good, each of them alone, so that the others arrive."""
    told = Counts()
    for group in _groups(ended):
        if _taken(http, url, group):
            told.taken += len(group)
            continue
        alone = [len(group) > 1 and _taken(http, url, [spans]) for spans in group]
        told.taken += sum(alone)
        told.refused += len(group) - sum(alone)
    return told


def _groups(ended: Sequence[list[Span]]) -> Iterator[list[list[Span]]]:
    """Together as many as fit into one request; one that is longer is alone."""
    group: list[list[Span]] = []
    for spans in ended:
        if group and sum(map(len, group)) + len(spans) > _SPANS:
            yield group
            group = []
        group.append(spans)
    if group:
        yield group


def _taken(http: httpx.Client, url: str, group: Sequence[list[Span]]) -> bool:
    """False when the collector will never take it; raises httpx's errors when it could not take it now."""
    spans = [span for trajectory in group for span in trajectory]
    for start in range(0, len(spans), _SPANS):
        reply = http.post(
            url,
            content=request(spans[start : start + _SPANS]),
            headers={"content-type": "application/x-protobuf"},
        )
        if reply.status_code in _NEVER:
            if len(group) == 1:
                named = next((span.attributes.get("evoplane.trajectory_id") for span in spans), "")
                _log.warning("the collector refused trajectory %s: %s %s", named, reply.status_code, reply.text[:300])
            return False
        if not reply.is_success:  # httpx's own words quote the URL, password and all
            raise httpx.HTTPStatusError(
                f"the collector answered {reply.status_code}", request=reply.request, response=reply
            )
    return True


def _count(config: Settings, told: Counts) -> None:
    if told != Counts():
        known = traces_out.read(config.var)
        traces_out.write(config.var, Counts(known.taken + told.taken, known.refused + told.refused))


def _keep(file: Path, state: Open) -> None:
    files.write_whole(file, msgspec.json.encode(state))
