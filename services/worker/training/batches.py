"""Which examples make an optimiser step, and in which packs they are computed.

Rows that belong together (a group, a pair) stay together. Every epoch is its own permutation, a function of
seed and epoch: a resumed run goes on with the very next step.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from services.worker.training.examples import Example
from services.worker.training.job import Job
from services.worker.training.packing import packed_length


def units(examples: Sequence[Example], *, pairs: bool) -> list[list[int]]:
    """Indices that stay together: a pair's where an algorithm needs `pairs`, else a group's, else one alone."""
    found: dict[object, list[int]] = {}
    for i, example in enumerate(examples):
        name = example.pair if pairs else example.group
        found.setdefault(i if name is None else name, []).append(i)
    return list(found.values())


def epoch(members: Sequence[list[int]], batch_size: int, seed: int, number: int) -> list[list[list[int]]]:
    """One epoch's optimiser steps, each of at least `batch_size` examples (the last of what is left)."""
    order = list(members)
    random.Random(f"{seed}:{number}").shuffle(order)  # noqa: S311  a permutation, not a secret
    steps: list[list[list[int]]] = [[]]
    for unit in order:
        if sum(map(len, steps[-1])) >= batch_size:
            steps.append([])
        steps[-1].append(unit)
    return steps


def schedule(examples: Sequence[Example], job: Job, *, pairs: bool) -> Iterator[tuple[int, list[list[int]]]]:
    """(epoch, units) of every optimiser step of the job."""
    members = units(examples, pairs=pairs)
    for number in range(job.epochs):
        for step in epoch(members, job.batch_size, job.seed, number):
            yield number, step


def packs(
    examples: Sequence[Example], step: Sequence[list[int]], pack_tokens: int, ranks: int
) -> list[list[list[int]]]:
    """A step's packs for each rank: indices, none over `pack_tokens` unless one unit alone is.

    Every rank gets equally many, because they compute together; where units run out, a pack is empty.
    """
    shares: list[list[list[int]]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    for unit in step if ranks == 1 else sorted(step, key=lambda u: -packed_length([examples[i] for i in u])):
        rank = loads.index(min(loads))
        loads[rank] += packed_length([examples[i] for i in unit])
        shares[rank].append(unit)
    found = [_fill(examples, share, pack_tokens) for share in shares]
    most = max(map(len, found))
    return [[*packed, *([[]] * (most - len(packed)))] for packed in found]


def _fill(examples: Sequence[Example], members: Sequence[list[int]], pack_tokens: int) -> list[list[int]]:
    found: list[list[int]] = []
    used = 0
    for unit in members:
        size = packed_length([examples[i] for i in unit])
        if not found or used + size > pack_tokens:
            found.append([])
            used = 0
        found[-1].extend(unit)
        used += size
    return found
