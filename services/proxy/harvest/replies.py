"""What the user's next message says about the answer before it.

Signals: `user_corrects`, `user_repeats`, `user_thanks`, `user_wants_person`. Their confidences are the
precisions measured on the labelled set in `tests/harvest`, rounded down.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from services.proxy.harvest import words

CONFIDENCE = {
    ("user_corrects", "strong"): 0.9,
    ("user_corrects", "weak"): 0.7,
    ("user_repeats", "repeated"): 0.8,
    ("user_repeats", "rephrased"): 0.6,
    ("user_thanks", "closing"): 0.9,
    ("user_thanks", "first"): 0.7,
    ("user_wants_person", "asked"): 0.9,
}
_LOOKED_AT = 600
"""Characters of a message: a reaction to the answer comes first, a pasted document may follow."""
_ENDING = 300
"""Characters of an answer: a question to the user comes last."""
_SAME = 0.95
_ALIKE = 0.7
_LONG_ENOUGH = 12
"""Characters; shorter messages (yes, continue) repeat without meaning it."""
_TOO_LONG = 500
"""Characters; longer messages on one topic are alike anyway."""
_AT_ONCE = 12
"""Thanks that begin within this many characters are the first thing said."""
_QUOTED = re.compile(r"```.*?```|^>.*$|\"[^\"]{20,}\"", re.DOTALL | re.MULTILINE)
_SPACE = re.compile(r"\s+")
_NOT_WORD = re.compile(r"[^\w]+")


class Reaction(NamedTuple):
    """One thing a reply says."""

    name: str
    value: float
    """-1 (the answer was bad) to 1 (it was good)."""
    confidence: float
    label: str


def reactions(text: str, answer: str, earlier: list[str]) -> list[Reaction]:
    """What a user's message says about the answer it follows; `earlier` are the user's messages before it."""
    said = _said(text)
    asked = bool(words.ASKS.search(answer.strip()[-_ENDING:]))
    repeated = _repetition(text, earlier, asked)
    corrected = _correction(said, asked)
    person = words.WANTS_A_PERSON.search(said) and not words.WANTS_NO_PERSON.search(said)
    found = [
        _reaction("user_repeats", -1.0, repeated),
        _reaction("user_corrects", -1.0, corrected),
        _reaction("user_wants_person", -1.0, "asked" if person else None),
    ]
    if not any(found):
        found = [_reaction("user_thanks", 1.0, _gratitude(said, asked))]
    return [each for each in found if each is not None]


def similarity(one: str, other: str) -> float:
    """How alike two texts are, 0 to 1: Dice's coefficient of their character trigrams (any language)."""
    a, b = _trigrams(one), _trigrams(other)
    return 2 * len(a & b) / (len(a) + len(b)) if a and b else 0.0


def _said(text: str) -> str:
    """The beginning of the user's own words: quotations and code are somebody else's."""
    return _SPACE.sub(" ", _QUOTED.sub(" ", text.replace("’", "'"))).strip()[:_LOOKED_AT]


def _reaction(name: str, value: float, label: str | None) -> Reaction | None:
    return None if label is None else Reaction(name, value, CONFIDENCE[name, label], label)


def _correction(said: str, asked: bool) -> str | None:
    if words.NOT_A_CORRECTION.search(said):
        return None
    if words.CORRECTS_STRONGLY.search(said):
        return "strong"
    weak = not asked and words.CORRECTS_WEAKLY.search(said) and not words.CHANGES_MIND.search(said)
    return "weak" if weak else None


def _repetition(text: str, earlier: list[str], asked: bool) -> str | None:
    """The request again, word for word or nearly: the answer did not do.

    Where the answer asked something, the user may well say the same again in reply.
    """
    text = text.strip()
    if not _LONG_ENOUGH <= len(text) <= _TOO_LONG or words.AGREES.search(text):
        return None
    before = [each for each in earlier if _LONG_ENOUGH <= len(each.strip()) <= _TOO_LONG]
    best = max((similarity(text, each) for each in before), default=0.0)
    if best >= _SAME:
        return "repeated"
    return "rephrased" if best >= _ALIKE and not asked else None


def _gratitude(said: str, asked: bool) -> str | None:
    """Thanks that are more than manners: at the end of the matter, or the first thing said where nothing was asked."""
    found = words.THANKS.search(said)
    if words.NOT_THANKS.search(said) or (found is None and not words.CLOSES.search(said)):
        return None
    if found is not None and words.CLOSES.search(said):
        return "closing"
    return "first" if found is not None and found.start() <= _AT_ONCE and not asked else None


def _trigrams(text: str) -> set[str]:
    normal = f" {_NOT_WORD.sub(' ', text.lower()).strip()} "
    return {normal[index : index + 3] for index in range(len(normal) - 2)}
