"""Numbers a state, a bank or a health system gives to people: Presidio's patterns, under stricter conditions.

Presidio reports every row of digits with a low score and leaves the rest to a threshold. Here a number is
reported when it stands alone only if its form or checksum can't be chance; otherwise a word that says what
it is must come shortly before it, and its checksum must hold where there is one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.proxy.redaction.findings import Finding, apart
from services.proxy.redaction.numbers import Run, checker

_FILE = Path(__file__).with_name("presidio.json")

WINDOW = 56
"""Characters behind a word of context in which the number must begin; Presidio takes five words."""

_LONGEST = 24
"""Characters of the longest number."""

_LEFT_OUT = frozenset(
    # with recognisers of our own
    {"CREDIT_CARD", "IBAN_CODE", "EMAIL_ADDRESS", "IP_ADDRESS", "MAC_ADDRESS"}
    # not about a person by themselves, and everywhere in an agent's traffic
    | {"DATE_TIME", "URL", "UUID", "CA_POSTAL_CODE", "UK_POSTCODE", "DE_PLZ"}
    # companies, which are public
    | {"AU_ABN", "AU_ACN", "DE_HANDELSREGISTER", "KR_BRN", "SE_ORGANISATIONSNUMMER", "SG_UEN",
       "ZA_COMPANY_REGISTRATION", "DE_BSNR"}
    # plates look like flight numbers and order numbers
    | {"DE_KFZ", "IN_VEHICLE_REGISTRATION", "NG_VEHICLE_REGISTRATION", "TR_LICENSE_PLATE", "UK_VEHICLE_REGISTRATION",
       "ZA_LICENSE_PLATE"}
)  # fmt: skip

_COMMON = frozenset(
    {"account", "adresse", "approval", "arzt nr", "association", "ausweis", "auth", "authorization", "bank",
     "billing", "bir", "canada", "carta", "certificate", "cf", "check", "cie", "claim", "cms", "conduire", "crn",
     "crypto", "dfa", "dha", "documento", "dokumentennummer", "driving", "ein", "elettronica", "elettronico",
     "epic", "estero", "feld 5", "fev", "fin", "gst", "hic", "id", "identificación", "identification", "identity",
     "identità", "individual", "infusion", "insurance", "invoice", "italiano", "itr", "lic", "licence", "license",
     "medical", "medication", "member", "nas", "ort", "pan", "pass", "patente", "payer", "permit", "pi", "policy",
     "provider", "rdo", "rechnung", "referring", "reg", "registration", "rente", "sars", "save", "security", "sin",
     "social", "specialty", "ssid", "sss", "states", "subscriber", "tax", "tax invoice", "taxonomy", "tin",
     "transaction", "travel", "trn", "united", "us", "vat", "vehicle", "viaggiare", "viaggio", "wallet"}
)  # fmt: skip
"""Words of Presidio's contexts that say nothing by themselves in the traffic of agents."""

_CONTEXT = {
    "US_SSN": ("ssn", "ssns", "social security", "social-security", "socialsecurity"),
    "US_BANK_NUMBER": ("bank account", "account number", "account no", "account#", "acct", "checking account",
                       "savings account", "bank number", "accountnumber"),
    "US_DRIVER_LICENSE": ("driver license", "drivers license", "driver's license", "driver licence", "dls", "cdls",
                          "lic#", "license number", "licence number", "driving license"),
    "US_PASSPORT": ("passport", "passports"),
    "US_HEALTH_INSURANCE_MEMBER_ID": ("health insurance", "subscriber id", "insurance member id", "insurance id"),
    "CA_SIN": ("sin number", "social insurance", "sin:", "sin is"),
    "IN_PAN": ("pan number", "permanent account number", "pan card", "pan:"),
    "US_ITIN": ("itin", "taxid", "taxpayer"),
    "PH_TIN": ("taxpayer identification number", "taxpayer id", "tin number", "tin:"),
    "ZA_ID_NUMBER": ("south african id", "rsa id", "identity number", "id number"),
    "IT_FISCAL_CODE": ("codice fiscale",),
    "MEDICAL_LICENSE": ("dea", "medical license", "medical licence"),
    "US_PROVIDER_TAX_ID": ("ein:", "ein number", "employer identification", "provider tax id"),
    "US_MBI": ("mbi", "medicare", "medicaid", "beneficiary", "hicn"),
}  # fmt: skip
"""Where all of Presidio's words are common, these take their place."""

