"""Checksums: what tells an account or a person's number from any other row of digits."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from importlib import import_module

_NOT_DIGIT = re.compile(r"\D")

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


def iban_length(text: str) -> int:
    """How much of the text from its beginning is an IBAN (ISO 13616, mod 97); 0 when none of it is."""
    for end in range(len(text), 14, -1):
        if text[end - 1] in " -":
            continue
        compact = text[:end].replace(" ", "").replace("-", "").upper()
        if not 15 <= len(compact) <= 34:
            continue
        moved = compact[4:] + compact[:4]
        if moved.isalnum() and moved.isascii() and int("".join(str(int(c, 36)) for c in moved)) % 97 == 1:
            return end
    return 0


@cache
def checker(entity: str) -> Callable[[str], bool] | None:
    """python-stdnum's test for an entity; None when it has none."""
    module = STDNUM.get(entity)
    return import_module(f"stdnum.{module}").is_valid if module else None
