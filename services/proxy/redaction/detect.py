"""Everything personal or secret in one text.

Cheap questions first (is there a digit, an `@`, a word for a secret?): most texts are done after them. A
text that was searched before is not searched again: agents send their history with every request.
"""

from __future__ import annotations

import hashlib
import math
import re
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence

from registry.tenant_policy import Dictionary
from services.proxy.redaction import contacts, encoded, national, numbers, secrets
from services.proxy.redaction.findings import Finding, merged
from services.proxy.redaction.shape import Shape

_REMEMBER_FROM = 200
"""Characters: a shorter text is searched faster than it is looked up."""
_REMEMBERED = 8192
"""Texts a tenant's detector remembers, by digest: about 1 MB."""
_LARGE = 100_000
"""Characters searched at once."""
_OVERLAP = 17_000
"""A private key is the longest thing that is looked for."""
_MAX_HINTED = 160
"""Characters of a value that its field's name may explain."""
_DEPTH = 3
"""Disguises within disguises that are followed."""

_SUSPECT = re.compile(r"[0-9@]")
_EXPLAINING = ("passw", "pwd", "secret", "token", "key", "credential", "pin", "cv", "phone", "mobile", "fax", "tel",
               "birth", "dob", "auth", "account")  # fmt: skip
_WORD = re.compile(r"[^\W\d_]+")
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])|[_-]+")
_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_IDENTIFIER = re.compile(
    rf"(?:ev|tr|se|an|key)_(?:{_UUID}|[0-9a-f]{{12,32}})"
    rf"|(?:chatcmpl-|cmpl-|resp_|msg_|call_|toolu_)(?:{_UUID}|[A-Za-z0-9]{{8,48}})"
)
"""Identifiers as we and the providers make them: every exchange has new ones, and they say nothing."""
_LONGEST_IDENTIFIER = 64
_STAND_IN = re.compile(r"<[A-Z][A-Z_]*(?:_[0-9a-f]{12})?>")
"""What redaction puts in a text: never a finding again."""


class OutOfTime(Exception):
    """An exchange took too long to search; what was not searched is not stored in the clear."""


