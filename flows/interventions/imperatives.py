"""Instructions that people give in their corrections, and how many independent people give them."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from evaluators.cases import Case
from evaluators.skills.when import content, words
from flows.interventions.sources import everywhere, independent

_SENTENCE = re.compile(r"[^.!?\n]+")
_IMPERATIVE = re.compile(
    r"^\W*(?:(?:no|please|next time|and|you (?:should|must|need to|have to))[,\s]+)*"
    r"(?P<text>(?P<how>always|never|don't|do not|make sure|remember to|be sure to|stop)\s+.+)$",
    re.IGNORECASE,
)
_NEGATIVE = frozenset({"never", "don't", "do not", "stop"})
_MANNER = frozenset({"always", "never", "don", "not", "make", "sure", "remember", "stop", "please", "next", "time"})
_ALIKE = 0.6
_SHORTEST = 2
_LONGEST = 400
"""Characters of an instruction: it is told with every request, and reading takes the square of it."""
_OVERRIDES = re.compile(
    r"\b(ignore|disregard|forget|override|bypass)\b.*\b(rules?|instructions?|polic|guardrails?|prompt)|"
    r"\b(password|api key|secret|system prompt)\b",
    re.IGNORECASE,
)
"""What a correction may not ask for: these are attempts, not corrections."""


class Imperative(msgspec.Struct, frozen=True):
    text: str
    """As somebody wrote it, the shortest of those alike; where there are several tenants, of those that hold no word
    which only one of them says."""
    cases: tuple[Case, ...]
    provenance: tuple[str, ...]
    """Ids of the corrections."""
    against: int
    """Sessions that say the opposite."""


class _Said(msgspec.Struct):
    text: str
    about: frozenset[str]
    negative: bool
    case: Case
    id: str


def imperatives(cases: Sequence[Case], least: int) -> list[Imperative]:
    """Instructions that at least `least` sessions give and most agree on, the most frequent first.

    What holds a number or an id is a fact, not an instruction; what one end user or, among several, one tenant alone
    says is not told to all.
    """
    groups: list[list[_Said]] = []
    for said in _all(cases):
        mine = next((g for g in groups if _jaccard(g[0].about, said.about) >= _ALIKE), None)
        if mine is None:
            groups.append([said])
        else:
            mine.append(said)
    found = []
    several = len({case.tenant for case in cases}) > 1
    for group in groups:
        for negative in (False, True):
            agreeing = [s for s in group if s.negative is negative]
            speakers = [s.case for s in agreeing]
            against = len({s.case.session for s in group} - {c.session for c in speakers})
            sessions = len({c.session for c in speakers})
            texts = [s.text for s in agreeing if not several or _said_elsewhere(s, agreeing)]
            if texts and independent(speakers, least) and everywhere(speakers, cases) and sessions > 2 * against:
                text = min(texts, key=lambda t: (len(t), t))
                ids = tuple(sorted(s.id for s in agreeing))
                found.append(Imperative(text, tuple(speakers), ids, against))
    return sorted(found, key=lambda i: (-len(i.cases), i.text))


def _all(cases: Sequence[Case]) -> list[_Said]:
    found = []
    for case in cases:
        for remark in case.corrections:
            for sentence in _SENTENCE.findall(remark.text):
                match = _IMPERATIVE.match(sentence) if len(sentence) <= _LONGEST else None
                if match is None or any(c.isdigit() for c in sentence) or _OVERRIDES.search(sentence):
                    continue
                about = words(match["text"]) - _MANNER
                if len(about) >= _SHORTEST:
                    text = match["text"].strip()
                    negative = match["how"].lower() in _NEGATIVE
                    found.append(_Said(f"{text[0].upper()}{text[1:]}.", about, negative, case, remark.id))
    return found


def _said_elsewhere(said: _Said, alike: Sequence[_Said]) -> bool:
    """Is each of its words, but for its manner, also said by somebody of another tenant?"""
    theirs = {word for other in alike if other.case.tenant != said.case.tenant for word in content(other.text)}
    return content(said.text) - _MANNER <= theirs


def _jaccard(a: frozenset[str], b: frozenset[str]) -> float:
    return len(a & b) / len(a | b) if a | b else 0.0
