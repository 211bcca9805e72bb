"""Text in disguise: base64, hexadecimal, percent and Unicode escapes, characters nobody sees.

Each form is turned back, the plain text is searched, and what holds a finding is a finding itself: the whole
encoded run for base64 and hexadecimal, exactly the characters for the others.
"""

from __future__ import annotations

import base64
import binascii
import re
import urllib.parse
from collections.abc import Callable, Iterator, Sequence

from services.proxy.redaction.findings import Finding

Search = Callable[[str], list[Finding]]
"""Finds in a decoded text."""

LONG = re.compile(r"[A-Za-z0-9+/=_.~%:-]{16,}")
"""Runs without blanks: what issued keys and encoded text look like."""
_RUN = re.compile(r"[A-Za-z0-9+/_-]{16,}(?:(?:\\[rn]|[\r\n]){1,4}[A-Za-z0-9+/_-]{16,})*={0,2}")
"""Base64 and its URL-safe form, with the line breaks of MIME; hexadecimal looks the same."""
_BREAK = re.compile(r"\\[rn]|[\r\n]")
_HEX = re.compile(r"(?:[0-9a-f]{2})+|(?:[0-9A-F]{2})+")
_DIGIT = re.compile(r"\d")
_PROBE = 64
"""Characters decoded first: what is no text in them is an image, a hash, an identifier."""

_PERCENT = re.compile(r"[^\s\"'<>&=?/#%]*(?:%[0-9A-Fa-f]{2}[^\s\"'<>&=?/#%]*)+")
_ESCAPED = re.compile(r"\\u00[2-7][0-9a-fA-F]|\\u(?:00ad|20[06][0-9a-fA-F]|feff)|\\x[2-7][0-9a-fA-F]")
"""Escapes of ASCII and of invisible characters: others hide nothing."""
_INVISIBLE = frozenset("\u00ad\u200b\u200c\u200d\u200e\u200f\u2060\ufeff")
_FOLDED = re.compile("[\u00ad\u200b-\u200f\u2060\ufeff\uff01-\uff5e]")


def find(text: str, runs: Sequence[re.Match[str]], search: Search) -> Iterator[Finding]:
    """Findings under a disguise; nothing that stands in the text as it is. `runs` are its `LONG` runs."""
    done = 0
    for run in runs:
        if run.start() >= done:
            for match in _RUN.finditer(text, run.start(), _extent(text, run.end())):
                done = match.end()
                yield from _run(match, search)
    if "%" in text:
        for match in _PERCENT.finditer(text):
            plain = urllib.parse.unquote(match[0])
            if plain != match[0] and (found := search(plain)):
                yield Finding(*match.span(), found[0].entity)
    if ("\\u" in text or "\\x" in text) and _ESCAPED.search(text):
        yield from _mapped(*_unescaped(text), search)
    if not text.isascii() and _FOLDED.search(text):
        yield from _mapped(*_folded(text), search)


_OPAQUE = re.compile(r"[A-Za-z0-9+/]{4096,}={0,2}")


def readable(text: str) -> Iterator[tuple[int, int]]:
    """Spans of a large text between long encoded runs that hold no text: images, archives, audio."""
    at = 0
    for match in _OPAQUE.finditer(text):
        compact = match[0][:_PROBE]
        if not _HEX.fullmatch(compact) and _text(_base64(compact), whole=False) is None:
            yield at, match.start()
            at = match.end()
    yield at, len(text)


def _extent(text: str, end: int) -> int:
    """The end of a run, or of the lines that go on behind it."""
    return min(len(text), end + 1_000_000) if text[end : end + 1] in ("\n", "\r", "\\") else end


def _run(match: re.Match[str], search: Search) -> Iterator[Finding]:
    run = match[0]
    if run.islower() and _DIGIT.search(run) is None:
        return  # an identifier or a path of words
    for start, end in _pieces(run):
        plain = _decoded(run[start:end])
        if plain is not None and (found := search(plain)):
            yield Finding(match.start() + start, match.start() + end, found[0].entity)
            return


def _pieces(run: str) -> Iterator[tuple[int, int]]:
    """The run, and what `/` cuts out of it: a path may end in something encoded."""
    yield 0, len(run)
    if "/" in run and len(run) < 2048:
        start = 0
        for piece in run.split("/"):
            if 16 <= len(piece) < len(run):
                yield start, start + len(piece)
            start += len(piece) + 1


def _decoded(run: str) -> str | None:
    """The text a run stands for; None when it stands for none."""
    compact = _BREAK.sub("", run) if len(run) > 76 else run
    if _HEX.fullmatch(compact[:_PROBE]) and _HEX.fullmatch(compact):
        return _text(bytes.fromhex(compact))
    compact = compact.rstrip("=").replace("-", "+").replace("_", "/")
    if len(compact) % 4 == 1:
        compact = compact[:-1]
    if _text(_base64(compact[:_PROBE]), whole=len(compact) <= _PROBE) is None:
        return None
    return _text(_base64(compact))


def _base64(text: str) -> bytes:
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4))
    except (binascii.Error, ValueError):
        return b"\xff"


def _text(data: bytes, whole: bool = True) -> str | None:
    """Bytes as text, if they are mostly printable; `whole` is False when a character may be cut at the end."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        if whole or error.start < len(data) - 3:
            return None
        text = data[: error.start].decode()
    printable = sum(c.isprintable() or c in "\r\n\t" for c in text)
    return text if printable == len(text) else None


def _unescaped(text: str) -> tuple[str, list[int]]:
    """The text with `\\u0040` and `\\x40` turned back, and where each of its characters came from."""
    pieces: list[str] = []
    places: list[int] = []
    at = 0
    for match in _ESCAPED.finditer(text):
        pieces.append(text[at : match.start()])
        places.extend(range(at, match.start()))
        pieces.append(chr(int(match[0][2:], 16)))
        places.append(match.start())
        at = match.end()
    pieces.append(text[at:])
    places.extend(range(at, len(text) + 1))
    return "".join(pieces), places


def _folded(text: str) -> tuple[str, list[int]]:
    """The text without invisible characters and with full-width ones as ASCII, and where each came from."""
    pieces: list[str] = []
    places: list[int] = []
    for place, char in enumerate(text):
        if char in _INVISIBLE:
            continue
        code = ord(char)
        pieces.append(chr(code - 0xFEE0) if 0xFF01 <= code <= 0xFF5E else char)
        places.append(place)
    places.append(len(text))
    return "".join(pieces), places


def _mapped(plain: str, places: list[int], search: Search) -> Iterator[Finding]:
    for finding in search(plain):
        yield Finding(places[finding.start], places[finding.end], finding.entity)
