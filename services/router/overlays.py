"""What an agent version adds to a request: decoding parameters, system text, memory.

`apply_overlays` is pure: replay, shadow, training contexts and the gateway get the same request
from the same manifest. Every addition is recorded so that taking it away gives back what the
client sent.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from atdp.canonical import digest
from registry.manifest import Manifest, MemoryItem
from services.proxy.dialects import CHAT, Dialect

DEFAULT_ITEMS = 3
DEFAULT_BYTES = 2000

_STOP_WORDS = frozenset(
    re.findall(
        r"\w+",
        "a an and any are at be by can do does for from has have how i in is it its me my of on or our the their "
        "this to was we what when where which who will with you your",
    )
)
_WORD = re.compile(r"\w+")

Overlay = dict[str, Any]


def apply_overlays(
    request: dict[str, Any],
    manifest: Manifest,
    tenant: str,
    *,
    max_items: int = DEFAULT_ITEMS,
    max_bytes: int = DEFAULT_BYTES,
    dialect: Dialect = CHAT,
) -> tuple[dict[str, Any], list[Overlay]]:
    """The request as the version wants it, and what was changed. The given request is left as it is.

    Memory is appended to the system text as `"\\nNotes:\\n- text\\n- text"`; without a system message, one is
    put first that says the same without the leading line break.
    """
    result = dict(request)
    overlays: list[Overlay] = []
    if manifest.harness.params:
        before = {key: request[key] for key in manifest.harness.params if key in request}
        result.update(manifest.harness.params)
        overlays.append(_overlay("params", "set", "params", before=before, value=manifest.harness.params))
    if manifest.harness.system_append:
        dialect.append_system(result, manifest.harness.system_append)
        overlays.append(_overlay("harness", "append", "system", text=manifest.harness.system_append))
    memory = [item for item in manifest.memory if item.tenant == tenant]
    items = _selected(request, memory, tenant, dialect, max_items, max_bytes) if memory else []
    if items:
        text = memory_text(items)
        dialect.append_system(result, text)
        shown = [{"id": item.id, "trust": item.trust, "provenance": list(item.provenance)} for item in items]
        overlays.append(_overlay("memory", "append", "system", text=text, items=shown))
    return result, overlays


def _selected(
    request: dict[str, Any],
    memory: list[MemoryItem],
    tenant: str,
    dialect: Dialect,
    max_items: int,
    max_bytes: int,
) -> list[MemoryItem]:
    said, subject = dialect.last_user_text(request), dialect.subject(request)
    return select_memory(memory, tenant, said, max_items, max_bytes, subject)


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
) -> list[MemoryItem]:
    """This tenant's items that the message is about: vetted ones before candidates, newest first.

    An item is relevant when the message has at least half of its topic's words, stop words aside.
    Tenant and subject are hard filters.
    """
    said = _words(message)
    relevant = [
        item
        for item in memory
        if item.tenant == tenant and item.subject in (msgspec.UNSET, subject) and _relevant(_words(item.topic), said)
    ]
    relevant.sort(key=lambda item: (item.trust == "vetted", item.created_at, item.id), reverse=True)
    chosen: list[MemoryItem] = []
    for item in relevant:
        if len(chosen) == max_items or len(memory_text([*chosen, item]).encode()) > max_bytes:
            break
        chosen.append(item)
    return chosen


def _relevant(topic: set[str], said: set[str]) -> bool:
    return bool(topic) and 2 * len(topic & said) >= len(topic)


def _words(text: str) -> set[str]:
    return {word for word in _WORD.findall(text.lower()) if word not in _STOP_WORDS}


def _overlay(surface: str, op: str, target: str, **content: Any) -> Overlay:
    return {"surface": surface, "op": op, "target": target, **content, "digest": digest(content)}
