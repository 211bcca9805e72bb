"""Which of many topics a message is about: by the words they share."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
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


class Index(Generic[T]):
    """Things by the words of their topics. They are given in the order they are to be preferred in."""

    def __init__(self, ranked: Sequence[tuple[T, str, int]]) -> None:
        """`ranked` holds a thing, its topic and its rank: a better rank (smaller) goes before a better match."""
        self._things: list[tuple[T, int, int]] = []
        self._having: dict[str, list[int]] = defaultdict(list)
        for position, (thing, topic, rank) in enumerate(ranked):
            topic_words = words(topic)
            self._things.append((thing, len(topic_words), rank))
            for word in topic_words:
                self._having[word].append(position)

    def about(self, said: set[str], overlap: float) -> list[T]:
        """The things of whose topic `said` has at least the share `overlap` (and one word): best rank first, then
        the largest share, then the given order."""
        hits: dict[int, int] = defaultdict(int)
        for word in said:
            for position in self._having.get(word, ()):
                hits[position] += 1
        found = []
        for position, count in hits.items():
            thing, size, rank = self._things[position]
            share = count / size
            if share >= overlap - 1e-9:
                found.append((rank, -share, position, thing))
        found.sort(key=lambda each: each[:3])
        return [each[3] for each in found]
