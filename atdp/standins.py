"""Finding the stand-ins in a record."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from atdp.records import Redacted, Ref, Sealed

_KINDS: dict[str, type[Ref | Sealed | Redacted]] = {"ref": Ref, "sealed": Sealed, "redacted": Redacted}
_FIELDS = {
    "ref": {"ref", "bytes", "media_type"},
    "sealed": {"sealed", "commit", "labels", "bytes"},
    "redacted": {"redacted", "value", "labels"},
}
_LEAVES = ("o", "h", "a", "y", "tokens", "explanation")
"""Where a record has leaves; elsewhere (`ext`, a context's body) an object is just an object."""


def stand_ins(record: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any], bool]]:
    """(kind, object, is it whole?) of everything that has the form of a stand-in."""
    for key in _LEAVES:
        yield from _walk(record.get(key))


def hidden(value: Any) -> bool:
    """Is any part of a value sealed or redacted?"""
    return any(kind != "ref" and whole for kind, _, whole in _walk(value))


def _walk(value: Any) -> Iterator[tuple[str, dict[str, Any], bool]]:
    if isinstance(value, dict):
        for kind, struct in _KINDS.items():
            if kind in value and value.keys() <= _FIELDS[kind]:
                yield kind, value, _whole(value, struct)
                return
        for item in value.values():
            yield from _walk(item)
    elif isinstance(value, list):
        for item in value:
            if isinstance(item, dict | list):
                yield from _walk(item)


def _whole(value: dict[str, Any], struct: type[Ref | Sealed | Redacted]) -> bool:
    try:
        msgspec.convert(value, struct)
    except msgspec.ValidationError:
        return False
    return True
