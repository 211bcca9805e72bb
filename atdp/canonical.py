"""The canonical form of a record (RFC 8785, JCS) and the digests made of it."""

from __future__ import annotations

import hashlib
from typing import Any

import rfc8785


def canonical(value: Any) -> bytes:
    """The one byte string of a JSON value; raises `rfc8785.CanonicalizationError` for what JSON can't hold."""
    return rfc8785.dumps(value)


def digest(value: Any) -> str:
    """`sha256:` + 64 hex digits of the canonical form."""
    return digest_bytes(canonical(value))


def digest_bytes(data: bytes) -> str:
    """`sha256:` + 64 hex digits of raw bytes (a part's name)."""
    return "sha256:" + hashlib.sha256(data).hexdigest()
