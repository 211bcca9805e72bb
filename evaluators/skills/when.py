"""The few words by which requests of one kind are told from all others."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from evaluators.tasks import task_key

_MOST_WORDS = 12
_CANDIDATES = 32
_LEAST = 1 / 3
_COMMON = frozenset(
    re.findall(
        r"\w+",
        "the and for are was with you your please can could would this that have has had not but what when where how "
        "why want wants need needs like just from about there they them then than will does did its don won "
        "been any other number",
    )
)


def words(text: str) -> frozenset[str]:
    """The words of a request that may say what it is about: no numbers, no names, nothing that is in all requests."""
    said = task_key(text).split()
    return frozenset(word for word in said if word.isalpha() and len(word) > 2 and word not in _COMMON)


def content(text: str) -> frozenset[str]:
    """All words but those that are in any text; names too."""
    said = re.findall(r"[^\W\d_]+", text.lower())
    return frozenset(word for word in said if len(word) > 2 and word not in _COMMON)


def common_words(requests: Iterable[tuple[str, str]]) -> frozenset[str] | None:
    """Of (tenant, request): the words that more than one tenant says; None when there is only one tenant.

    What all tenants are told is made of these: a word that only one says may be its own.
    """
    said: dict[str, set[str]] = {}
    for tenant, text in requests:
        said.setdefault(tenant, set()).update(words(text))
    if len(said) < 2:
        return None
    counts = Counter(word for mine in said.values() for word in mine)
    return frozenset(word for word, n in counts.items() if n > 1)


def distinctive(
    mine: Sequence[str], others: Sequence[str], weight: float = 1.0, among: Collection[str] | None = None
) -> tuple[str, ...]:
    """The words, twelve at most, any of which is in many of `mine` and in few of `others`.

    Each is the one that then raises F1 most (greedy set cover), and is said in at least two of `mine`. Empty when they
    find less than a third of `mine`, or when more than a third of what they find are `others`. `weight` is how many
    requests each of `mine` stands for, where they are a sample and `others` are not. `among` are the words to choose
    from, where not every word may be told.
    """
    own = [words(text) for text in mine]
    other = [words(text) for text in others]
    said, elsewhere = Counter(w for each in own for w in each), Counter(w for each in other for w in each)
    lift = {w: n / max(1, len(own)) - elsewhere[w] / max(1, len(other)) for w, n in said.items() if n > 1}
    may = (w for w in lift if lift[w] > 0 and (among is None or w in among))
    candidates = sorted(may, key=lambda w: (-lift[w], w))[:_CANDIDATES]
    chosen: list[str] = []
    best = (0.0, 0.0, 0.0)
    while len(chosen) < _MOST_WORDS:
        tried = {word: _f1(own, other, [*chosen, word], weight) for word in candidates if word not in chosen}
        word = max(tried, key=lambda w: (tried[w][0], -candidates.index(w)), default=None)
        if word is None or tried[word][0] <= best[0] + 1e-9:
            break
        chosen.append(word)
        best = tried[word]
    _, hits, false = best
    return tuple(chosen) if hits >= _LEAST * weight * len(own) and 2 * false <= hits else ()


def _f1(
    own: Sequence[frozenset[str]], other: Sequence[frozenset[str]], chosen: list[str], weight: float
) -> tuple[float, float, float]:
    """(F1, requests found that should be, requests found that should not be)."""
    hits = weight * sum(not said.isdisjoint(chosen) for said in own)
    false = sum(not said.isdisjoint(chosen) for said in other)
    return (2 * hits / (weight * len(own) + hits + false) if hits else 0.0), hits, false
