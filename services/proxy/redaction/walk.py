"""One walk over a record's values. Gives back the very object where nothing was found in it."""

from __future__ import annotations

import json
import logging
import re
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from registry.tenant_policy import FieldRule
from services.proxy.redaction import json_text
from services.proxy.redaction.failure import described
from services.proxy.redaction.findings import Finding, label
from services.proxy.redaction.pseudonyms import PSEUDONYM, mask
from services.proxy.redaction.secrets import placeholder

if TYPE_CHECKING:
    from services.proxy.redaction.redact import Redactor

_log = logging.getLogger(__name__)

MAX_TEXT = 20_000_000
"""Characters: more than a request may have; such a text is not kept in the clear."""
HURRIED = 500
"""Characters: shorter texts are searched even when the time is up."""
WORD = 16
"""Letters alone, and fewer than this, are a word, which only a tenant's dictionary could object to."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_MAX_DEPTH = 100
MAX_JOINED = 200_000
BIG_NUMBER = 9_999_999
"""Larger integers may be card, account or telephone numbers."""
_TYPED = frozenset(
    {"role", "type", "name", "id", "call_id", "finish_reason", "reason", "decision", "label", "session_id"}
)
"""Fields of a record that must be text."""
_ANY_VALUE = frozenset({"arguments", "result", "content", "response", "raw", "params", "state", "ext", "message"})
"""Fields below which anything goes."""

_TEXT_KEYS = ("content", "text")
SIMPLE = re.compile(r"[A-Za-z_$-]{0,40}")


def stand_in(labels: Sequence[str]) -> dict[str, Any]:
    """What stands for a value that was removed."""
    return {"redacted": "drop", "labels": list(labels)}


class Walk:
    def __init__(self, redactor: Redactor, known: tuple[re.Pattern[str], dict[str, str]] | None = None) -> None:
        """`known` are, on a second walk, the values to hide wherever they stand."""
        self._redactor = redactor
        self.entities: Counter[str] = Counter()
        self.substitutions: dict[str, Any] = {}
        self.values: dict[str, str] = {}
        """What was recognised, and as what."""
        self.known = known
        self.masked = False
        self.failed = False
        self._words_pass = not redactor.policy.dictionaries

    def value(self, value: Any, key: str, path: tuple[str, ...]) -> Any:
        """The value as it may be stored, under its field's name."""
        kind = type(value)
        try:
            if kind is str:
                return self._string(value, key, path)
            if kind is dict:
                return self._object(value, key, path)
            if kind is list or kind is tuple:
                return self._array(value, key, path)
            if value is None or kind is bool:
                return value
            if kind is int or kind is float:
                return self._number(value, key, path)
        except Exception as error:
            _log.error("a value could not be searched and is removed: %s", described(error))
        return self._fail(key, path)

    def _fail(self, key: str, path: tuple[str, ...]) -> Any:
        self.failed = True
        typed = key in _TYPED and _ANY_VALUE.isdisjoint(path[:-1])
        return mask("REDACTION_FAILED") if typed else stand_in(["redaction_failed"])

    # -- structures

    def _object(self, value: dict[Any, Any], key: str, path: tuple[str, ...]) -> Any:
        if len(path) > _MAX_DEPTH:
            return self._fail(key, path)
        if path == ("o", "messages") and "prefix" in value:
            # the call whose prompt this goes on from is ours
            rest = {name: item for name, item in value.items() if name != "prefix"}
            new = self._object(rest, "", ("o",))
            return value if new is rest else {"prefix": value["prefix"], **new}
        if path == ("ext",) and "links" in value:
            rest = {name: item for name, item in value.items() if name != "links"}
            new = self._object(rest, "", ())
            return value if new is rest else {**new, "links": value["links"]}
        if key in ("append", "messages") and value.keys() == {"event"}:
            return value
        result: dict[str, Any] = {}
        changed = False
        for name, item in value.items():
            new_name = self._name(name)
            new = self.value(item, name, (*path, name))
            changed = changed or new is not item or new_name is not name
            while new_name in result:
                new_name += "_"
            result[new_name] = new
        return result if changed else value

    def _name(self, name: Any) -> str:
        if type(name) is not str:
            raise TypeError("names of fields are text")
        if self.known is not None:
            return self._again(name)
        if SIMPLE.fullmatch(name):
            return name
        found = self._redactor.detector.find(name)
        return self._replaced(name, found) if found else name

    def _array(self, value: Sequence[Any], key: str, path: tuple[str, ...]) -> Any:
        if len(path) > _MAX_DEPTH:
            return self._fail(key, path)
        items = list(value)
        if len(items) == 2 and type(items[0]) is str and type(items[1]) is str:
            rule = self._redactor.rule(items[0], (*path, items[0]))
            if rule is not None:  # a header, as [name, value]
                return [items[0], self._ruled(items[1], rule)]
        if len(items) > 1 and self.known is None:
            self._join(items)
        changed = False
        deeper = (*path, "*")
        for index, item in enumerate(items):
            new = self.value(item, key, deeper)
            changed = changed or new is not value[index]
            items[index] = new
        return items if changed else value

    def _join(self, items: list[Any]) -> None:
        """Hide what only shows when neighbouring texts are read as one; changes `items`."""
        texts = [text_of(item) for item in items]
        start = 0
        while start < len(items):
            end = start
            while end < len(items) and texts[end] is not None:
                end += 1
            if end - start > 1:
                self._join_run(items, start, [text for text in texts[start:end] if text is not None])
            start = end + 1

    def _join_run(self, items: list[Any], start: int, texts: list[str]) -> None:
        joined = "".join(texts)
        if len(joined) > MAX_JOINED:
            return
        bounds: list[int] = []
        at = 0
        for text in texts:
            bounds.append(at)
            at += len(text)
        crossing = [
            f for f in self._redactor.detector.find(joined) if any(f.start < bound < f.end for bound in bounds[1:])
        ]
        if not crossing:
            return
        for index, text in enumerate(texts):
            new = self._cut(text, bounds[index], joined, crossing)
            if new != text:
                items[start + index] = _with_text(items[start + index], new)

    def _cut(self, text: str, offset: int, joined: str, crossing: Iterable[Finding]) -> str:
        pieces: list[str] = []
        at = 0
        for finding in crossing:
            start, end = finding.start - offset, finding.end - offset
            if end <= 0 or start >= len(text):
                continue
            pieces.append(text[at : max(0, start)])
            if start >= 0:
                pieces.append(self._name_for(finding.entity, joined[finding.start : finding.end]))
            at = min(len(text), end)
        return "".join([*pieces, text[at:]])

    # -- leaves

    def _string(self, text: str, key: str, path: tuple[str, ...]) -> Any:
        if self.known is not None:
            return self._again(text)
        rule = self._redactor.rule(key, path) if path else None
        if rule is not None:
            return self._ruled(text, rule)
        if len(text) < 4 or (self._words_pass and len(text) < WORD and text.isalpha()):
            return text
        if len(text) > MAX_TEXT or (len(text) > HURRIED and time.monotonic() > self._redactor.detector.deadline):
            return self._fail(key, path)
        found = self._redactor.detector.find_in(text, key)
        if json_text.like(text):
            return self._json(text, found, path)
        return self._replaced(text, found) if found else text

    def _number(self, value: int | float, key: str, path: tuple[str, ...]) -> Any:
        rule = self._redactor.rule(key, path)
        if rule is not None and self.known is None:
            return self._ruled(value, rule)
        if type(value) is float or abs(value) <= BIG_NUMBER:
            return value
        text = str(value)
        if self.known is not None:
            return self._name_for(self.known[1][text], text) if text in self.known[1] else value
        found = self._redactor.detector.find_in(text, key)
        return self._name_for(found[0].entity, value) if found else value

    def _json(self, text: str, found: Sequence[Finding], path: tuple[str, ...]) -> str:
        """A text that is JSON stays JSON; its fields obey the rules for fields, its escapes hide nothing."""
        if not found and "\\" not in text and not self._redactor.fields.any_of(json_text.keys(text)):
            return text
        changes: list[tuple[int, int, str]] = []
        for scalar in json_text.scalars(text):
            literal = text[scalar.start : scalar.end]
            new = self._literal(literal, scalar, path)
            if new is None and not scalar.string:
                whole = [f for f in found if f.start <= scalar.start and scalar.end <= f.end]
                new = f'"{self._name_for(whole[0].entity, _numeric(literal))}"' if whole else None
            if new is not None:
                changes.append((scalar.start, scalar.end, new))
        taken = [(start, end) for start, end, _ in changes]
        for f in found:
            if not any(start < f.end and f.start < end for start, end in taken):
                changes.append((f.start, f.end, self._name_for(f.entity, text[f.start : f.end])))
        pieces: list[str] = []
        at = 0
        for start, end, new in sorted(changes):
            pieces += [text[at:start], new]
            at = end
        return "".join([*pieces, text[at:]]) if changes else text

    def _literal(self, literal: str, scalar: json_text.Scalar, path: tuple[str, ...]) -> str | None:
        """The literal that takes the place of one that a rule or its escapes condemn; else None."""
        rule = self._redactor.rule(scalar.key, path + scalar.path) if scalar.key else None
        if not scalar.string:
            return None if rule is None else json.dumps(self._ruled(_numeric(literal), rule))
        if rule is None and "\\" not in literal:
            return None
        value = json_text.decoded(literal)
        if value is None:
            return None if rule is None else f'"{self._name_for(rule.entity, literal)}"'
        new = self._ruled(value, rule) if rule is not None else self._string(value, scalar.key, path + scalar.path)
        if new is value or new == value:
            return None
        # half of a pair of surrogates is a text as an escape only
        halved = isinstance(new, str) and _SURROGATE.search(new) is not None
        return json.dumps(new, ensure_ascii=halved)

    def _ruled(self, value: Any, rule: FieldRule) -> Any:
        """A field that is hidden whatever it holds; what is empty or hidden already stays."""
        if rule.action == "keep" or (isinstance(value, str) and _says_nothing(value)):
            return value
        if rule.action == "drop":
            self.entities[rule.entity] += 1
            self.masked = True
            if isinstance(value, str):
                self.values[value] = rule.entity
            return stand_in([label(rule.entity)])
        return self._name_for(rule.entity, value, rule.action)

    def _again(self, text: str) -> str:
        """The text without the values that were recognised elsewhere."""
        assert self.known is not None
        pattern, values = self.known
        if pattern.search(text) is None:
            return text
        return pattern.sub(lambda match: self._name_for(values[match[0]], match[0]), text)

    def _replaced(self, text: str, found: Sequence[Finding]) -> str:
        pieces: list[str] = []
        at = 0
        for finding in found:
            pieces += [text[at : finding.start], self._name_for(finding.entity, text[finding.start : finding.end])]
            at = finding.end
        return "".join([*pieces, text[at:]])

    def _name_for(self, entity: str, value: Any, action: str | None = None) -> str:
        """What stands in the text instead; remembers what it stood for, if that may be kept."""
        self.entities[entity] += 1
        if isinstance(value, str):
            self.values[value] = entity
        else:
            self.values[str(value)] = entity
        if (action or self._redactor.action(entity)) != "pseudonym":
            self.masked = True
            return mask(entity)
        spelled = value if isinstance(value, str) else f"#{value}"
        name = self._redactor.pseudonyms.name(entity, spelled)
        self.substitutions[name] = value
        return name


def _says_nothing(value: str) -> bool:
    """Is it empty, hidden already, or only a word for what should be there (`required`, `your-api-key`)?"""
    return not value or placeholder(value) or PSEUDONYM.fullmatch(value) is not None


def text_of(item: Any) -> str | None:
    """The text of an item that may go on in the next one: a string, or a text part of a message."""
    if type(item) is str:
        return item
    if type(item) is dict and item.get("type") in ("text", "input_text", "output_text"):
        for key in _TEXT_KEYS:
            if type(item.get(key)) is str:
                return str(item[key])
    return None


def _with_text(item: Any, text: str) -> Any:
    if type(item) is str:
        return text
    key = next(key for key in _TEXT_KEYS if type(item.get(key)) is str)
    return {**item, key: text}


def _numeric(literal: str) -> Any:
    try:
        return json.loads(literal)
    except ValueError:
        return literal
