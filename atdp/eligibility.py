"""What a trajectory may be used for: its governance, its events', and whatever was decided later, as one answer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from atdp.annotations import in_force


def eligible(records: Iterable[dict[str, Any]], purpose: str) -> bool:
    """May a trajectory be used for this? One deny wins over every allow; training needs an allow.

    `records` are the header and whatever of its events and annotations there is; `purpose` is a field of
    `Eligibility` (`train`, `evaluate`, `replay`, `debug`, `cross_tenant`).
    """
    header, *rest = records
    patches = [
        a.get("patch") for a in in_force(r for r in rest if r["record"] == "annotation" and r["kind"] == "governance")
    ]
    blocks = [header.get("gov"), *patches, *(r.get("gov") for r in rest if r["record"] == "event")]
    verdicts = [((block or {}).get("eligibility") or {}).get(purpose) for block in blocks]
    if "deny" in verdicts:
        return False
    return "allow" in verdicts or (purpose != "train" and "pending" not in verdicts)
