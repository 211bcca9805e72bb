"""Times as ATDP writes them: RFC 3339, UTC, milliseconds."""

from __future__ import annotations

import math
import time
from datetime import UTC, datetime
from functools import lru_cache


def now() -> str:
    """The present, as `2026-09-02T10:15:00.950Z`."""
    return from_epoch(time.time())


def timestamp(moment: datetime) -> str:
    """An aware datetime as RFC 3339 in UTC, so that string order is time order."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def from_epoch(seconds: float) -> str:
    """Seconds since 1970 as RFC 3339."""
    fraction, whole = math.modf(seconds)  # as `datetime.fromtimestamp` rounds
    second, micros = divmod(int(whole) * 1_000_000 + round(fraction * 1_000_000), 1_000_000)
    return f"{_second(second)}.{micros // 1000:03}Z"


@lru_cache(maxsize=64)
def _second(whole: int) -> str:
    """A whole second: what happens at one time is in few of them."""
    return datetime.fromtimestamp(whole, UTC).isoformat(timespec="seconds").removesuffix("+00:00")


def parse(text: str) -> datetime:
    """An RFC 3339 time; raises `ValueError` when it is none or has no zone."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone; write RFC 3339, such as 2026-09-02T10:15:00Z")
    return moment
