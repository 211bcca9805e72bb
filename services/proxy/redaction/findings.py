"""What a recogniser reports: a span of a text and what kind of thing it is."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple


class Finding(NamedTuple):
    start: int
    end: int
    entity: str
    """Presidio's name where it has one (`EMAIL_ADDRESS`), else ours (`API_KEY`, `PASSWORD`, …)."""


SECRETS = frozenset(
    {"API_KEY", "PRIVATE_KEY", "JWT", "CONNECTION_STRING", "CREDENTIAL", "PASSWORD", "TOKEN", "SECRET", "PIN", "CVV"}
)
"""Entities that open something: they are never kept, not even sealed, unless a policy says otherwise."""


def label(entity: str) -> str:
    """The label a stand-in carries: `secret.api_key`, `pii.email_address`."""
    return f"{'secret' if entity in SECRETS else 'pii'}.{entity.lower()}"


def merged(findings: Iterable[Finding]) -> list[Finding]:
    """Disjoint findings in order: overlapping ones become one span, named after a secret or else the longest."""
    result: list[Finding] = []
    best = (False, 0)
    for finding in sorted(findings, key=lambda f: (f.start, -f.end)):
        weight = (finding.entity in SECRETS, finding.end - finding.start)
        if weight[1] <= 0:
            continue
        if result and finding.start < result[-1].end:
            last = result[-1]
            entity = finding.entity if weight > best else last.entity
            best = max(best, weight)
            result[-1] = Finding(last.start, max(last.end, finding.end), entity)
        else:
            result.append(finding)
            best = weight
    return result


def entropy(text: str) -> float:
    """Shannon entropy of the characters, bits a character."""
    total = len(text)
    return -sum(n / total * math.log2(n / total) for n in Counter(text).values())


def apart(pattern: str) -> str:
    r"""The pattern with `\b` at its ends asking for no letter or digit there: `_` joins names (`user_<key>`)."""
    begins, ends = pattern.startswith(r"\b"), pattern.endswith(r"\b")
    inner = pattern[2 * begins : len(pattern) - 2 * ends]
    return (r"(?<![A-Za-z0-9])" if begins else "") + inner + (r"(?![A-Za-z0-9])" if ends else "")
