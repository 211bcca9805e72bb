"""Which annotations count: the fold that turns an append-only record of opinions into a view."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def in_force(annotations: Iterable[dict[str, Any]], as_of: str | None = None) -> list[dict[str, Any]]:
    """Annotations not retracted or superseded, oldest first; `as_of` is an RFC 3339 time.

    A retraction is an annotation with `retracted: true` that supersedes the one it takes back.
    """
    known = [a for a in annotations if as_of is None or a["time"] <= as_of]
    replaced: set[str] = set()
    for annotation in known:
        earlier = annotation.get("supersedes")
        if earlier:
            replaced.update([earlier] if isinstance(earlier, str) else earlier)
    alive = [a for a in known if a["id"] not in replaced and not a.get("retracted")]
    return sorted(alive, key=lambda a: (a.get("observed_at") or a["time"], a["id"]))
