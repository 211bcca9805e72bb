"""Times as ATDP writes them: RFC 3339, UTC, milliseconds."""

from __future__ import annotations

from datetime import UTC, datetime


def now() -> str:
    """The present, as `2026-09-02T10:15:00.950Z`."""
    return timestamp(datetime.now(UTC))


def timestamp(moment: datetime) -> str:
    """An aware datetime as RFC 3339 in UTC, so that string order is time order."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def from_epoch(seconds: float) -> str:
    """Seconds since 1970 as RFC 3339."""
    return timestamp(datetime.fromtimestamp(seconds, UTC))


def parse(text: str) -> datetime:
    """An RFC 3339 time; raises `ValueError` when it is none or has no zone."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone; write RFC 3339, such as 2026-09-02T10:15:00Z")
    return moment
