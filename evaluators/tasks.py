"""Which requests are the same task, so that training and evaluation never share one.

A task key is the request with what varies masked: anything with a digit becomes `#`, a capitalised
word that does not begin a sentence `@`. Keys of the same length that differ in one word ("a tent",
"a lamp") are one cluster, as in log-template mining (Drain, He et al. 2017).
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable

_WORD = re.compile(r"[\w']+|[?.!,]")
_ENTITY = re.compile(r"\b(?=\w*\d)(?=\w*[A-Za-z])\w{3,}\b|\b\d{4,}\b")
_SHORTEST_MERGED = 5
"""Keys shorter than this (punctuation included) are never merged: one word is too much of them."""


def task_key(text: str) -> str:
    words: list[str] = []
    initial = True
    for word in _WORD.findall(text):
        if any(c.isdigit() for c in word):
            words.append("#")
        elif word[0].isupper() and not initial and word != "I" and not word.startswith("I'"):
            if words and words[-1] == "@":
                continue
            words.append("@")
        else:
            words.append(word.lower())
        initial = word in "?.!"
    return " ".join(words)


def entities(text: str) -> frozenset[str]:
    """Order numbers and the like: what must not be shared between training and evaluation."""
    return frozenset(found.upper() for found in _ENTITY.findall(text))


def cluster(keys: Iterable[str]) -> dict[str, str]:
    """Each key's cluster, named by its smallest key."""
    parent = {key: key for key in sorted(set(keys))}

    def root(key: str) -> str:
        while parent[key] != key:
            key = parent[key]
        return key

    by_gap: dict[tuple[int, int, tuple[str, ...]], str] = {}
    for key in parent:
        words = key.split()
        if len(words) < _SHORTEST_MERGED:
            continue
        for gap in range(len(words)):
            if words[gap] in ("#", "@", "?", ".", "!", ","):
                continue
            rest = (len(words), gap, tuple(words[:gap] + words[gap + 1 :]))
            first = by_gap.setdefault(rest, key)
            a, b = sorted((root(first), root(key)))
            parent[b] = a
    return {key: root(key) for key in parent}


def held_out(cluster_strata: dict[str, str], share: float) -> frozenset[str]:
    """The clusters kept out of training: `share` of each stratum, chosen by hash.

    `cluster_strata` maps a cluster to what it is about (a tool, a topic); a stratum of one cluster
    is trained on, because nothing could be learned about it otherwise.
    """
    strata: dict[str, list[str]] = defaultdict(list)
    for name, stratum in cluster_strata.items():
        strata[stratum].append(name)
    out: set[str] = set()
    for members in strata.values():
        ranked = sorted(members, key=lambda name: hashlib.sha256(name.encode()).digest())
        out.update(ranked[: min(len(members) - 1, max(1, round(share * len(members))))])
    return frozenset(out)
