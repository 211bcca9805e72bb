"""May a judge's rewards be believed? A judge that goes by length rewards what nobody is helped by.

Judges (models that score) are held against outcomes (environment, code, people) where both spoke of the same work. A
judge is not believed when its scores follow the length of answers (Spearman's rank correlation, within equal outcomes)
and its scores of good and of bad work don't differ; without any outcome beside it, when they follow length strongly.
Reward hacking has both signs: Skalse et al. 2022; length as the usual proxy: Singhal et al. 2023.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import median

import msgspec

from evaluators.cases import Case
from evaluators.rewards import Signal

_JUDGES = frozenset({"llm_judge", "reward_model"})
_OUTCOMES = frozenset({"environment", "code", "human", "end_user"})
_FEWEST = 20
"""Scores a judge must have given before it is doubted, and outcomes it must have been held against."""
_FOLLOWS = 0.3
"""Rank correlation with length, within equal outcomes, that is more than taste."""
_FOLLOWS_ALONE = 0.5
"""The same where no outcome says otherwise."""
_TELLS = 0.6
"""Chance that the judge scores good work above bad work (AUC); 0.5 is none at all."""


class Disbelief(msgspec.Struct, frozen=True):
    judge: str
    why: tuple[str, ...]


class _Score(msgspec.Struct, frozen=True):
    value: float
    length: int
    outcome: float | None


def doubted(cases: Sequence[Case], alpha: float) -> Disbelief | None:
    """The judge whose scores can't be believed, if there is one. Several versions tell more than one."""
    for judge, scores in sorted(_scores(cases).items()):
        why = _doubts(scores, alpha)
        if why:
            return Disbelief(judge, tuple(why))
    return None


def believed(cases: Sequence[Case], disbelief: Disbelief | None) -> list[Case]:
    """The cases whose reward can be believed.

    A case that was also judged by its outcome is kept with that; one that only the doubted judge had judged goes.
    """
    if disbelief is None:
        return list(cases)
    kept = []
    for case in cases:
        outcome = _outcome(case)
        if case.reward is None or all(_name(s) != disbelief.judge for s in case.signals):
            kept.append(case)
        elif outcome is not None:
            kept.append(msgspec.structs.replace(case, reward=outcome))
    return kept


def _doubts(scores: Sequence[_Score], alpha: float) -> list[str]:
    from scipy.stats import mannwhitneyu, spearmanr

    if len(scores) < _FEWEST or len({s.value for s in scores}) < 2 or len({s.length for s in scores}) < 2:
        return []
    known = [s for s in scores if s.outcome is not None]
    if len(known) < _FEWEST:
        found = spearmanr([s.length for s in scores], [s.value for s in scores])
        if found.statistic < _FOLLOWS_ALONE or found.pvalue > alpha:
            return []
        return [
            f"its scores follow the length of the answer (rank correlation {found.statistic:.2f}, n={len(scores)})",
            f"only {len(known)} of them can be held against an outcome",
        ]
    within = _within_outcomes(known)
    if len({s.length for s in within}) < 2 or len({s.value for s in within}) < 2:
        return []
    found = spearmanr([s.length for s in within], [s.value for s in within])
    good = [s.value for s in known if s.outcome is not None and s.outcome > 0.5]
    bad = [s.value for s in known if s.outcome is not None and s.outcome <= 0.5]
    auc = mannwhitneyu(good, bad).statistic / (len(good) * len(bad)) if good and bad else 0.5
    if found.statistic < _FOLLOWS or found.pvalue > alpha or auc >= _TELLS:
        return []
    return [
        f"its scores follow the length of the answer (rank correlation {found.statistic:.2f}, n={len(within)})",
        f"it scores good work above bad work in {auc:.0%} of pairs; outcomes of {len(known)} are known",
    ]


def _within_outcomes(known: Sequence[_Score]) -> list[_Score]:
    """Lengths as distances from the median of their outcome, so that longer right answers are no excuse."""
    by_outcome: dict[bool, list[_Score]] = defaultdict(list)
    for score in known:
        by_outcome[score.outcome is not None and score.outcome > 0.5].append(score)
    centred = []
    for members in by_outcome.values():
        middle = median(s.length for s in members)
        centred += [msgspec.structs.replace(s, length=int(s.length - middle)) for s in members]
    return centred


def _scores(cases: Sequence[Case]) -> dict[str, list[_Score]]:
    scores: dict[str, list[_Score]] = defaultdict(list)
    for case in cases:
        for signal in case.signals:
            if signal.source in _JUDGES and signal.value is not None:
                scores[_name(signal)].append(_Score(signal.value, _length(case), _outcome(case)))
    return scores


def _outcome(case: Case) -> float | None:
    """The last verdict on the work by somebody other than a judge."""
    said = [s for s in case.signals if s.source in _OUTCOMES and s.value is not None and not s.ignored]
    return said[-1].value if said else None


def _length(case: Case) -> int:
    """Characters the user got to read."""
    last = next((s.text for s in reversed(case.steps) if s.kind == "llm_call" and s.text), "")
    return len(last or case.action.text)


def _name(signal: Signal) -> str:
    return str(signal.key)
