"""Would another retrieval policy have shown what people then had to say?"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from evaluators.cases import Case
from evaluators.facts import stated_fact
from evaluators.skills.procedures import subject_of
from registry.manifest import Manifest, MemoryItem, Retrieval
from services.router.overlays import select_memory

_OVERLAPS = (0.4, 0.34, 0.25, 0.2)
"""Shares of a topic's words that are tried; less finds anything."""
_FOUND = 0.8
"""Share of what was missed that a policy must show."""
_BYTES = 10**6


def better(
    cases: Sequence[Case], manifest: Manifest, min_sessions: int, most_items: int
) -> tuple[Retrieval, list[Case]] | None:
    """The least change of the policy that would have shown most of what was missed, and where it was missed.

    None when fewer than `min_sessions` sessions missed anything, or nothing that may be changed would have helped.
    """
    before = manifest.retrieval
    missed = [
        (case, item)
        for case in cases
        if (item := _missed(case, manifest)) is not None and item not in _shown(case, manifest, before)
    ]
    if len({case.session for case, _ in missed}) < min_sessions:
        return None
    for overlap in (before.overlap, *(o for o in _OVERLAPS if o < before.overlap)):
        for items in range(before.items, most_items + 1):
            policy = msgspec.structs.replace(before, items=items, overlap=overlap)
            shown = sum(item in _shown(case, manifest, policy) for case, item in missed)
            if policy != before and shown >= _FOUND * len(missed):
                return policy, [case for case, _ in missed]
    return None


def _missed(case: Case, manifest: Manifest) -> MemoryItem | None:
    """The item that holds what somebody had to say about a failure, if the model was not shown it."""
    if case.success is not False:
        return None
    texts = [remark.text for remark in case.corrections]
    texts += [case.wanted.text] if case.wanted is not None and not case.wanted.calls else []
    for text in texts:
        fact = stated_fact(text)
        if fact is None:
            continue
        for item in manifest.memory:
            if item.tenant == case.tenant and item.text == fact.text and item.text not in case.shown:
                return item
    return None


def _shown(case: Case, manifest: Manifest, policy: Retrieval) -> list[MemoryItem]:
    subject = subject_of(case)
    return select_memory(manifest.memory, case.tenant, case.request, policy.items, _BYTES, subject, policy.overlap)