class Detector:
    """The recognisers one policy asks for."""

    def __init__(
        self,
        dictionaries: tuple[Dictionary, ...] = (),
        countries: frozenset[str] | None = None,
        off: frozenset[str] = frozenset(),
        personal: bool = True,
    ) -> None:
        """`off` are entities that are not reported; without `personal` only secrets and dictionaries count."""
        self._dictionaries = [(d.entity, d.compiled()) for d in dictionaries]
        self._numbers = national.ContextNumbers(countries)
        self._off = off
        self._personal = personal
        self.deadline = math.inf
        """When to give up on a large text (`time.monotonic`)."""
        self._explains: dict[str, bool] = {}
        self._known: OrderedDict[bytes, tuple[Finding, ...]] = OrderedDict()

    def find(self, text: str) -> tuple[Finding, ...]:
        """Disjoint findings in the order of the text."""
        if len(text) < _REMEMBER_FROM:
            return () if self._identifies(text) else tuple(self._search(text))
        key = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        known = self._known.get(key)
        if known is None:
            known = tuple(self._search(text))
            self._known[key] = known
            if len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(key)
        return known

    def find_in(self, text: str, field: str) -> Sequence[Finding]:
        """Findings in the value of a field, whose name may say what a number is."""
        if len(text) > _MAX_HINTED or not field or not self.explains(field):
            return self.find(text)
        if self._identifies(text):
            return ()
        before = f"{_CAMEL.sub(' ', field)}: "
        size = len(before)
        found = self.find(before + text)
        return [Finding(max(0, f.start - size), f.end - size, f.entity) for f in found if f.end > size]

    def _identifies(self, text: str) -> bool:
        return len(text) <= _LONGEST_IDENTIFIER and not self._dictionaries and _IDENTIFIER.fullmatch(text) is not None

    def explains(self, name: str) -> bool:
        """Does a field's name say something about what it holds?"""
        known = self._explains.get(name)
        if known is None:
            if len(self._explains) > _REMEMBERED:
                self._explains.clear()
            words = name.lower()
            known = any(stem in words for stem in _EXPLAINING) or self._numbers.knows(_WORD.findall(words))
            if len(name) <= _REMEMBER_FROM:
                self._explains[name] = known
        return known

    def _search(self, text: str, depth: int = 0) -> list[Finding]:
        if len(text) > _LARGE:
            return self._search_large(text, depth)
        found = [f for f in self._candidates(text, depth) if f.entity not in self._off]
        if not found:
            return found
        if "<" in text:
            ours = [match.span() for match in _STAND_IN.finditer(text)]
            found = [f for f in found if not any(start <= f.start and f.end <= end for start, end in ours)]
        return merged(found)

    def _search_large(self, text: str, depth: int) -> list[Finding]:
        """A large text without its images and archives, piece by piece; pieces overlap by what a finding may span."""
        found: list[Finding] = []
        for start, end in encoded.readable(text):
            for at in range(start, end, _LARGE - _OVERLAP):
                if time.monotonic() > self.deadline:
                    raise OutOfTime(f"a text of {len(text)} characters")
                piece = text[at : min(end, at + _LARGE)]
                found += [Finding(f.start + at, f.end + at, f.entity) for f in self._search(piece, depth)]
        return merged(found)

    def _candidates(self, text: str, depth: int) -> Iterator[Finding]:
        for entity, pattern in self._dictionaries:
            for start, end in pattern.spans(text):
                yield Finding(start, end, entity)
        shape = Shape(text)
        if _harmless(text, shape):
            return
        lower = _lower(text)
        runs = _runs(text) if shape.long else []
        for run in runs:
            yield from secrets.issued(run[0], run.start())
        yield from secrets.find(text, lower, shape)
        if self._personal:
            yield from self._people(text, lower, shape)
        if depth < _DEPTH:
            yield from encoded.find(text, runs, lambda plain: self._search(plain, depth + 1))

    def _people(self, text: str, lower: str, shape: Shape) -> Iterator[Finding]:
        if "@" in text:
            yield from contacts.emails(text)
        if _SUSPECT.search(text) is None:
            return
        runs = numbers.runs(text, shape.numbers())
        if runs or shape.hexadecimal:
            yield from contacts.addresses(text, runs, shape.hexadecimal)
        if runs or shape.pair:
            yield from national.find_alone(text, runs, shape.codes())
        if shape.pair:
            yield from contacts.births(lower)
        if not runs:
            return
        yield from contacts.phones(text, lower, runs)
        yield from contacts.cards(text, runs)
        if shape.iban:
            yield from contacts.ibans(text)
        yield from self._numbers.find(text, lower, runs)


def _runs(text: str) -> list[re.Match[str]]:
    """Runs without blanks that may be an issued key, or something encoded."""
    return [run for run in encoded.LONG.finditer(text) if _SUSPECT.search(run[0]) or _mixed(run[0])]


def _harmless(text: str, shape: Shape) -> bool:
    """Plain words without a digit, an `@` or a word for a secret."""
    if _SUSPECT.search(text) is not None or not text.isascii() or "\\" in text or "%" in text:
        return False
    lower = text.lower()
    return not (shape.long or "://" in lower or "basic" in lower or secrets.spoken_of(lower))


def _mixed(run: str) -> bool:
    """Upper and lower case in turns: base64 has no digit in one of fifty words of 24 characters."""
    return sum(map(str.isupper, run[:48])) >= 3 and not run.isupper()


def _lower(text: str) -> str:
    """Lower case, character by character: places in it are places in the text."""
    lower = text.lower()
    return lower if len(lower) == len(text) else "".join(c if len(c.lower()) != 1 else c.lower() for c in text)
