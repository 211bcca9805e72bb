"""Which of many topics a message is about: by the words they share."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Generic, TypeVar

_STOP_WORDS = frozenset(
    re.findall(
        r"\w+",
        "a an and any are at be by can do does for from has have how i in is it its me my of on or our the their "
        "this to was we what when where which who will with you your",
    )
)
_WORD = re.compile(r"\w+")

T = TypeVar("T")


def words(text: str) -> set[str]:
    """The words of a text in lower case, stop words aside."""
    return {word for word in _WORD.findall(text.lower()) if word not in _STOP_WORDS}


Found = tuple[int, float, int, T]
"""A thing that a message is about, behind what it is preferred by: its rank (smaller ones go before better matches),
the share of its topic's words that the message lacks, and its order among equals."""


class Index(Generic[T]):
    """Things by the words of their topics."""

    def __init__(self, things: Iterable[tuple[T, str, int, int]]) -> None:
        """Each with its topic, its rank and its order; no two have the same order."""
        self._things: list[tuple[T, int, int, int]] = []
        self._having: dict[str, list[int]] = defaultdict(list)
        for position, (thing, topic, rank, order) in enumerate(things):
            topic_words = words(topic)
            self._things.append((thing, len(topic_words), rank, order))
            for word in topic_words:
                self._having[word].append(position)

    def about(self, said: set[str], overlap: float) -> list[Found[T]]:
        """The things of whose topic `said` has at least the share `overlap`, and one word; preferred ones first."""
        hits: Counter[int] = Counter()
        for word in said & self._having.keys():
            hits.update(self._having[word])
        found: list[Found[T]] = []
        for position, count in hits.items():
            thing, size, rank, order = self._things[position]
            if count >= overlap * size - 1e-9:
                found.append((rank, 1 - count / size, order, thing))
        found.sort()
        return found
