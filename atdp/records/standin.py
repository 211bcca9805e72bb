"""The three things that may stand where a leaf's value would: a reference, a seal, a redaction.

Sealing and redaction happen before hashing, so that everybody who may see the record sees the same
bytes with the same hash.
"""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, UnsetType

from atdp.records.common import Digest, PartOfRecord


class Ref(PartOfRecord, frozen=True):
    """Content stored apart under its digest."""

    ref: Digest
    bytes: int | UnsetType = UNSET
    media_type: str | UnsetType = UNSET


class Sealed(PartOfRecord, frozen=True):
    """Content only a grant opens. `commit` is a keyed or salted commitment, never a plain hash."""

    sealed: str
    """Names the blob that holds the ciphertext, its key and its salt."""
    commit: str
    labels: list[str] | UnsetType = UNSET
    bytes: int | UnsetType = UNSET


class Redacted(PartOfRecord, frozen=True):
    """Content that is gone: dropped, masked, or replaced by a keyed pseudonym."""

    redacted: Literal["drop", "mask", "hash"]
    value: str | UnsetType = UNSET
    """What is shown instead."""
    labels: list[str] | UnsetType = UNSET
