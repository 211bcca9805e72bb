"""The first look at a value: is all of it clean? Nearly all values are, and need no walk and no copy.

It asks the same questions of the same texts as the walk, so where it says yes, the walk would have given back
the very value. Where it says no (or something is odd), the walk decides. Names of fields recur from record to
record and are judged once; a text that stands in several records of one exchange is searched once.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from services.proxy.redaction import json_text
from services.proxy.redaction.walk import BIG_NUMBER, HURRIED, MAX_JOINED, MAX_TEXT, SIMPLE, WORD, text_of

if TYPE_CHECKING:
    from services.proxy.redaction.redact import Redactor

_MAX_DEPTH = 40
"""Deeper values are the walk's to judge."""
_NAMES = 4096
_LONGEST_NAME = 80
"""Longer names of fields are content, and not remembered."""
_SHORT = 64
"""Characters: shorter texts (models, roles, tags) recur and are remembered by themselves."""
_SHORTS = 4096


class _Name(NamedTuple):
    """What is known of a field's name."""

    plain: bool
    """Is there nothing in it to hide, and no rule for the field?"""
    explains: bool
    """Does it say something about what the field holds?"""


class Skim:
    """One tenant's first look. `forget` ends an exchange: its texts are not held until the next."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._detector = redactor.detector
        self._by_path = bool(redactor.fields.paths)
        """Do rules speak of paths? Then the walk judges everything."""
        self._names: dict[str, _Name] = {}
        self._words_pass = not redactor.policy.dictionaries
        self._shorts: set[str] = set()
        """Clean short texts, behind the name of their field where it explains."""
        self._texts: set[str] = set()
        """Clean texts of this exchange."""

    def forget(self) -> None:
        self._texts.clear()

    def clean(self, value: Any, key: str) -> bool:
        """Would the walk give back this member of a record as it is?"""
        if self._by_path:
            return False
        try:
            name = self._name(key)
            if not name.plain:
                return False
            if type(value) is dict:
                return self._member(value, key)
            return self._value(value, key, name, 1)
        except Exception:
            return False  # whatever it is, the walk meets it too, and says so

    def _member(self, value: dict[Any, Any], key: str) -> bool:
        """An object that is a record's own member; what it names of ours is left out."""
        if key == "ext":
            return self._object(value, key, 1, "links")
        messages = value.get("messages") if key == "o" else None
        if type(messages) is dict and "prefix" in messages:
            return self._object(messages, "", 2, "prefix") and self._object(value, key, 1, "messages")
        return self._object(value, key, 1)

    def _value(self, value: Any, key: str, name: _Name, depth: int) -> bool:
        kind = type(value)
        if kind is str:
            return self._text(value, key, name)
        if kind is dict:
            return depth < _MAX_DEPTH and self._object(value, key, depth)
        if kind is list or kind is tuple:
            return depth < _MAX_DEPTH and self._array(value, key, name, depth)
        if value is None or kind is bool or kind is float:
            return True
        return kind is int and (-BIG_NUMBER <= value <= BIG_NUMBER or not self._detector.find_in(str(value), key))

    def _object(self, value: dict[Any, Any], key: str, depth: int, ours: str | None = None) -> bool:
        if len(value) == 1 and "event" in value and key in ("append", "messages"):
            return True
        names, shorts = self._names, self._shorts
        depth += 1
        for name, item in value.items():
            known = names.get(name) or self._name(name)
            if not known.plain:
                return False
            # as `_value` does; most leaves are short words, and a call for each would be half of all the time here
            kind = item.__class__
            if kind is str:
                if item in shorts and not known.explains:
                    continue
                clean = self._text(item, name, known)
            elif kind is dict:
                clean = name == ours or (depth < _MAX_DEPTH and self._object(item, name, depth))
            elif item is None or kind is bool or kind is float:
                continue
            else:
                clean = self._value(item, name, known, depth)
            if not clean and name != ours:
                return False
        return True

    def _array(self, value: Sequence[Any], key: str, name: _Name, depth: int) -> bool:
        if len(value) > 1 and not self._neighbours(value):
            return False
        depth += 1
        for item in value:  # noqa: SIM110 (a generator costs as much as what it asks)
            if not self._value(item, key, name, depth):
                return False
        return True

    def _neighbours(self, items: Sequence[Any]) -> bool:
        """Is there no header in `[name, value]`, and nothing that shows only when texts are read as one?"""
        if len(items) == 2 and type(items[0]) is str and type(items[1]) is str and not self._name(items[0]).plain:
            return False
        run: list[str] = []
        for item in (*items, None):
            text = text_of(item)
            if text is not None:
                run.append(text)
            elif run:
                if len(run) > 1 and not self._joined("".join(run)):
                    return False
                run = []
        return True

    def _joined(self, text: str) -> bool:
        return len(text) > MAX_JOINED or not self._detector.find(text)

    def _text(self, text: str, key: str, name: _Name) -> bool:
        size = len(text)
        known = f"{key}: {text}" if name.explains else text
        texts = self._shorts if size < _SHORT else self._texts
        if known in texts:
            return True
        if not self._nothing_in(text, size, key):
            return False
        if len(texts) >= _SHORTS:
            texts.clear()
        texts.add(known)
        return True

    def _nothing_in(self, text: str, size: int, key: str) -> bool:
        if size < 4 or (self._words_pass and size < WORD and text.isalpha()):
            return True
        if size > MAX_TEXT or (size > HURRIED and time.monotonic() > self._detector.deadline):
            return False
        if self._detector.find_in(text, key):
            return False
        return not json_text.like(text) or ("\\" not in text and not self._redactor.fields.any_of(json_text.keys(text)))

    def _name(self, name: str) -> _Name:
        known = self._names.get(name)
        if known is None:
            fields = self._redactor.fields
            plain = fields.find(name, (name,)) is None and (
                SIMPLE.fullmatch(name) is not None or not self._detector.find(name)
            )
            known = _Name(plain, self._detector.explains(name))
            if len(name) <= _LONGEST_NAME:
                if len(self._names) >= _NAMES:
                    self._names.clear()
                self._names[name] = known
        return known


def texts_of(value: Any, texts: list[str]) -> None:
    """Append every text and name in a value, and every number that may be somebody's."""
    kind = type(value)
    if kind is str:
        texts.append(value)
    elif kind is dict:
        texts.extend(value)
        for item in value.values():
            texts_of(item, texts)
    elif kind is list or kind is tuple:
        for item in value:
            texts_of(item, texts)
    elif kind is int and abs(value) > BIG_NUMBER:
        texts.append(str(value))
