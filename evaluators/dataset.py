"""Which decisions become a training set, and which tasks are kept out of it.

A decision teaches what somebody demonstrated in its place, or, when it was resolved, what the model itself did
(rejection sampling: Yuan et al. 2023, "Scaling relationship on learning mathematical reasoning"): without the
latter an update forgets what already works.

Held-out tasks are whole clusters of requests (`tasks.held_out`), per wanted tool or topic. A training
row that shares an entity (an order number) with a held-out request is dropped too. Every drop is
counted by its reason.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from evaluators import tasks
from evaluators.cases import Case
from evaluators.corrections import EstablishedFact, outdated
from evaluators.facts import quantities, stated_fact


class Split(msgspec.Struct, frozen=True):
    clusters: dict[str, str]
    """Task key -> cluster."""
    heldout: frozenset[str]
    """Clusters kept out of training."""
    heldout_entities: frozenset[str]

    def is_held_out(self, case: Case) -> bool:
        return self.clusters.get(case.task_key, case.task_key) in self.heldout

    def heldout_tasks(self, cases: Iterable[Case]) -> list[str]:
        """The held-out tasks among these cases, in their own words: a cluster is named after one of anybody's."""
        return sorted({c.task_key for c in cases if self.is_held_out(c)})


NONE_HELD_OUT = Split(clusters={}, heldout=frozenset(), heldout_entities=frozenset())


class Selection(msgspec.Struct, frozen=True):
    train: tuple[Case, ...]
    heldout: tuple[Case, ...]
    """Demonstrated held-out cases: the loss on them shows over-fitting."""
    dropped: dict[str, int]


def split(cases: Sequence[Case], share: float) -> Split:
    """Hold out `share` of the task clusters of every wanted tool or topic."""
    clusters = tasks.cluster(c.task_key for c in cases)
    strata: dict[str, Counter[str]] = defaultdict(Counter)
    for case in cases:
        strata[clusters[case.task_key]][_stratum(case)] += 1
    heldout = tasks.held_out({name: _leading(counts) for name, counts in strata.items()}, share)
    entities = frozenset(e for c in cases if clusters[c.task_key] in heldout for e in c.entities)
    return Split(clusters=clusters, heldout=heldout, heldout_entities=entities)


def select(cases: Sequence[Case], split: Split, facts: Sequence[EstablishedFact], limit: int) -> Selection:
    """Eligible cases that teach something; newest first and balanced over tools and topics, at most `limit`.

    An answer whose quantities are not in the prompt is dropped: it would teach the model to
    answer from nothing.
    """
    dropped: Counter[str] = Counter()
    train: dict[str, list[Case]] = defaultdict(list)
    heldout = []
    seen: set[tuple[str, str]] = set()
    for case in sorted(cases, key=lambda c: c.at, reverse=True):
        if case.taught is None:
            continue
        if not case.trainable:
            dropped["not eligible for training"] += 1
        elif not case.prompt_token_ids:
            dropped["no captured tokens"] += 1
        elif outdated(case, facts):
            dropped["outdated"] += 1
        elif not grounded(case):
            dropped["answer is not grounded in the context"] += 1
        elif (case.tenant, case.request) in seen:
            dropped["duplicate request"] += 1
        elif split.is_held_out(case):
            seen.add((case.tenant, case.request))
            heldout.append(case)
        elif case.entities & split.heldout_entities:
            dropped["shares an entity with a held-out task"] += 1
        else:
            seen.add((case.tenant, case.request))
            train[_stratum(case)].append(case)
    chosen: list[Case] = []
    while len(chosen) < limit and any(train.values()):
        for stratum in sorted(train):
            if train[stratum] and len(chosen) < limit:
                chosen.append(train[stratum].pop(0))
    over = sum(map(len, train.values()))
    if over:
        dropped["beyond the size limit"] = over
    return Selection(train=tuple(chosen), heldout=tuple(heldout), dropped=dict(dropped))


def shown_otherwise(cases: Sequence[Case]) -> list[Case]:
    """Failures for which somebody showed another answer than the agent's own, whose tokens are there: pairs."""
    return [c for c in cases if c.demonstration_id and not c.success and c.completion_token_ids]


def hinted(cases: Sequence[Case], split: Split) -> list[Case]:
    """Answers about which people said something afterwards, with the tokens of both sides, of no held-out task."""
    return [
        c
        for c in cases
        if c.trainable
        and c.corrections
        and c.prompt_token_ids
        and c.completion_token_ids
        and not split.is_held_out(c)
        and not c.entities & split.heldout_entities
    ]


def contrasting(cases: Sequence[Case], split: Split, temperature: float = 1.0) -> tuple[list[Case], dict[str, int]]:
    """Attempts at the same prompt of one tenant, sampled at this temperature, of which some succeeded and some did not;
    and why others are none: a group that always fails, or never, tells no better from a worse."""
    dropped: Counter[str] = Counter()
    groups: dict[tuple[str, tuple[int, ...]], list[Case]] = defaultdict(list)
    for case in cases:
        if not case.trainable or case.success is None or not case.prompt_token_ids or not case.completion_token_ids:
            continue
        sampled = case.params.get("temperature")
        if abs((1.0 if sampled is None else float(sampled)) - temperature) > 1e-6:
            dropped[f"sampled at another temperature than {temperature:g}"] += 1
        elif split.is_held_out(case):
            dropped["of a held-out task"] += 1
        else:
            groups[case.tenant, tuple(case.prompt_token_ids)].append(case)
    kept = []
    for members in groups.values():
        if len({c.success for c in members}) > 1:
            kept += members
        else:
            dropped["a group of one" if len(members) == 1 else "all of its group ended alike"] += len(members)
    return kept, dict(dropped)


def grounded(case: Case) -> bool:
    """Can the taught answer be read off what the model was shown?"""
    if case.taught is None or case.taught.calls or not quantities(case.taught.text):
        return True
    shown = quantities(case.shown)
    return all(q in shown for q in quantities(case.taught.text))


def _stratum(case: Case) -> str:
    taught = case.taught
    if taught and taught.calls:
        return taught.kind
    texts = [r.text for r in case.corrections] + ([taught.text] if taught else [])
    fact = next((f for t in texts if (f := stated_fact(t))), None)
    if fact:
        return fact.topic
    return case.action.kind


def _leading(counts: Counter[str]) -> str:
    """The most frequent wanted tool or topic; a plain answer only when nothing else is known."""
    named = [(n, name) for name, n in counts.items() if name != "answer"] or [(n, name) for name, n in counts.items()]
    return max(named)[1]
