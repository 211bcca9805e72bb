"""How old the weights are that sampled the rows, and which rows are too old to learn from.

A row's staleness is the number of weight updates between its oldest own token and the weights training
starts from. It is judged here, where rows are consumed, not where they are made: a row may wait.
Source: AReaL (arXiv:2505.24298), section 5.1, where the bound is η.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from services.worker.training.examples import Example, own_tokens
from services.worker.training.job import JobError


def staleness(example: Example, policy_version: int) -> int | None:
    """Versions behind, or None if the row doesn't say what sampled it. Raises `JobError` for tokens newer than
    the weights training starts from."""
    if example.policy_versions is None:
        return None
    own = own_tokens(example, forced=True)
    behind = [policy_version - s.version for s in example.policy_versions if any(own[s.start : s.end])]
    if behind and min(behind) < 0:
        raise JobError(
            f"policy_versions: a row was sampled by version {policy_version - min(behind)}, "
            f"but training starts from policy_version {policy_version}"
        )
    return max(behind, default=0)


def drop_stale(
    examples: Sequence[Example], policy_version: int | None, bound: int | None
) -> tuple[list[Example], dict[str, int], dict[str, int]]:
    """(the rows at most `bound` versions old, how many were dropped by reason, all rows' histogram by age)."""
    if policy_version is None:
        return list(examples), {}, {}
    ages = [staleness(example, policy_version) for example in examples]
    counts = Counter(ages)
    histogram = {"unknown" if age is None else str(age): counts[age] for age in sorted(counts, key=_order)}
    if bound is None:
        return list(examples), {}, histogram
    dropped = Counter(reason for age in ages if (reason := _too_old(age, bound)))
    kept = [example for example, age in zip(examples, ages, strict=True) if _too_old(age, bound) is None]
    return kept, dict(dropped), histogram


def _order(age: int | None) -> int:
    return -1 if age is None else age


def _too_old(age: int | None, bound: int) -> str | None:
    if age is None:
        return "of unknown policy version"
    return f"stale: more than {bound} versions old" if age > bound else None
