"""The values in a text that is JSON, or begins like it: a tool call's arguments may be cut off or doubled."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import NamedTuple

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*(?:"|$)|[{}\[\],:]|-?\d[\d.eE+-]*', re.DOTALL)
_KEYS = re.compile(r'"([^"\\]{1,80})"\s*:')
_DEPTH = 200


class Scalar(NamedTuple):
    start: int
    end: int
    string: bool
    key: str
    """The name it stands under; that of the array for an item."""
    path: tuple[str, ...]


def like(text: str) -> bool:
    """Does the text begin like an object or array?"""
    return text[:1] in ("{", "[") or text.lstrip()[:1] in ("{", "[")


def keys(text: str) -> list[str]:
    """The names in the text, the simple ones at least."""
    return _KEYS.findall(text)


def scalars(text: str) -> Iterator[Scalar]:
    """Strings and numbers that are values, with the names they stand under."""
    names: list[str] = [""]
    objects: list[bool] = [False]
    expects_key = False
    for token in _TOKEN.finditer(text):
        first = token[0][0]
        if first == "{" or first == "[":
            if len(names) > _DEPTH:
                return
            names.append(names[-1] if first == "[" else "")
            objects.append(first == "{")
            expects_key = first == "{"
        elif first == "}" or first == "]":
            if len(names) > 1:
                names.pop()
                objects.pop()
            expects_key = False
        elif first == ",":
            expects_key = objects[-1]
        elif first == ":":
            expects_key = False
        elif first == '"' and expects_key:
            names[-1] = decoded(token[0]) or ""
        else:
            path = tuple(name for name in names if name)
            yield Scalar(token.start(), token.end(), first == '"', names[-1], path)


def decoded(literal: str) -> str | None:
    """The string a literal stands for; None when it is broken."""
    try:
        value = json.loads(literal if literal.endswith('"') and len(literal) > 1 else literal + '"', strict=False)
    except ValueError:
        return None
    return value if isinstance(value, str) else None
