"""JSON as clients read it, and what of it can be stored.

A server that cuts its text at every UTF-16 unit sends half an emoji in one piece and the other half in the next, and
some send bytes that are no UTF-8. Clients take both; a reader that takes neither would lose what they were told.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import orjson


class Read(NamedTuple):
    value: Any
    """None for what is no JSON at all."""
    odd: bool = False
    """May there be halves of characters in it? Then `mended` says what can be stored."""


def read_json(data: bytes) -> Read:
    try:
        return Read(orjson.loads(data))
    except orjson.JSONDecodeError:
        pass
    try:
        return Read(json.loads(data.decode(errors="replace")), odd=True)
    except (ValueError, RecursionError):
        return Read(None)


def mended(value: Any) -> Any:
    """The value with halves that stand together made one character, and what is left of others replaced (U+FFFD)."""
    if isinstance(value, str):
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, dict):
        return {mended(name): mended(item) for name, item in value.items()}
    return [mended(item) for item in value] if isinstance(value, list) else value
