"""Replay-first evaluation: would a candidate have done better on decisions that really happened?

`engine` re-makes recorded decision chains under a candidate, `judging` says what the record says about the result,
`compare` turns that into an improvement with an interval, `safety` counts what must not be done, and `factory` makes
training rows of what was re-made.
"""

from evaluators.replay.classes import Klass, Shares
from evaluators.replay.compare import CaseResult, Replay, compare, stratified
from evaluators.replay.judging import Judgement, judge
from evaluators.replay.safety import Safety, SafetyPair, safety, safety_violated
from evaluators.replay.seeds import seed_of
from evaluators.replay.selection import select, usable

__all__ = [
    "CaseResult",
    "Judgement",
    "Klass",
    "Replay",
    "Safety",
    "SafetyPair",
    "Shares",
    "compare",
    "judge",
    "safety",
    "safety_violated",
    "seed_of",
    "select",
    "stratified",
    "usable",
]
