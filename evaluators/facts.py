"""Facts stated in plain text: which topic, which value.

Extractive on purpose: a statement is only ever a sentence somebody wrote, brought into one form
("The returns window is 45 days."). What can't be read that way is not a fact here.
"""

from __future__ import annotations

import re

import msgspec

_STATEMENT = re.compile(
    r"(?:^|[,;:]\s*|\b(?:because|that|but|and)\s+)"
    r"(?:(?:no|sorry|actually|wrong)[,!.]?\s+)?"
    r"(?:the|our|your|its)\s+(?P<topic>[a-z][a-z -]{2,60}?)\s+"
    r"(?:is|are|was|costs?|takes?|lasts?)\s+(?:now|actually|really|currently|still)?\s*"
    r"(?P<value>[^.;,!?]*\d[^.;,!?]*)",
    re.IGNORECASE,
)
_LONGEST = 400
"""Characters of a sentence that states a fact: what has more is a document, and would take its square to read."""
_FILLER = re.compile(r"\s+(?:now|actually|these days|today|and not .*|not .*|instead of .*)$", re.IGNORECASE)
_QUANTITY = re.compile(r"(?<![\w.])(\d+(?:[.,]\d+)?)\s*-?\s*([a-z%€$]+)?", re.IGNORECASE)


class Fact(msgspec.Struct, frozen=True):
    topic: str
    value: str

    @property
    def text(self) -> str:
        """The one form a fact is stored and shown in."""
        return f"The {self.topic} is {self.value}."


def stated_fact(text: str) -> Fact | None:
    """The first fact with a quantity that the text states, or None."""
    for sentence in re.split(r"(?<=[.!?])\s+", text.strip()):
        found = _STATEMENT.search(sentence) if len(sentence) <= _LONGEST else None
        if found:
            value = _FILLER.sub("", found["value"].strip())
            return Fact(topic=" ".join(found["topic"].lower().split()), value=value)
    return None


def quantities(text: str) -> list[tuple[str, str]]:
    """Numbers with their units in order, e.g. `[("45", "day")]`; order numbers like A1234 are not quantities."""
    return [(number.replace(",", "."), unit.lower().rstrip("s")) for number, unit in _QUANTITY.findall(text or "")]


def same_quantities(answer: str, reference: str) -> bool:
    """Does the answer state the reference's quantities and no other? False when the reference has none."""
    wanted = quantities(reference)
    return bool(wanted) and quantities(answer) == wanted
