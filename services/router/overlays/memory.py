"""Memory: what this tenant, and this user, is known to have been told that the message is about."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

import msgspec

from registry.manifest import MemoryItem, Retrieval
from services.router.overlays.draft import Draft
from services.router.overlays.plan import Plan, ranked_memory
from services.router.overlays.words import Index, words


def apply(draft: Draft, plan: Plan, retrieval: Retrieval) -> None:
    if not plan.has_memory(draft.tenant):
        return
    indices = plan.memory(draft.tenant, draft.dialect.subject(draft.given))
    most = min(retrieval.items, draft.max_items)
    items = _chosen(indices, draft.said, most, draft.max_bytes, retrieval.overlap)
    if items:
        shown = [{"id": item.id, "trust": item.trust, "provenance": list(item.provenance)} for item in items]
        draft.append("memory", memory_text(items), items=shown)


def memory_text(items: Iterable[MemoryItem]) -> str:
    """How memory is put to the model."""
    return "\nNotes:" + "".join(f"\n- {item.text}" for item in items)


def select_memory(
    memory: Iterable[MemoryItem],
    tenant: str,
    message: str,
    max_items: int,
    max_bytes: int,
    subject: str | None = None,
    overlap: float = Retrieval().overlap,
) -> list[MemoryItem]:
    """This tenant's items that the message is about: vetted ones before candidates, then by match, newest first.

    An item is relevant when the message has at least the share `overlap` of its topic's words, stop words
    aside. Tenant and subject are hard filters.
    """
    mine = (item for item in memory if item.tenant == tenant and item.subject in (msgspec.UNSET, subject))
    return _chosen([Index(ranked_memory(mine))], words(message), max_items, max_bytes, overlap)


def _chosen(
    indices: Iterable[Index[MemoryItem]], said: set[str], max_items: int, max_bytes: int, overlap: float
) -> list[MemoryItem]:
    chosen: list[MemoryItem] = []
    for *_, item in heapq.merge(*(index.about(said, overlap) for index in indices)):
        if len(chosen) >= max_items:
            break
        if len(memory_text([*chosen, item]).encode()) <= max_bytes:
            chosen.append(item)
    return chosen
