"""The decision: which candidate, if any, is worth delivering, and why every other one is not.

u* = argmax over candidates of the lower confidence bound of the replay improvement minus cost,
among those that break no constraint. Doing nothing has value 0 and wins ties (DESIGN: no-op default).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from evaluators.replay import Replay

NO_OP = "no-op"
_MAX_UNKNOWN = 0.4
"""With a larger share of unjudgeable cases the comparison speaks about the rest only."""


class Evaluated(msgspec.Struct, frozen=True):
    """A candidate with what its replay showed."""

    name: str
    surface: str
    cost: float
    replay: Replay | None
    """None when it could not be replayed; `problem` says why."""
    problem: str = ""


class Ranked(msgspec.Struct, frozen=True):
    name: str
    surface: str
    score: float
    """Lower bound minus cost; 0 for no-op."""
    chosen: bool
    why: str


class Decision(msgspec.Struct, frozen=True):
    chosen: str
    ranking: tuple[Ranked, ...]
    """Best first; no-op is always among them."""


def decide(candidates: Sequence[Evaluated], *, max_regression: float) -> Decision:
    """Choose among the candidates and no-op; every loser is kept with its reason."""
    scored = [(c, _score(c), _violations(c, max_regression)) for c in candidates]
    admissible = [(c, s) for c, s, broken in scored if not broken and s > 0]
    winner = max(admissible, key=lambda pair: pair[1])[0] if admissible else None
    best = _score(winner) if winner else 0.0
    rows = []
    for candidate, score, broken in scored:
        if candidate is winner:
            why = f"largest lower bound minus cost: {score:+.3f}"
        elif broken:
            why = "; ".join(broken)
        elif score <= 0:
            why = f"improvement is not certain: lower bound minus cost {score:+.3f}"
        else:
            why = f"{score:+.3f} is less than {best:+.3f} of {winner.name if winner else NO_OP}"
        rows.append(Ranked(candidate.name, candidate.surface, score, candidate is winner, why))
    rows.append(
        Ranked(NO_OP, "none", 0.0, winner is None, "nothing is certain to be better" if winner is None else "beaten")
    )
    rows.sort(key=lambda r: (not r.chosen, -r.score, r.name))
    return Decision(chosen=winner.name if winner else NO_OP, ranking=tuple(rows))


def _score(candidate: Evaluated) -> float:
    return -1.0 if candidate.replay is None else candidate.replay.improvement.low - candidate.cost


def _violations(candidate: Evaluated, max_regression: float) -> list[str]:
    replay = candidate.replay
    if replay is None:
        return [candidate.problem or "not replayed"]
    broken = []
    if replay.lost.n and replay.lost.low > max_regression:
        broken.append(f"loses known successes: {replay.lost}, tolerated {max_regression}")
    for tenant, change in replay.by_tenant.items():
        if change.n and change.high < 0:
            broken.append(f"worse for tenant {tenant}: {change}")
    if replay.unknown_share > _MAX_UNKNOWN:
        broken.append(f"{replay.unknown} of {len(replay.results)} cases could not be judged")
    return broken
