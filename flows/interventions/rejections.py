"""What was proposed before and lost: it is not proposed again until there is new evidence.

A change is known by its fingerprint, over what it changes and what it rests on. The same change from more evidence is
another proposal; so is the same change to another champion.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from flows.interventions.base import Proposal


def rejected(records: Iterable[Mapping[str, Any]], champion: str) -> frozenset[str]:
    """Fingerprints of what decision records of this champion rejected (`registry.decisions.list_decisions`)."""
    return frozenset(
        fingerprint
        for record in records
        if record["parent"] == champion
        for fingerprint in record.get("rejected") or ()
    )


def fresh(
    proposals: Sequence[Proposal], records: Iterable[Mapping[str, Any]], champion: str
) -> tuple[list[Proposal], list[tuple[Proposal, str]]]:
    """What may be tried, and what lost before with the reason."""
    lost = rejected(records, champion)
    kept = [p for p in proposals if p.fingerprint not in lost]
    why = "lost before, and there is no new evidence"
    return kept, [(p, why) for p in proposals if p.fingerprint in lost]
