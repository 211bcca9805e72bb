"""Checksums: what tells an account or a person's number from any other row of digits."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cache
from importlib import import_module
from typing import NamedTuple

_NOT_DIGIT = re.compile(r"\D")
_DATE = re.compile(r"(?:19|20)\d\d(?:-\d\d-\d\d)?$")
"""Years and dates: most runs of digits are, and none is anybody's number."""
_WORD_CHAR = re.compile(r"\w{0,128}")
"""More than any number has. A megabyte of digits and letters is one word: to its end from each run is its square."""


class Run(NamedTuple):
    """Four digits or more with nothing but separators between them: where every number is looked for."""

    start: int
    end: int
    """Behind the word the digits end in, so that a pattern sees what follows them."""
    size: int
    """How many digits."""
    text: str


def runs(text: str, spans: Iterable[tuple[int, int, int]]) -> list[Run]:
    """Every run of digits, in order; `spans` is where the text's shape has them, and how many digits."""
    found = []
    for start, stop, size in spans:
        run = text[start:stop]
        if stop - start <= 10 and _DATE.match(run):
            continue
        after = _WORD_CHAR.match(text, stop)
        end = after.end() if after is not None else stop
        # a pattern may look two characters further, to tell `1.2.3.4` from `1.2.3.4.5`
        found.append(Run(start, min(len(text), end + 2), size, run))
    return found


_CARD_BEGINNINGS = re.compile(
    r"^(?:4\d{12}(?:\d{3}){0,2}|5[1-5]\d{14}|2(?:2[2-9]|[3-6]\d|7[01])\d{13}|3[47]\d{13}|3(?:0[0-5]|[68]\d)\d{11}"
    r"|6(?:011|5\d\d|4[4-9]\d)\d{12}|35(?:2[89]|[3-8]\d)\d{12}|62\d{14,17})$"
)
"""Issuer ranges with their lengths: without them one number in ten passes Luhn."""

STDNUM = {
    "AU_ABN": "au.abn", "AU_ACN": "au.acn", "AU_TFN": "au.tfn", "CA_SIN": "ca.sin", "DE_TAX_ID": "de.idnr",
    "DE_VAT_ID": "de.vat", "ES_NIE": "es.nie", "ES_NIF": "es.nif", "FI_PERSONAL_IDENTITY_CODE": "fi.hetu",
    "IN_AADHAAR": "in_.aadhaar", "IN_PAN": "in_.pan", "IN_GSTIN": "in_.gstin", "IT_FISCAL_CODE": "it.codicefiscale",
    "IT_VAT_CODE": "it.iva", "KR_RRN": "kr.rrn", "KR_BRN": "kr.brn", "UK_NHS": "gb.nhs", "PL_PESEL": "pl.pesel",
    "SE_ORGANISATIONSNUMMER": "se.orgnr", "SE_PERSONNUMMER": "se.personnummer", "SG_UEN": "sg.uen",
    "TH_TNIN": "th.pin", "TR_NATIONAL_ID": "tr.tckimlik", "US_ITIN": "us.itin",
    "ABA_ROUTING_NUMBER": "us.rtn", "ZA_ID_NUMBER": "za.idnr", "BR_CPF": "br.cpf", "BR_CNPJ": "br.cnpj",
    "FR_NIR": "fr.nir", "NL_BSN": "nl.bsn", "CH_SSN": "ch.ssn", "CN_RIC": "cn.ric", "DK_CPR": "dk.cpr",
    "NO_FODSELSNUMMER": "no.fodselsnummer", "BE_NN": "be.nn", "MX_CURP": "mx.curp", "CRYPTO": "bitcoin",
}  # fmt: skip
"""python-stdnum's module for an entity."""


def digits(text: str) -> str:
    return _NOT_DIGIT.sub("", text)


def luhn(number: str) -> bool:
    """ISO/IEC 7812-1: every second digit from the right is doubled, the digit sum is a multiple of ten."""
    total = 0
    for position, char in enumerate(reversed(number)):
        value = ord(char) - 48
        if position % 2:
            value = value * 2 - 9 if value > 4 else value * 2
        total += value
    return total % 10 == 0


def is_card(text: str) -> bool:
    """A payment card's number: an issuer's range, its length, Luhn, and not one digit over and over."""
    number = digits(text)
    return _CARD_BEGINNINGS.match(number) is not None and luhn(number) and len(set(number)) > 1


_IBAN_LENGTHS = {
    country: int(length)
    for group in (
        "NO15 BE16 DK18 FI18 NL18 MK19 SI19 AT20 BA20 EE20 KZ20 LT20 LU20 XK20 CH21 HR21 LI21 LV21 BG22 BH22 CR22",
        "DE22 GB22 GE22 IE22 ME22 RS22 AE23 GI23 IL23 TL23 AD24 CZ24 ES24 MD24 PK24 RO24 SA24 SE24 SK24 TN24 VG24",
        "PT25 IS26 TR26 FR27 GR27 IT27 MC27 MR27 SM27 AL28 AZ28 CY28 DO28 GT28 HU28 LB28 PL28 BR29 PS29 QA29 UA29",
        "JO30 KW30 MU30 MT31",
    )
    for country, length in ((entry[:2], entry[2:]) for entry in group.split())
}
"""The registry of ISO 13616: with the country's own length chance is one in 97 times what the letters allow."""


def iban_length(text: str) -> int:
    """How much of the text from its beginning is an IBAN (ISO 13616, mod 97); 0 when none of it is."""
    wanted = _IBAN_LENGTHS.get(text[:2])
    if wanted is None:
        return 0
    compact: list[str] = []
    for end, char in enumerate(text, 1):
        if char in " -":
            continue
        compact.append(char)
        if len(compact) == wanted:
            moved = "".join((*compact[4:], *compact[:4]))
            valid = int("".join(str(int(c, 36)) for c in moved)) % 97 == 1
            return end if valid and not text[end : end + 1].isalnum() else 0
    return 0


@cache
def checker(entity: str) -> Callable[[str], bool] | None:
    """python-stdnum's test for an entity; None when it has none."""
    module = STDNUM.get(entity)
    return import_module(f"stdnum.{module}").is_valid if module else None
