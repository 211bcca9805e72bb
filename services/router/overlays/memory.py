"""Memory: what this tenant, and this user, is known to have been told that the message is about."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from registry.manifest import MemoryItem, Retrieval
from services.router.overlays.draft import Draft
from services.router.overlays.plan import Plan, memory_index
from services.router.overlays.words import Index, words


def apply(draft: Draft, plan: Plan, retrieval: Retrieval) -> None:
    index = plan.memory(draft.tenant)
    if index is None:
        return
    said = words(draft.dialect.last_user_text(draft.given))
    subject = draft.dialect.subject(draft.given)
    most = min(retrieval.items, draft.max_items)
    items = _chosen(index, said, subject, most, draft.max_bytes, retrieval.overlap)
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
    index = memory_index(item for item in memory if item.tenant == tenant)
    return _chosen(index, words(message), subject, max_items, max_bytes, overlap)


def _chosen(
    index: Index[MemoryItem], said: set[str], subject: str | None, max_items: int, max_bytes: int, overlap: float
) -> list[MemoryItem]:
    chosen: list[MemoryItem] = []
    for item in index.about(said, overlap):
        if len(chosen) >= max_items:
            break
        if item.subject not in (msgspec.UNSET, subject):
            continue
        if len(memory_text([*chosen, item]).encode()) <= max_bytes:
            chosen.append(item)
    return chosen
