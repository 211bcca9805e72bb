"""What led to what, among the events of one trajectory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

_SAME_CALL = frozenset({"retry_of", "branch_of", "corrects"})
"""Links to another attempt or line: what happened there did not lead here."""


class Link(NamedTuple):
    """`event` came of `cause`."""

    event: str
    cause: str
    rel: str


def links(events: Iterable[Mapping[str, Any]]) -> list[Link]:
    """Causes, parents, and the earlier calls whose conversation a call goes on from (`prefix`), each once.

    Prefixes are found in records as stored; a resolved one has them written out.
    """
    known: set[str] = set()
    found: list[Link] = []
    for event in events:
        id = event["id"]
        named = [(c["id"], c["rel"]) for c in event.get("causes") or [] if c["rel"] not in _SAME_CALL]
        if event.get("parent_id"):
            named.append((event["parent_id"], "parent"))
        observed = (event.get("o") or {}).get("messages")
        if isinstance(observed, Mapping) and observed.get("prefix"):
            named.append((observed["prefix"], "prefix"))
        once = {cause: rel for cause, rel in reversed(named) if cause in known}
        found += [Link(id, cause, rel) for cause, rel in once.items()]
        known.add(id)
    return found


def reaches(events: Sequence[Mapping[str, Any]], sources: Iterable[str], decay: float) -> dict[str, dict[str, float]]:
    """For each event, the later `sources` that came of it, and `decay` to the power of the links between."""
    causes: dict[str, list[str]] = {}
    for link in links(events):
        causes.setdefault(link.event, []).append(link.cause)
    reach: dict[str, dict[str, float]] = {}
    for source in sources:
        share, front, seen = 1.0, [source], {source}
        while front:
            share *= decay
            front = [cause for event in front for cause in causes.get(event, ()) if cause not in seen]
            front = list(dict.fromkeys(front))
            seen.update(front)
            for event in front:
                reach.setdefault(event, {})[source] = share
    return reach
