"""Merging JSON Schema keywords over a client's schema, where the result accepts only what the client's accepts.

A schema is a conjunction of its keywords, so that a keyword it does not have narrows it whatever it says; one that it
has may only be replaced by a stricter one. Where that can't be told (another `pattern`, another `format`) it is
refused. Keywords that act on others (`anyOf`, `$ref`, `if`, …) stay the client's.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import orjson

_ANNOTATIONS = frozenset({"description", "title", "examples", "default", "$comment", "deprecated"})
"""Words about a value: they bound nothing."""

_IN_STRICT_MODE = frozenset({"description", "enum"})
"""What a provider that compiles the schema (`strict`) is sure to understand."""

_AT_LEAST = frozenset({"minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"})
_AT_MOST = frozenset({"maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"})

_LONGEST_PATTERN, _MOST_REPEATS = 200, 4
_REPEATED_GROUP = re.compile(r"\)[*+{]")
_REPEAT = re.compile(r"[*+{]")

_TYPES: dict[str, Callable[[Any], bool]] = {
    "string": lambda v: isinstance(v, str),
    "integer": lambda v: _number(v) and float(v).is_integer(),
    "number": lambda v: isinstance(v, int | float) and not isinstance(v, bool),
    "boolean": lambda v: isinstance(v, bool),
    "null": lambda v: v is None,
    "array": lambda v: isinstance(v, list),
    "object": lambda v: isinstance(v, dict),
}


class NotNarrower(ValueError):
    """The patch would accept what the client's schema does not, or that can't be told."""


def narrowed(schema: Any, patch: dict[str, Any], *, strict: bool = False) -> dict[str, Any]:
    """The schema with the patch in it. `strict`: the provider compiles the schema, and knows few keywords.

    Raises `NotNarrower` with the reason.
    """
    try:
        return _narrowed(schema, patch, strict=strict)
    except (TypeError, ValueError, ArithmeticError, RecursionError) as error:
        if isinstance(error, NotNarrower):
            raise
        raise NotNarrower(f"the two schemas can't be compared: {error}") from error


def _narrowed(schema: Any, patch: dict[str, Any], *, strict: bool = False) -> dict[str, Any]:
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        raise NotNarrower("the client's schema of this argument is not an object")
    result = dict(schema)
    for keyword, value in patch.items():
        if strict and keyword not in _IN_STRICT_MODE:
            raise NotNarrower(f"{keyword!r} is not sure to be understood in strict mode")
        result[keyword] = _stricter(schema, keyword, value)
    return result


def _stricter(schema: dict[str, Any], keyword: str, value: Any) -> Any:
    """The value of the keyword in the merged schema."""
    had = keyword in schema
    before = schema.get(keyword)
    if keyword in _ANNOTATIONS or (had and _same(before, value)):
        return value
    if keyword in _AT_LEAST or keyword in _AT_MOST:
        _need(_number(value), f"{keyword!r} is not a number")
        stricter = not had or (_number(before) and (value >= before if keyword in _AT_LEAST else value <= before))
        _need(stricter, f"{keyword!r} of {value} is wider than the client's {before}")
        return value
    match keyword:
        case "enum":
            _enum(schema, value)
        case "const":
            _need(not had, "the client's schema has another 'const'")
            _need(_fits(schema, value), "the client's schema refuses the value of 'const'")
        case "type":
            _type(before if had else None, value)
        case "pattern":
            _need(not had, "the client's schema has another 'pattern'")
            _need(isinstance(value, str) and _compiles(value), "'pattern' is not a regular expression")
        case "format":
            _need(not had, "the client's schema has another 'format'")
        case "multipleOf":
            _need(_number(value) and value > 0, "'multipleOf' is not a positive number")
            _need(not had or (_number(before) and value % before == 0), f"not a multiple of the client's {before}")
        case "uniqueItems":
            _need(value is True, "the client's items are unique")
        case "required":
            _need(isinstance(value, list) and set(before or ()) <= set(value), "the client's schema requires more")
        case "items":
            _need(isinstance(value, dict), "'items' is not a schema")
            _need("prefixItems" not in schema, "the client's schema has 'prefixItems'")
            return _narrowed(before if had else {}, value)
        case "properties":
            return _properties(schema, value)
        case _:
            raise NotNarrower(f"{keyword!r} is not among the keywords that may be changed")
    return value


def _properties(schema: dict[str, Any], patches: Any) -> dict[str, Any]:
    before = schema.get("properties")
    if not isinstance(before, dict) or not isinstance(patches, dict):
        raise NotNarrower("the client's schema has no such properties")
    result = dict(before)
    for name, patch in patches.items():
        _need(name in before, f"the client's schema has no property {name!r}")
        result[name] = _narrowed(before[name], patch)
    return result


def _enum(schema: dict[str, Any], values: Any) -> None:
    _need(isinstance(values, list) and bool(values), "'enum' names no value")
    refused = [value for value in values if not _fits(schema, value)]
    _need(not refused, f"the client's schema refuses {refused[:3]}")


def _fits(schema: dict[str, Any], value: Any) -> bool:
    """Does the client's schema accept the value, as far as the keywords that bound one value by itself can say?"""
    types = schema.get("type")
    if types is not None and not any(_TYPES.get(t, lambda _: True)(value) for t in _as_list(types)):
        return False
    if "enum" in schema and not any(_same(value, each) for each in _as_list(schema["enum"])):
        return False
    if "const" in schema and not _same(value, schema["const"]):
        return False
    if isinstance(value, str):
        shortest, longest = schema.get("minLength", 0), schema.get("maxLength")
        if len(value) < shortest or (longest is not None and len(value) > longest):
            return False
        pattern = schema.get("pattern")
        if not isinstance(pattern, str) or not _compiles(pattern):
            return True
        _need(_quick(pattern), "the client's 'pattern' may take too long to try")
        return re.search(pattern, value) is not None
    if _number(value):
        return schema.get("minimum", value) <= value <= schema.get("maximum", value)
    return True


def _type(before: Any, value: Any) -> None:
    if before is None:
        return
    allowed = set(_as_list(before))
    if "number" in allowed:
        allowed.add("integer")
    _need(set(_as_list(value)) <= allowed, f"the client's type is {before}")


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _same(a: Any, b: Any) -> bool:
    """Are these the same JSON? For Python, True is 1."""
    return orjson.dumps(a, option=orjson.OPT_SORT_KEYS) == orjson.dumps(b, option=orjson.OPT_SORT_KEYS)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _compiles(pattern: str) -> bool:
    try:
        re.compile(pattern)
    except re.error:
        return False
    return True


def _quick(pattern: str) -> bool:
    """Is there no repeated group, and are there few repeats? The client wrote it; others wait while it is tried."""
    return (
        len(pattern) <= _LONGEST_PATTERN
        and not _REPEATED_GROUP.search(pattern)
        and len(_REPEAT.findall(pattern)) <= _MOST_REPEATS
    )


def _need(holds: Any, otherwise: str) -> None:
    if not holds:
        raise NotNarrower(otherwise)
