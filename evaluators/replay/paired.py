"""Champion and candidate both re-made on the same starts, under the same seeds.

Where a world can be reset (an environment with tasks of its own) the champion need not be taken from its record: both
sides are run, and each case's outcomes are compared with each other.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from evaluators.cases import Key
from evaluators.intervals import Interval, PairedCounts, clustered_rate, mean_interval, paired_difference
from evaluators.replay.branch import Branch, judge_branch
from evaluators.replay.classes import shares
from evaluators.replay.compare import CaseResult, Replay
from evaluators.replay.recording import Recording
from evaluators.replay.safety import SafetyPair, safety


class Pair(msgspec.Struct, frozen=True):
    recording: Recording
    champion: Branch
    candidate: Branch


def compare_branches(pairs: Sequence[Pair], alpha: float = 0.05) -> Replay:
    """Paired improvement of the candidate over the champion, and the violations of both.

    A pair counts when both outcomes are known. Repeats of a case are one observation, the mean of their differences;
    with one repeat the interval is Newcombe's for paired rates. Raises `ValueError` for a pair that isn't one.
    """
    judged, results = [], []
    for pair in pairs:
        if (pair.champion.start, pair.champion.seed) != (pair.candidate.start, pair.candidate.seed):
            raise ValueError(f"{pair.recording.id}: champion and candidate were not asked the same under the same seed")
        before, now = judge_branch(pair.recording, pair.champion), judge_branch(pair.recording, pair.candidate)
        known = before != "unknown" and now != "unknown"
        if known:
            judged.append(((pair.recording.tenant, _case(pair)), before == "success", now == "success"))
        said = pair.candidate.final.text if pair.candidate.final else ""
        results.append(CaseResult(_case(pair), pair.recording.tenant, before == "success",
                                  now if known else "unknown", said[:200], pair.candidate.repeat))  # fmt: skip
    return Replay(
        results=tuple(results),
        improvement=_difference(judged, alpha),
        fixed=_share([(case, new) for case, old, new in judged if not old], alpha),
        lost=_share([(case, not new) for case, old, new in judged if old], alpha),
        by_tenant={
            tenant: _difference([each for each in judged if each[0][0] == tenant], alpha)
            for tenant in sorted({case[0] for case, _, _ in judged})
        },
        unknown=sum(r.candidate == "unknown" for r in results),
        unanswered=sum(p.candidate.end == "unanswered" for p in pairs),
        safety=safety(
            [
                SafetyPair(
                    (p.recording.tenant, _case(p)), p.champion.violations, p.candidate.violations, p.candidate.repeat
                )
                for p in pairs
            ],
            alpha,
        ),
        klass=shares(p.candidate.klass for p in pairs),
    )


def _case(pair: Pair) -> str:
    return f"{pair.recording.id}/{pair.candidate.start}"


def _difference(judged: Sequence[tuple[Key, bool, bool]], alpha: float) -> Interval:
    cases: dict[Key, list[tuple[bool, bool]]] = {}
    for case, old, new in judged:
        cases.setdefault(case, []).append((old, new))
    if all(len(group) == 1 for group in cases.values()):
        table = [group[0] for group in cases.values()]
        counts = PairedCounts(both=table.count((True, True)), only_new=table.count((False, True)),
                              only_old=table.count((True, False)), neither=table.count((False, False)))  # fmt: skip
        return paired_difference(counts, alpha)
    means = [sum(new - old for old, new in group) / len(group) for group in cases.values()]
    return mean_interval(means, alpha, least=-1.0, most=1.0)


def _share(judged: Sequence[tuple[Key, bool]], alpha: float) -> Interval:
    cases: dict[Key, list[bool]] = {}
    for case, holds in judged:
        cases.setdefault(case, []).append(holds)
    return clustered_rate([sum(group) / len(group) for group in cases.values()], alpha)
