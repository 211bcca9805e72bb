"""Content stored once: large leaves of a record are replaced by the digest they are kept under.

A leaf is a place where ATDP allows a stand-in. Strings there, and whole values there, above
`INLINE_BYTES` go to the tenant's parts; token ids and log-probabilities too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import orjson

INLINE_BYTES = 2048
"""Larger leaves are kept apart, so that events stay small whatever travels in them."""

_LEAVES = frozenset(
    {"content", "arguments", "response", "raw", "result", "message", "explanation", "system_instructions", "state",
     "reasoning", "summary", "plan", "prompt_token_ids", "completion_token_ids", "logprobs"}
)  # fmt: skip
_FREE_FORM = frozenset({"ext", "params"})
"""Objects without a schema of their own: any value in them is a leaf."""

Put = Callable[[str, bytes], str]
"""Keeps bytes of a media type; gives the digest they are kept under."""

Get = Callable[[str], bytes | None]
"""The bytes of a digest; None when there are none."""

_STAND_IN = frozenset({"ref", "bytes", "media_type"})


_members = msgspec.json.Decoder(dict[str, msgspec.Raw])


def externalize(record: dict[str, Any], put: Put) -> dict[str, Any]:
    """The record with its large leaves moved out.

    What a client or a model sent in the form of a stand-in is moved out too, whatever its size: every
    stand-in in a stored record is ours. Content kept apart is kept as it came and has none.
    """
    return {key: _outward(key, value, put, key in _FREE_FORM) for key, value in record.items()}


def may_have_leaves_to_move(data: bytes) -> bool:
    """Could a record with this JSON hold a large leaf, or something in the form of a stand-in?

    A leaf's JSON is at least as long as the leaf, and the member it stands in at least as long as that.
    """
    if b'"media_type"' in data:
        return True
    return len(data) > INLINE_BYTES and any(len(bytes(raw)) > INLINE_BYTES for raw in _members.decode(data).values())


def internalize(value: Any, get: Get) -> Any:
    """The value with every stand-in for stored content replaced by the content."""
    if isinstance(value, dict):
        if _is_stand_in(value):
            data = get(value["ref"])
            if data is not None:
                return data.decode() if value["media_type"].startswith("text/") else orjson.loads(data)
        return {key: internalize(item, get) for key, item in value.items()}
    if isinstance(value, list):
        return [internalize(item, get) for item in value]
    return value


def references(value: Any) -> list[str]:
    """The digests a stored record names as content kept apart."""
    if isinstance(value, dict):
        if _is_stand_in(value):
            return [value["ref"]]
        return [ref for item in value.values() for ref in references(item)]
    if isinstance(value, list):
        return [ref for item in value for ref in references(item)]
    return []


def _outward(key: str, value: Any, put: Put, free: bool) -> Any:
    leaf = free or key in _LEAVES
    if isinstance(value, str):
        return _text(value, put) if leaf else value
    if isinstance(value, dict):
        if value.keys() == _STAND_IN:
            return _reference(orjson.dumps(value), "application/json", put)
        inner = {k: _outward(k, v, put, free or k in _FREE_FORM) for k, v in value.items()}
        return _json(value, inner, put) if leaf and key not in _FREE_FORM and "prefix" not in inner else inner
    if isinstance(value, list | tuple):
        if value and isinstance(value[0], int | float):
            return _json(value, list(value), put) if leaf else list(value)
        items = [_outward(key, item, put, free) for item in value]
        return _json(value, items, put) if leaf else items
    return value


def _text(value: str, put: Put) -> Any:
    if len(value) * 4 <= INLINE_BYTES:
        return value
    data = value.encode()
    return _reference(data, "text/plain", put) if len(data) > INLINE_BYTES else value


def _json(value: Any, inner: Any, put: Put) -> Any:
    """`inner`, the value with its own large leaves moved out; when it is still large, all of the value moves."""
    if len(orjson.dumps(inner)) <= INLINE_BYTES:
        return inner
    return _reference(orjson.dumps(value), "application/json", put)


def _reference(data: bytes, media_type: str, put: Put) -> dict[str, Any]:
    return {"ref": put(media_type, data), "bytes": len(data), "media_type": media_type}


def _is_stand_in(value: dict[str, Any]) -> bool:
    # the types are asked too: older logs hold what clients sent in this form
    return value.keys() == _STAND_IN and isinstance(value["ref"], str) and isinstance(value["media_type"], str)
