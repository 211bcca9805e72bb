"""The shape of a text: each character's sort as one byte, so that a substring search says what can't be in it.

The recognisers' patterns look at every digit and capital; a search for a few fixed bytes takes a hundredth of
that. Every answer errs on one side: where it is no, the patterns would find nothing either.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterator

_DIGIT, _UPPER, _SEPARATOR, _OTHER = b"9A-a"
_SEPARATORS = " ().-/"
"""What may stand between the digits of one number (`numbers`)."""
_IN_A_WORD = "+/=_.~%:-"
"""What may stand in a run without blanks besides letters and digits (`encoded.LONG`)."""


def _sort(char: str) -> int:
    if not char.isascii():
        return _OTHER
    if char.isdigit():
        return _DIGIT
    if char.isupper():
        return _UPPER
    return _SEPARATOR if char in _SEPARATORS else _OTHER


_SORTS = bytes(_sort(chr(code)) for code in range(256))
_RUNS = bytes(
    ord("x") if code < 128 and (chr(code).isalnum() or chr(code) in _IN_A_WORD) else ord(" ") for code in range(256)
)
_LONG = b"x" * 16
_CODES = bytes(
    ord("x") if chr(code) in string.ascii_uppercase + string.digits + ".+-" else ord(" ") for code in range(256)
)
_CODE = b"x" * 9
_NUMBER = re.compile(rb"9[9-]{2,}9")
_ANY_NUMBER = re.compile(r"\d[\d ().\-/]{2,}\d")
_OTHER_DIGIT = re.compile(r"[^\D0-9]")
"""`\\d` knows the digits of all scripts."""


class Shape:
    """What one text may hold."""

    __slots__ = ("_encoded", "_sorts", "_text", "hexadecimal", "iban", "long", "pair", "triple")

    long: bool
    """A run of 16 characters without blanks?"""
    pair: bool
    """Two digits side by side?"""
    triple: bool
    """Three digits side by side?"""
    iban: bool
    """Two capitals and two digits side by side?"""
    hexadecimal: bool
    """An address in pairs or fours of hexadecimal digits?"""

    def __init__(self, text: str) -> None:
        self._text = text
        self._encoded = encoded = text.encode("ascii", "replace")
        self._sorts: bytes | None = encoded.translate(_SORTS)
        self.long = _LONG in encoded.translate(_RUNS)
        if not text.isascii() and _OTHER_DIGIT.search(text) is not None:
            self._sorts = None
            self.pair = self.triple = self.iban = self.hexadecimal = True
            return
        self.pair = b"99" in self._sorts
        self.triple = self.pair and b"999" in self._sorts
        self.iban = self.pair and b"AA99" in self._sorts
        self.hexadecimal = text.count(":") >= 3 or text.count("-") >= 5

    def numbers(self) -> list[tuple[int, int, int]]:
        """Where four characters or more are digits and separators, and begin and end in a digit; how many digits."""
        if self._sorts is None:
            matches = _ANY_NUMBER.finditer(self._text)
            return [(m.start(), m.end(), sum(char.isdigit() for char in m[0])) for m in matches]
        spans = [match.span() for match in _NUMBER.finditer(self._sorts)]
        return [(start, end, self._sorts.count(b"9", start, end)) for start, end in spans]

    def codes(self) -> Iterator[tuple[int, int]]:
        """Where nine characters or more are capitals, digits, and signs within them."""
        marked = self._encoded.translate(_CODES)
        at = marked.find(_CODE)
        while at >= 0:
            end = marked.find(b" ", at)
            yield at, len(marked) if end < 0 else end
            at = marked.find(_CODE, end) if end >= 0 else -1