_ADDED: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
    ("BR_CPF", "br", r"\b\d{3}\.?\d{3}\.?\d{3}-?\d{2}\b", ("cpf",)),
    ("FR_NIR", "fr", r"\b[12] ?\d{2} ?\d{2} ?\d[\dAB] ?\d{3} ?\d{3} ?\d{2}\b",
     ("nir", "insee", "sécurité sociale", "numéro de sécu", "carte vitale")),
    ("NL_BSN", "nl", r"\b\d{3}\.?\d{3}\.?\d{3}\b|\b\d{4}\.?\d{2}\.?\d{3}\b",
     ("bsn", "burgerservicenummer", "sofinummer")),
    ("CH_SSN", "ch", r"\b756\.?\d{4}\.?\d{4}\.?\d{2}\b", ("ahv", "avs", "sozialversicherungsnummer")),
    ("CN_RIC", "cn", r"\b\d{17}[\dXx]\b", ("身份证", "resident identity", "citizen id")),
    ("DK_CPR", "dk", r"\b\d{6}-?\d{4}\b", ("cpr", "personnummer")),
    ("NO_FODSELSNUMMER", "no", r"\b\d{6} ?\d{5}\b", ("fødselsnummer", "fodselsnummer", "personnummer")),
    ("BE_NN", "be", r"\b\d{2}\.?\d{2}\.?\d{2}-?\d{3}\.?\d{2}\b", ("rijksregisternummer", "numéro national")),
    ("MX_CURP", "mx", r"\b[A-Z]{4}\d{6}[A-Z]{6}[A-Z0-9]\d\b", ("curp",)),
)  # fmt: skip
"""Numbers python-stdnum can check and Presidio has no recogniser for."""

_ALONE: tuple[tuple[str, str, bool], ...] = (
    ("US_SSN", r"(?!000|666|9\d\d)\d{3}-(?!00)\d{2}-(?!0000)\d{4}", False),
    ("UK_NINO", r"(?!BG|GB|NK|KN|NT|TN|ZZ)[A-CEGHJ-PR-TW-Z][A-CEGHJ-NPR-TW-Z]\d{6}[A-D]", False),
    ("IT_FISCAL_CODE", r"[A-Z]{6}\d{2}[A-EHLMPR-T]\d{2}[A-Z]\d{3}[A-Z]", True),
    ("DE_SOCIAL_SECURITY", r"\d{2}(?:0[1-9]|[12]\d|3[01])(?:0[1-9]|1[0-2])\d{2}[A-Z]\d{3}", False),
    ("FI_PERSONAL_IDENTITY_CODE", r"\d{6}[-+A]\d{3}[0-9A-FHJ-NPR-Y]", True),
    ("ES_NIF", r"\d{8}-?[A-HJ-NP-TV-Z]", True),
    ("ES_NIE", r"[XYZ]-?\d{7}-?[A-HJ-NP-TV-Z]", True),
    ("US_MBI", r"[1-9][AC-HJ-NP-RT-Y][0-9AC-HJ-NP-RT-Y]\d-[AC-HJ-NP-RT-Y][0-9AC-HJ-NP-RT-Y]\d-[AC-HJ-NP-RT-Y]{2}\d{2}",
     False),
    ("IN_PAN", r"[A-Z]{3}[ABCFGHLJPT][A-Z]\d{4}[A-Z]", True),
    ("IN_GSTIN", r"\d{2}[A-Z]{5}\d{4}[A-Z][A-Z\d]Z[A-Z\d]", True),
    ("KR_RRN", r"\d{6}-[1-8]\d{6}", True),
    ("SE_PERSONNUMMER", r"(?:19|20)?\d{6}[-+]\d{4}", True),
    ("BR_CPF", r"\d{3}\.\d{3}\.\d{3}-\d{2}", True),
    ("CH_SSN", r"756\.\d{4}\.\d{4}\.\d{2}", True),
    ("MX_CURP", r"[A-Z]{4}\d{6}[A-Z]{6}[A-Z0-9]\d", True),
    ("CN_RIC", r"[1-9]\d{5}(?:19|20)\d{9}[\dX]", True),
    ("FR_NIR", r"[12]\d{2}(?:0[1-9]|1[0-2])\d[\dAB]\d{8}", True),
    ("UK_DRIVING_LICENCE", r"[A-Z]{2,5}9{0,3}\d(?:0[1-9]|1[0-2]|5[1-9]|6[0-2])(?:0[1-9]|[12]\d|3[01])\d[A-Z9]{2}"
     r"[A-Z\d][A-Z]{2}", False),
)  # fmt: skip
"""Forms that say what they are (entity, pattern of one token, must python-stdnum agree)."""

_TOKEN = re.compile(r"[0-9A-Z](?<![A-Za-z0-9.+/=&#-].)[0-9A-Z.+-]{8,19}(?![A-Za-z0-9/=+-])")
"""What a number without blanks looks like; upper case only, as these are written."""
_ALONE_UNION = re.compile("|".join(f"(?P<{name}>{pattern})" for name, pattern, _ in _ALONE))
_CHECKED = frozenset(name for name, _, must in _ALONE if must)

_NINO_SPACED = re.compile(r"(?!BG|GB|NK|KN|NT|TN|ZZ)[A-CEGHJ-PR-TW-Z][A-CEGHJ-NPR-TW-Z] \d\d \d\d \d\d [A-D]\b")


