"""Times of sources that are not careful with them."""

from __future__ import annotations

from typing import Any

from atdp import clock
from atdp.convert.loss import LossReport


def utc(text: Any, loss: LossReport) -> str | None:
    """A time as ATDP writes it; None for what is none. One without a zone is taken as UTC, and noted."""
    if not isinstance(text, str):
        return None
    try:
        return clock.timestamp(clock.parse(text))
    except ValueError:
        pass
    try:
        moment = clock.timestamp(clock.parse(text + "+00:00"))
    except ValueError:
        loss.note("time_unreadable", text, "the record has the time before it")
        return None
    loss.note("time_zone", text, "the source names no time zone: taken as UTC")
    return moment
