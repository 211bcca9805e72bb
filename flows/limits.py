"""At most one of a kind at a time, across processes: Prefect's global concurrency limits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from flows import environment  # noqa: F401  (before prefect)

from prefect import get_client  # isort: skip
from prefect.concurrency.sync import concurrency  # isort: skip
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate  # isort: skip
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound  # isort: skip

_WAIT_S = 1800.0
"""Longer than any evolution here; a run that waited this long fails and says so."""
_LEASE_S = 60.0


def ensure(name: str) -> None:
    """Create the limit if there is none: with `strict` an unknown limit would be an error."""
    with get_client(sync_client=True) as client:
        try:
            client.read_global_concurrency_limit_by_name(name)
        except ObjectNotFound:
            try:
                client.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name=name, limit=1))
            except ObjectAlreadyExists:
                return


@contextmanager
def one_at_a_time(name: str) -> Iterator[None]:
    ensure(name)
    with concurrency(name, occupy=1, timeout_seconds=_WAIT_S, strict=True, lease_duration=_LEASE_S):
        yield