@dataclass(frozen=True)
class Recogniser:
    """Patterns that count behind one of their words."""

    entity: str
    country: str | None
    context: tuple[str, ...]
    patterns: tuple[re.Pattern[str], ...]

    def find(self, text: str, start: int, end: int) -> Iterator[Finding]:
        """The first number in the window that passes its checksum, for each pattern."""
        check = checker(self.entity)
        for pattern in self.patterns:
            for match in pattern.finditer(text, start, end):
                if check is None or check(match[0]):
                    yield Finding(*match.span(), self.entity)
                    break


def _recognisers() -> tuple[Recogniser, ...]:
    made = [_from_presidio(entry) for entry in json.loads(_FILE.read_text()) if entry["entity"] not in _LEFT_OUT]
    made += [
        Recogniser(entity, country, context, (re.compile(apart(pattern)),))
        for entity, country, pattern, context in _ADDED
    ]
    return tuple(recogniser for recogniser in made if recogniser.context and recogniser.patterns)


def _from_presidio(entry: dict[str, Any]) -> Recogniser:
    # a look-behind of changing width carries its own context, which is asked for here anyway; `re` has none
    texts = [p["regex"] for p in entry["patterns"] if not p["regex"].startswith("(?<=")]
    context = _CONTEXT.get(entry["entity"]) or tuple(word for word in entry["context"] if word not in _COMMON)
    return Recogniser(entry["entity"], entry["country"], context, tuple(re.compile(_inline(text)) for text in texts))


def _inline(text: str) -> str:
    """Flags in the middle of a pattern, which `re` refuses, at its beginning; its ends as `apart` has them."""
    apart_ = apart(text.replace("(?i)", ""))
    return "(?i)" + apart_ if "(?i)" in text else apart_


RECOGNISERS = _recognisers()
ENTITIES = frozenset({each.entity for each in RECOGNISERS} | {entity for entity, _, _ in _ALONE})
"""What is found here."""

_FIRST_WORD = re.compile(r"[^\W\d_]+")
_LETTERS = re.compile(r"[^\W\d_]{2,}")


class ContextNumbers:
    """The recognisers of some countries, by the words that call them up."""

    def __init__(self, countries: frozenset[str] | None = None) -> None:
        """`countries` as Presidio names them (`us`, `uk`, `de`, …); None is all of them."""
        self._by_word: dict[str, list[tuple[str, list[Recogniser]]]] = {}
        phrases: dict[str, list[Recogniser]] = {}
        for recogniser in RECOGNISERS:
            if countries is None or recogniser.country is None or recogniser.country in countries:
                for phrase in recogniser.context:
                    phrases.setdefault(phrase, []).append(recogniser)
        for phrase, recognisers in phrases.items():
            first = _FIRST_WORD.search(phrase)
            if first is not None:
                self._by_word.setdefault(first[0], []).append((phrase, recognisers))
        self._words = frozenset(self._by_word)

    def knows(self, words: Iterable[str]) -> bool:
        """Is one of these words the beginning of a context?"""
        return not self._words.isdisjoint(words)

    def find(self, text: str, lower: str, runs: Sequence[Run]) -> Iterator[Finding]:
        """Numbers behind a word that says what they are."""
        for start, stop in _windows(runs):
            before = lower[start:stop]
            for word in self._words.intersection(_LETTERS.findall(before)):
                for phrase, recognisers in self._by_word[word]:
                    for end in _occurrences(before, phrase):
                        place = start + end
                        for recogniser in recognisers:
                            yield from recogniser.find(text, place, min(len(text), place + WINDOW + _LONGEST))


def _windows(runs: Sequence[Run]) -> Iterator[tuple[int, int]]:
    """Where a word may stand that speaks of one of the numbers: a window before each, joined where they meet."""
    start = stop = -1
    for run in runs:
        if start < 0 or run.start - WINDOW > stop:
            if stop >= 0:
                yield start, stop
            start = max(0, run.start - WINDOW)
        stop = run.start
    if stop >= 0:
        yield start, stop


def find_alone(text: str, runs: Sequence[Run], codes: Iterable[tuple[int, int]]) -> Iterator[Finding]:
    """Numbers whose form or checksum is enough; `codes` is where the text's shape has room for one."""
    for token in (token for start, end in codes for token in _TOKEN.finditer(text, start, end + 1)):
        value = token[0].rstrip(".-+")
        match = _ALONE_UNION.fullmatch(value)
        if match is None or match.lastgroup is None:
            continue
        check = checker(match.lastgroup) if match.lastgroup in _CHECKED else None
        if check is None or check(value):
            yield Finding(token.start(), token.start() + len(value), match.lastgroup)
    for run in runs:
        if run.size == 6 and run.start >= 3:
            spaced = _NINO_SPACED.match(text, run.start - 3)
            if spaced is not None and (run.start == 3 or not text[run.start - 4].isalnum()):
                yield Finding(*spaced.span(), "UK_NINO")


def _occurrences(text: str, phrase: str) -> Iterator[int]:
    """Ends of the phrase where it stands as words of its own."""
    at = text.find(phrase)
    while at >= 0:
        end = at + len(phrase)
        if (at == 0 or not text[at - 1].isalpha()) and (end >= len(text) or not text[end].isalpha()):
            yield end
        at = text.find(phrase, end)
