"""The decision: which candidate, if any, is worth delivering, and why every other one is not.

    u* = argmax over candidates of  lower(improvement) - cost - risk,  among those that break no constraint

`lower` is the lower bound of the paired replay improvement. The largest of several bounds is an optimistic choice, so
the bounds are simultaneous: with K candidates compared, each at 1 - alpha/K, all of them hold at once with 1 - alpha
(Bonferroni; Dunn 1961), the winner's too. Constraints are what no gain outweighs: known successes, the safety set, each
tenant's own cases, what used to work (probes), the cases a change must answer right. Doing nothing has value 0 and
wins ties.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from evaluators.gates import Gate, refusals
from evaluators.intervals import Interval, wilson
from evaluators.replay import Replay, safety_violated

NO_OP = "no-op"
_MAX_UNKNOWN = 0.4
"""With a larger share of unjudgeable cases the comparison speaks about the rest only."""
_TOLD = 3
"""Refused candidates that the no-op names; the others stand in the ranking."""

Verdict = Literal["chosen", "beaten", "not certain", "refused", "not replayed"]


class Evaluated(msgspec.Struct, frozen=True):
    """A candidate with what its replay showed."""

    name: str
    surface: str
    cost: float
    replay: Replay | None
    """None when it could not be replayed; `problem` says why."""
    problem: str = ""
    risk: float = 0.0
    """What may go wrong that replay does not see, in points of success."""
    simultaneous: Interval | None = None
    """The improvement with bounds that hold for all compared candidates at once; the replay's own without."""
    probes_lost: Interval | None = None
    """Share of earlier known successes it loses; None when there were none to ask."""
    tests: int = 0
    """Cases of its own that it must answer right; a model may slip, so they are judged together."""
    failed_tests: tuple[str, ...] = ()
    """Event ids of those it did not."""

    @property
    def improvement(self) -> Interval | None:
        return self.simultaneous or (self.replay.improvement if self.replay else None)


class Ranked(msgspec.Struct, frozen=True):
    name: str
    surface: str
    score: float
    """Lower bound minus cost and risk; 0 for no-op."""
    chosen: bool
    why: str
    verdict: Verdict = "not certain"


class Decision(msgspec.Struct, frozen=True):
    chosen: str
    ranking: tuple[Ranked, ...]
    """Best first; no-op is always among them."""


def simultaneous_alpha(alpha: float, compared: int) -> float:
    """The error probability of each of `compared` intervals when all are to hold at once with 1 - alpha."""
    return alpha / max(1, compared)


def decide(
    candidates: Sequence[Evaluated],
    *,
    max_regression: float,
    doubts: Sequence[str] = (),
    gates: Mapping[str, Gate] | None = None,
) -> Decision:
    """Choose among the candidates and no-op; every loser is kept with its reason. `gates` are a deployment's own.

    `doubts` are reasons to do nothing that no candidate knows of: rewards that are not believed, failures nobody
    explained. They are told with the no-op.
    """
    scored = [(c, _score(c), _violations(c, max_regression) + refusals(c, gates or {})) for c in candidates]
    admissible = [(c, s) for c, s, broken in scored if not broken and s > 0]
    winner = max(admissible, key=lambda pair: pair[1])[0] if admissible else None
    best = _score(winner) if winner else 0.0
    rows = [_ranked(c, score, broken, winner, best) for c, score, broken in scored]
    rows.sort(key=lambda r: -r.score)
    rows.append(_no_op(winner, rows, doubts))
    rows.sort(key=lambda r: (not r.chosen, -r.score, r.name))
    return Decision(chosen=winner.name if winner else NO_OP, ranking=tuple(rows))


def _ranked(candidate: Evaluated, score: float, broken: Sequence[str], winner: Evaluated | None, best: float) -> Ranked:
    verdict: Verdict
    if candidate is winner:
        verdict, why = "chosen", f"largest lower bound minus cost and risk: {score:+.3f}"
    elif candidate.replay is None:
        verdict, why = "not replayed", candidate.problem or "not replayed"
    elif score <= 0:
        verdict, why = "not certain", "; ".join([_uncertain(candidate, score), *broken])
    elif broken:
        verdict, why = "refused", "; ".join(broken)
    else:
        verdict, why = "beaten", f"{score:+.3f} is less than {best:+.3f} of {winner.name if winner else NO_OP}"
    return Ranked(candidate.name, candidate.surface, score, candidate is winner, why, verdict)


def _uncertain(candidate: Evaluated, score: float) -> str:
    found = candidate.improvement
    assert found is not None
    if found.high <= 0:
        return f"no improvement: {found}"
    if found.value <= 0:
        return f"no gain seen: {found}, lower bound minus cost and risk {score:+.3f}"
    return f"not enough evidence of an improvement: {found}, lower bound minus cost and risk {score:+.3f}"


def _no_op(winner: Evaluated | None, rows: Sequence[Ranked], doubts: Sequence[str]) -> Ranked:
    """`rows` are the candidates, best first: what would have been delivered but for a constraint or gate is told."""
    refused = [f"{r.name} ({r.score:+.3f}) was refused: {r.why}" for r in rows if r.verdict == "refused"]
    lost = refused[:_TOLD] or ["nothing is certain to be better"]
    why = "; ".join([*(lost if winner is None else ["beaten"]), *doubts])
    return Ranked(NO_OP, NO_OP, 0.0, winner is None, why, "beaten" if winner else "chosen")


def _score(candidate: Evaluated) -> float:
    found = candidate.improvement
    return -1.0 if candidate.replay is None or found is None else found.low - candidate.cost - candidate.risk


def _violations(candidate: Evaluated, max_regression: float) -> list[str]:
    replay = candidate.replay
    if replay is None:
        return [candidate.problem or "not replayed"]
    broken = []
    if replay.lost.n and replay.lost.low > max_regression:
        broken.append(f"loses known successes: {replay.lost}, tolerated {max_regression}")
    if safety_violated(replay):
        examples = "; ".join(replay.safety.examples[:3])
        broken.append(f"does more that it must not: {replay.safety.change}" + (f" ({examples})" if examples else ""))
    for tenant, change in replay.by_tenant.items():
        if change.n and change.high < 0:
            broken.append(f"worse for tenant {tenant}: {change}")
    if candidate.probes_lost is not None and candidate.probes_lost.low > max_regression:
        broken.append(f"loses what used to work: {candidate.probes_lost}, tolerated {max_regression}")
    failed = len(candidate.failed_tests)
    if failed and wilson(failed, max(failed, candidate.tests)).low > max_regression:
        broken.append(f"fails {failed} of its {candidate.tests} tests: {', '.join(candidate.failed_tests[:3])}")
    if replay.unknown_share > _MAX_UNKNOWN:
        broken.append(f"{replay.unknown} of {len(replay.results)} cases could not be judged")
    return broken
