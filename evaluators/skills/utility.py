"""What a skill in use is good for: how those fare who were shown it, beside the same requests without it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from evaluators.cases import Case, Key
from evaluators.intervals import Interval, rate_difference, wilson
from evaluators.skills.when import words
from registry.manifest import Skill


class Utility(msgspec.Struct, frozen=True, kw_only=True):
    skill: str
    used: int
    """Judged decisions it was shown for."""
    succeeded: int
    success: Interval
    without: Interval
    """Success of the same kind of request where it was not shown (before it came, in other versions)."""
    difference: Interval
    sessions: tuple[Key, ...]
    """Sessions it was shown in."""

    @property
    def harmful(self) -> bool:
        """Is it certain to do harm? Not enough data is no answer to that."""
        return bool(self.used and self.without.n) and self.difference.high < 0


def utility(skill: Skill, cases: Sequence[Case], alpha: float = 0.05) -> Utility:
    """Counts and rates of one skill over judged decisions, whichever version served them."""
    judged = [c for c in cases if c.success is not None]
    shown = [c for c in judged if skill.heading in c.overlay_text]
    not_shown = [c for c in judged if skill.heading not in c.overlay_text and _for(skill, c.request)]
    succeeded = sum(bool(c.success) for c in shown)
    success = wilson(succeeded, len(shown), alpha)
    without = wilson(sum(bool(c.success) for c in not_shown), len(not_shown), alpha)
    return Utility(
        skill=skill.id,
        used=len(shown),
        succeeded=succeeded,
        success=success,
        without=without,
        difference=rate_difference(success, without),
        sessions=tuple(sorted({c.session for c in shown})),
    )


def _for(skill: Skill, request: str) -> bool:
    """Is it for such a request? As retrieval has it by default: half the words of a kind."""
    said = words(request)
    kinds = [words(kind) for kind in skill.kinds]
    return any(kind and 2 * len(said & kind) >= len(kind) for kind in kinds)
