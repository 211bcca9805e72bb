"""How to reach somebody: e-mail, telephone, network addresses, cards, accounts; and dates of birth."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Sequence

import phonenumbers

from services.proxy.redaction.findings import Finding
from services.proxy.redaction.numbers import Run, digits, iban_length, is_card

ENTITIES = frozenset(
    {"EMAIL_ADDRESS", "CREDIT_CARD", "IBAN_CODE", "PHONE_NUMBER", "IP_ADDRESS", "MAC_ADDRESS", "DATE_OF_BIRTH"}
)
"""What is found here."""

_LOCAL = re.compile(r"[\w.%+'-]{1,64}$")
_DOMAIN = re.compile(r"(?:[^\W_](?:[\w-]{0,61}[^\W_])?\.){1,6}[^\W\d_]{2,24}(?![\w@])")
_NOT_A_PERSON = frozenset({"git", "ssh", "svn", "hg"})
"""Users that every clone URL has."""


def emails(text: str) -> Iterator[Finding]:
    """Addresses around each `@`; needs no pattern that could run over a long text twice."""
    at = text.find("@")
    while at >= 0:
        local = _LOCAL.search(text[max(0, at - 64) : at])
        domain = _DOMAIN.match(text, at + 1)
        if local is not None and domain is not None:
            name = local[0].lstrip(".-'%+")
            if name and name not in _NOT_A_PERSON:
                yield Finding(at - len(name), domain.end(), "EMAIL_ADDRESS")
        at = text.find("@", at + 1)


_CARD = re.compile(r"[2-6](?<![A-Za-z0-9.,-].)\d{3}(?:[ -]?\d){8,15}(?![A-Za-z0-9-])")
_IBAN = re.compile(r"\d(?<=[A-Z]{2}\d)(?<![A-Za-z0-9]...)\d(?:[ -]?[A-Z0-9]){11,31}")
"""Begins at the first digit, behind the two letters of the country: patterns that begin with a digit are fast."""


def cards(text: str, runs: Sequence[Run]) -> Iterator[Finding]:
    for run in runs:
        if run.size >= 12:
            for match in _CARD.finditer(text, run.start, run.end):
                if is_card(match[0]):
                    yield Finding(*match.span(), "CREDIT_CARD")


def ibans(text: str) -> Iterator[Finding]:
    for match in _IBAN.finditer(text):
        start = match.start() - 2
        length = iban_length(text[start : match.end()])
        if length:
            yield Finding(start, start + length, "IBAN_CODE")


_INTERNATIONAL = re.compile(r"\+(?<![A-Za-z0-9+].)\d[\d ().\-/]{6,18}\d(?![A-Za-z0-9])")
_NORTH_AMERICAN = re.compile(
    r"[(2-9](?<![A-Za-z0-9.+-].)(?:(?<=\()[2-9])?\d\d(?:\) ?|[-. ])[2-9]\d\d[-. ]\d{4}(?![A-Za-z0-9-]|\.\d)"
)
_WITH_COUNTRY = re.compile(r"1[-. ](?<![A-Za-z0-9.+-]..)\(?[2-9]\d\d\)?[-. ][2-9]\d\d[-. ]\d{4}(?![A-Za-z0-9-]|\.\d)")
_DIALLED = re.compile(r"[(+\d](?<![\w.,#-].)[\d ().\-/]{5,18}\d(?![\w-]|\.\d)")
_PHONE_WORD = re.compile(
    r"\b(?:phone|mobile|cell|cellphone|whatsapp|sms|fax|telefon|handy|teléfono|téléphone|telephone|tel|callback|dial"
    r"|rufnummer|móvil|portable|(?:call|reach|text|ring) me|reached (?:at|on))\b"
)
_PHONE_STEMS = ("phon", "mobile", "cell", "whatsapp", "sms", "fax", "handy", "tel", "téléph", "callback", "dial",
                "rufnummer", "móvil", "portable", "all me", "each me", "ext me", "ing me", "reached")  # fmt: skip
"""Without one of these before it a number has no word for a telephone."""
_PHONE_WINDOW = 40
_REGIONS = ("US", "GB", "DE", "FR", "ES", "IT", "NL", "IN", "AU", "BR", "JP")
"""Countries whose national form is understood behind a word for a telephone."""


def phones(text: str, lower: str, runs: Sequence[Run]) -> Iterator[Finding]:
    """Telephone numbers: international or North American in form, or valid and behind a word for one."""
    for run in runs:
        if run.size < 7:
            continue
        start = max(0, run.start - 1)  # a `+` or `(` may come first
        if text[start] == "+":
            for match in _INTERNATIONAL.finditer(text, start, run.end):
                if _is_phone(match[0], None):
                    yield Finding(*match.span(), "PHONE_NUMBER")
        if run.size >= 10 and not run.text.isdigit():
            for form in (_NORTH_AMERICAN, _WITH_COUNTRY):
                for match in form.finditer(text, start, run.end):
                    yield Finding(*match.span(), "PHONE_NUMBER")
        before = lower[max(0, run.start - _PHONE_WINDOW) : run.start]
        if any(map(before.__contains__, _PHONE_STEMS)):
            yield from _dialled(text, lower, start, run.end)


def _dialled(text: str, lower: str, start: int, end: int) -> Iterator[Finding]:
    for match in _DIALLED.finditer(text, start, end):
        said = _PHONE_WORD.search(lower, max(0, match.start() - _PHONE_WINDOW), match.start())
        if said is not None and any(_is_phone(match[0], region) for region in _REGIONS):
            yield Finding(*match.span(), "PHONE_NUMBER")


def _is_phone(text: str, region: str | None) -> bool:
    number = digits(text)
    if not 7 <= len(number) <= 15:
        return False
    # national forms other than North America's begin with 0: without it any row of digits would do
    if region is not None and not text.startswith("+") and region != "US" and not number.startswith("0"):
        return False
    try:
        parsed = phonenumbers.parse(text, region)
    except phonenumbers.NumberParseException:
        return False
    return phonenumbers.is_possible_number(parsed) if region is None else phonenumbers.is_valid_number(parsed)


_IPV4 = re.compile(r"\d(?<![\w.-].)\d{0,2}(?:\.\d{1,3}){3}(?![\w-]|\.\d)")
_VERSION = re.compile(r"(?i)(?:version|release|build|v|ver\.?|==|>=|<=|~=)[ =:]{0,3}$")
_COLON = re.compile(r":(?<=[0-9A-Fa-f:]:)[0-9A-Fa-f:]")
_DASH = re.compile(r"-(?<=[0-9A-Fa-f]{2}-)[0-9A-Fa-f]{2}-[0-9A-Fa-f]{2}-")
_HEX_BEFORE = re.compile(r"[0-9A-Fa-f:-]{0,40}$")
_HEX_AFTER = re.compile(r"[0-9A-Fa-f:-]{1,48}")
_MAC = re.compile(r"[0-9A-Fa-f]{2}([:-])(?:[0-9A-Fa-f]{2}\1){4}[0-9A-Fa-f]{2}")
_TIME = re.compile(r"\d{1,2}(?::\d{2}){1,2}")


def addresses(text: str, runs: Sequence[Run], hexadecimal: bool) -> Iterator[Finding]:
    """IP and MAC addresses of a machine somebody may sit at; not loopback, not a version with three dots.

    `hexadecimal` is whether the text's shape has room for one that is written so.
    """
    for run in runs:
        if run.text.count(".") >= 3:
            for match in _IPV4.finditer(text, run.start, run.end):
                if _is_host(match[0]) and not _VERSION.search(text[max(0, match.start() - 12) : match.start()]):
                    yield Finding(*match.span(), "IP_ADDRESS")
    done = 0
    for sign in (_COLON, _DASH) if hexadecimal else ():
        for match in sign.finditer(text):
            if match.start() < done and sign is _COLON:
                continue
            before = _HEX_BEFORE.search(text[max(0, match.start() - 40) : match.start()])
            after = _HEX_AFTER.match(text, match.start())
            start = match.start() - (len(before[0]) if before else 0)
            done = after.end() if after else match.end()
            yield from _hexadecimal(text, start, done)


def _hexadecimal(text: str, start: int, end: int) -> Iterator[Finding]:
    """An IPv6 or MAC address that is all of this run."""
    run = text[start:end].rstrip(":-") if text[end - 2 : end] != "::" else text[start:end]
    end = start + len(run)
    if _TIME.fullmatch(run) or (start and text[start - 1].isalnum()) or text[end : end + 1].isalnum():
        return
    if _MAC.fullmatch(run):
        yield Finding(start, end, "MAC_ADDRESS")
    elif run.count(":") >= 3 and len(run) > 7 and any(c.isdigit() for c in run) and _is_host(run):
        yield Finding(start, end, "IP_ADDRESS")


def _is_host(text: str) -> bool:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    return not (address.is_loopback or address.is_unspecified or address.is_multicast or text == "255.255.255.255")


_BIRTH = re.compile(
    r"\b(?:dob|d\.o\.b\.?|date[ _-]of[ _-]birth|birth[ _-]?date|date de naissance|geburtsdatum|geboren am|born(?: on)?)"
    r"\b\W{0,6}(?:is )?(\d{4}-\d{2}-\d{2}|\d{1,2}[./-]\d{1,2}[./-]\d{2,4}|\d{1,2}\.? [a-z]{3,9}\.?,? \d{4}"
    r"|[a-z]{3,9} \d{1,2}(?:st|nd|rd|th)?,? \d{4})"
)


def births(lower: str) -> Iterator[Finding]:
    """Dates somebody was born on."""
    if "birth" in lower or "dob" in lower or "born" in lower or "d.o.b" in lower or "geb" in lower or "naiss" in lower:
        for match in _BIRTH.finditer(lower):
            yield Finding(*match.span(1), "DATE_OF_BIRTH")
