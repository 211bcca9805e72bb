"""The few words by which requests of one kind are told from all others."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import combinations

_WORD = re.compile(r"\b[a-z]{3,}\b")
_MOST_WORDS = 3
_CANDIDATES = 8
_OVERLAP = 0.5
"""Of the words, how many a request must have: what retrieval asks for by default."""
_COMMON = frozenset(
    re.findall(
        r"\w+",
        "the and for are was with you your please can could would this that have has had not but what when where how "
        "why want wants need needs like just from about there they them then than will does did its don won",
    )
)


def words(text: str) -> frozenset[str]:
    """The words of a request that may say what it is about: no numbers, no names, nothing that is in all requests."""
    return frozenset(word for word in _WORD.findall(text.lower()) if word not in _COMMON)


def distinctive(mine: Sequence[str], others: Sequence[str], least: float = 0.6) -> tuple[str, ...]:
    """The words that find most of `mine` and least of `others`: the set, of three at most, with the best F1.

    A request is found when it has half of the words. Empty when no set finds the share `least` of `mine`, or when more
    than half of what it finds are `others`.
    """
    own = [words(text) for text in mine]
    other = [words(text) for text in others]
    frequent = Counter(word for said in own for word in said)
    elsewhere = Counter(word for said in other for word in said)
    lift = {w: n / max(1, len(own)) - elsewhere[w] / max(1, len(other)) for w, n in frequent.items() if n > 1}
    candidates = sorted((w for w in lift if lift[w] > 0), key=lambda w: (-lift[w], w))[:_CANDIDATES]
    best: tuple[float, tuple[str, ...]] = (0.0, ())
    for size in range(1, _MOST_WORDS + 1):
        for chosen in combinations(candidates, size):
            hits, false = _found(own, chosen), _found(other, chosen)
            f1 = 2 * hits / (len(own) + hits + false) if hits else 0.0
            if hits >= least * len(own) and false <= hits and f1 > best[0] + 1e-9:
                best = (f1, chosen)
    return best[1]


def _found(requests: Sequence[frozenset[str]], chosen: tuple[str, ...]) -> int:
    return sum(len(said.intersection(chosen)) >= _OVERLAP * len(chosen) for said in requests)
