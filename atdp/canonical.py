"""The canonical form of a record (RFC 8785, JCS) and the digests made of it.

`rfc8785` is the reference and costs 150 µs for a record of 2.5 kB. What it would write is what a fast
JSON encoder with sorted keys writes, but for three things: numbers that ECMAScript writes differently, keys
whose order differs between UTF-8 and UTF-16, and values that have no canonical form. So the fast form is
tried, and searched for signs of those; numbers are then written one by one, and for the rest `rfc8785` itself is asked.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

import msgspec
import orjson
import rfc8785

_SAFE_INTEGER = 2**53 - 1
_INTEGERS = frozenset({int})
_FIXED_FROM, _FIXED_TO = 1e-4, 1e15
"""Between these all encoders write a fraction without an exponent, with the same shortest digits."""

_ORDERED_OTHERWISE = bytes(range(0xEE, 0x100))
"""First bytes of the characters from U+E000 on: only with those can UTF-16 sort keys in another order than UTF-8."""

_FRACTION = re.compile(rb"\.(?:0[,\]}]|0000|\d+e)")
"""Where a whole number is written with a fraction, a very small one without an exponent, or a fraction with one."""

_SHAPE = bytes.maketrans(b",[123456789", b"::000000000")
"""Every number follows a colon then, and has no digit but 0: what is searched for begins with one character."""

_WHOLE = re.compile(rb":(?:0(?:e|0{15})|-0(?:e|0{15}))")
"""Where a number is written with an exponent alone, or may have more digits than a double holds."""

_WHOLE_OR_NULL = re.compile(rb":(?:null|0(?:e|0{15})|-0(?:e|0{15}))")
"""Alternatives that begin with a character of their own are skipped faster than `-?`."""

_STRICT = (
    orjson.OPT_SORT_KEYS
    | orjson.OPT_STRICT_INTEGER
    | orjson.OPT_PASSTHROUGH_SUBCLASS
    | orjson.OPT_PASSTHROUGH_DATACLASS
    | orjson.OPT_PASSTHROUGH_DATETIME
)


class _Unusual(Exception):
    """Something that the fast encoder does not write as ECMAScript does, or should not write at all."""


def canonical(value: Any) -> bytes:
    """The one byte string of a JSON value; raises `rfc8785.CanonicalizationError` for what JSON can't hold."""
    data = plain(value)
    if data is not None:
        return data
    try:
        return orjson.dumps(_as_ecmascript(value), option=orjson.OPT_SORT_KEYS)
    except (_Unusual, TypeError, RecursionError):
        return rfc8785.dumps(value)


def plain(value: Any) -> bytes | None:
    """The value's JSON with sorted keys, if that is its canonical form; None if it needs a closer look."""
    if not isinstance(value, dict | list):
        return None
    try:
        data = orjson.dumps(value, option=_STRICT)
        # a NaN is written as `null` without a word
        if b"null" in data and orjson.loads(data) != value:
            return None
    except (TypeError, ValueError, RecursionError):
        return None
    return data if _is_usual(data, _WHOLE) else None


def sorted_json(value: msgspec.Struct) -> bytes:
    """A struct's JSON with sorted keys, without turning it into dictionaries first. Raises as the encoder does."""
    return _SORTED.encode(value)


def is_canonical(data: bytes) -> bool:
    """Is what `sorted_json` gave the canonical form, without any doubt? If not, `canonical` must find it."""
    # a NaN is written as `null` without a word
    return _is_usual(data, _WHOLE_OR_NULL)


def digest(value: Any) -> str:
    """`sha256:` + 64 hex digits of the canonical form."""
    return digest_bytes(canonical(value))


def digest_bytes(data: bytes) -> str:
    """`sha256:` + 64 hex digits of raw bytes (a part's name)."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def _is_usual(data: bytes, whole: re.Pattern[bytes]) -> bool:
    """Is there nothing in this object or list that may have another canonical form?"""
    if not data.isascii() and len(data.translate(None, _ORDERED_OTHERWISE)) != len(data):
        return False
    if whole.search(data.translate(_SHAPE)):
        return False
    return not _FRACTION.search(data) or _has_usual_fractions(data)


def _has_usual_fractions(data: bytes) -> bool:
    """Reads the JSON, to tell its numbers from text that looks like them."""
    try:
        _FRACTIONS.decode(data)
    except (_Unusual, RecursionError):
        return False
    return True


def _look_at(literal: str) -> float:
    """Raises `_Unusual` for a number with a fraction or an exponent that ECMAScript would write differently."""
    value = float(literal)
    if not _FIXED_FROM <= abs(value) < _FIXED_TO or value.is_integer():
        raise _Unusual
    return value


_FRACTIONS = msgspec.json.Decoder(float_hook=_look_at)
_SORTED = msgspec.json.Encoder(order="sorted")


def _as_ecmascript(value: Any) -> Any:
    """The value with its numbers in ECMAScript's form; raises `_Unusual` for what must be left to the reference."""
    kind = type(value)
    if kind is str or value is None or kind is bool:
        return value
    if kind is dict:
        if not "".join(value).isascii():
            raise _Unusual
        return {key: _as_ecmascript(item) for key, item in value.items()}
    if kind is list or kind is tuple:
        if _INTEGERS.issuperset(map(type, value)) and (
            not value or (min(value) >= -_SAFE_INTEGER and max(value) <= _SAFE_INTEGER)
        ):
            return value
        return [_as_ecmascript(item) for item in value]
    if kind is int:
        if not -_SAFE_INTEGER <= value <= _SAFE_INTEGER:
            raise _Unusual
        return value
    if kind is float:
        return _number(value)
    raise _Unusual


def _number(value: float) -> Any:
    if _FIXED_FROM <= abs(value) < _FIXED_TO:
        return int(value) if value.is_integer() else value
    return orjson.Fragment(rfc8785.dumps(value))
