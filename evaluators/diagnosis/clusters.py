"""Failures with the same symptom, told apart from what falls together by chance.

1. Each failure has a symptom; those alike, of the same tool and detail, form a group.
2. A group stands out when work of its kind fails that way more often than other work fails at all: significantly
   (`chance`), and at least twice as often.
3. Failures in what stands out nowhere may still be too many together: calls forgotten, mistaken or misspelt across
   tools and tenants are one broad group, if there are more of them than are tolerated. So are groups that stand out for
   most of the tools in use.
4. What remains is within chance, and no surface is suggested for it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

import msgspec

from evaluators.corrections import EstablishedFact
from evaluators.diagnosis.chance import concentration, excess, holm
from evaluators.diagnosis.outcomes import ANSWER, Outcome
from evaluators.diagnosis.symptoms import Symptom, symptom

_SMALLEST = 3
"""Outcomes a group needs: fewer are an anecdote."""
_STANDS_OUT = 2.0
"""Times the failure rate of other work."""
_ENOUGH_ELSEWHERE = 20
"""Other work that a comparison needs."""


class Group(msgspec.Struct, frozen=True):
    """Failures with one symptom."""

    symptom: Symptom
    members: tuple[Outcome, ...]
    exposed: int
    """Judged work of its kind, whether it failed or not."""
    p: float
    """Adjusted for the number of groups looked at; 1 where nothing was tested."""
    broad: bool = False
    real: bool = False
    """More than chance."""


def groups(
    outcomes: Sequence[Outcome], facts: Sequence[EstablishedFact], tolerated: float, alpha: float
) -> list[Group]:
    """The failures among the outcomes, grouped; every failure is in exactly one group."""
    by_symptom: dict[Symptom, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        if outcome.failed:
            found = symptom(outcome)
            by_symptom[_key(found)].append(outcome)
    tested = {s: _test(s, members, outcomes, tolerated) for s, members in by_symptom.items()}
    adjusted = dict(zip(tested, holm([p for p, _, _ in tested.values()]), strict=True))
    found_groups, rest = [], []
    for key, members in by_symptom.items():
        _, exposed, ratio = tested[key]
        stated = key.kind == "missing fact" and any(f.tenant == key.detail and f.fact.topic == key.tool for f in facts)
        stands_out = len(members) >= _SMALLEST and adjusted[key] <= alpha and ratio >= _STANDS_OUT
        if stands_out or stated:
            found_groups.append(Group(key, tuple(members), exposed, adjusted[key], real=True))
        else:
            rest.append((key, members))
    unable = [g for g in found_groups if g.symptom.about_ability and not g.symptom.rejected]
    if _many_tools(unable, outcomes):
        rest += [(g.symptom, list(g.members)) for g in unable]
        found_groups = [g for g in found_groups if g not in unable]
    able = [(key, members) for key, members in rest if key.about_ability]
    broad = _broad([o for _, members in able for o in members], outcomes, tolerated, alpha)
    if broad is not None:
        found_groups.append(broad)
        rest = [(key, members) for key, members in rest if not key.about_ability]
    for key, members in rest:
        _, exposed, _ = tested[key]
        found_groups.append(Group(key, tuple(members), exposed, adjusted[key]))
    return sorted(found_groups, key=lambda g: (not g.real, -len(g.members), g.symptom.kind, g.symptom.tool))


def _key(found: Symptom) -> Symptom:
    """What failures of one group share: refusals are one group whatever was refused, and so are calls that tools reject
    for the same argument, whichever tool; rejections nobody showed the right call for, one for each error."""
    if found.kind == "refused":
        return Symptom("refused", "")
    if found.kind == "arguments" and found.rejected:
        return msgspec.structs.replace(found, tool="")
    return found if found.kind == "rejected call" else msgspec.structs.replace(found, error_class="")


def _test(
    key: Symptom, members: Sequence[Outcome], outcomes: Sequence[Outcome], tolerated: float
) -> tuple[float, int, float]:
    """(p-value, work of its kind, times the failure rate of other work)."""
    belongs = _exposure(key, members)
    exposed = [o for o in outcomes if belongs(o)]
    other = [o for o in outcomes if not belongs(o)]
    rate = len(members) / len(exposed) if exposed else 0.0
    if len(other) < _ENOUGH_ELSEWHERE:
        return excess(len(members), len(exposed), tolerated), len(exposed), rate / max(tolerated, 1e-9)
    failed_elsewhere = sum(o.failed for o in other)
    elsewhere = failed_elsewhere / len(other)
    p = concentration(len(members), len(exposed), failed_elsewhere, len(other))
    return p, len(exposed), rate / elsewhere if elsewhere else float("inf")


def _exposure(key: Symptom, members: Sequence[Outcome]) -> Callable[[Outcome], bool]:
    """Which work could have shown this symptom."""
    mine = {o.case.key for o in members}
    if key.kind in ("missing fact", "ignored fact"):
        words = set(key.tool.split())
        tenants = {o.case.tenant for o in members}
        return lambda o: o.case.key in mine or (o.case.tenant in tenants and words <= _words(o.case.request))
    if key.kind in ("rejected call", "needless call"):
        return lambda o: o.case.key in mine or any(c.name == key.tool for c in o.done)
    if key.kind == "arguments" and not key.tool:
        tools = {o.tool for o in members}
        return lambda o: o.tool in tools
    subjects = {o.subject for o in members} if key.kind in ("missing steps", "refused") else None
    if subjects is not None:
        return lambda o: o.subject in subjects or (key.kind == "missing steps" and o.tool == key.tool)
    # of several calls wanted, the one that was mistaken need not be the last
    return lambda o: o.case.key in mine or o.tool == key.tool


def _words(text: str) -> set[str]:
    return set(text.lower().replace("?", " ").replace(".", " ").replace(",", " ").split())


def _many_tools(found: Sequence[Group], outcomes: Sequence[Outcome]) -> bool:
    """Do groups stand out for most of the tools in use? Then it is none of them in particular."""
    tools = {o.tool for o in outcomes} - {ANSWER}
    affected = {o.tool for g in found for o in g.members} - {ANSWER}
    return len(affected) > 1 and 2 * len(affected) > len(tools)


def _broad(members: Sequence[Outcome], outcomes: Sequence[Outcome], tolerated: float, alpha: float) -> Group | None:
    """The failures of ability that stand out nowhere, as one group; None when they are no more than tolerated."""
    if len(members) < _SMALLEST:
        return None
    p = excess(len(members), len(outcomes), tolerated)
    tenants, tools = {o.case.tenant for o in members}, {o.tool for o in members}
    spread = len(tools) > 1 and (len(tenants) > 1 or len({o.case.tenant for o in outcomes}) == 1)
    if p > alpha or not spread:
        return None
    kinds = Counter(symptom(o).kind for o in members)
    leading = kinds.most_common(1)[0][0]
    return Group(Symptom(leading, "several tools"), tuple(members), len(outcomes), p, broad=True, real=True)
