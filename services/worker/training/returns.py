"""Turn-level returns: what a later turn earned counts, discounted, for the turns that led to it.

    G_k = r_k + γ · mean over the turns j that k led to of G_j

r_k is 0 where a turn has no reward of its own. In a trajectory without branches this is AReaL's
`turn_discount`; where a conversation branches (several continuations of one turn), the mean keeps a turn's
return within the range of the rewards that followed it. Turns are linked by `after`, not by time: a turn
that something else led to earns nothing from what merely came later.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from services.worker.training.examples import Example
from services.worker.training.job import JobError


def discount(examples: Sequence[Example], gamma: float) -> list[Example]:
    """The examples with `reward` replaced by its return; rows outside trajectories keep theirs.

    Rows of one trajectory and turn are alternatives and share what came after. Raises `JobError` when a
    trajectory has no reward at all, or a row brings an advantage instead.
    """
    found = list(examples)
    for name, members in _trajectories(examples).items():
        if any(examples[i].advantage is not None for i in members):
            raise JobError(f"turn_discount: trajectory {name} has advantages; only rewards can be discounted")
        if all(examples[i].reward is None for i in members):
            raise JobError(f"turn_discount: trajectory {name} has no reward in any turn")
        returns = _returns([examples[i] for i in members], gamma)
        for i in members:
            turn = examples[i].turn
            assert turn is not None
            found[i] = replace(examples[i], reward=(examples[i].reward or 0.0) + gamma * returns.get(turn, 0.0))
    return found


def _trajectories(examples: Sequence[Example]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for i, example in enumerate(examples):
        if example.trajectory is not None:
            found.setdefault(example.trajectory, []).append(i)
    return found


def _returns(turns: Sequence[Example], gamma: float) -> dict[int, float]:
    """For each turn that led to others, the mean of their returns."""
    present = sorted({t.turn for t in turns if t.turn is not None})
    following: dict[int, list[float]] = {}
    for turn in reversed(present):
        ahead = following.get(turn)
        mean = sum(ahead) / len(ahead) if ahead else 0.0
        for row in (t for t in turns if t.turn == turn):
            cause = row.after if row.after is not None else max((p for p in present if p < turn), default=None)
            if cause is not None:
                following.setdefault(cause, []).append((row.reward or 0.0) + gamma * mean)
    return {turn: sum(values) / len(values) for turn, values in following.items()}
