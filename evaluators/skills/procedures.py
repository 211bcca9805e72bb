"""Procedures: sequences of tool calls that people showed, or that went well, for one kind of request.

A sequence counts when it has at least two different tools, and stands as steps that say where each argument comes from:
the request, the result of an earlier step, or a value that is always the same. Nothing in a step is one user's.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from evaluators.cases import Call, Case, Key
from evaluators.diagnosis.outcomes import Outcome
from evaluators.intervals import Interval, rate_difference, wilson
from evaluators.skills.when import common_words, distinctive, words

_AGREE = 0.8
"""Share of the sessions that must take an argument from the same place."""
_TESTS = 8
_SHORTEST = 3
"""A value shorter than this is found in any text."""


class Procedure(msgspec.Struct, frozen=True, kw_only=True):
    tools: tuple[str, ...]
    steps: tuple[str, ...]
    when: tuple[str, ...]
    """Words of the requests it is for, any of which will do."""
    tenants: tuple[str, ...]
    subjects: tuple[str, ...]
    """End users it was learned from, where the clients named them."""
    sessions: tuple[Key, ...]
    """It was learned from."""
    events: tuple[str, ...]
    tests: tuple[Key, ...]
    """Decisions of the same kind that it was not learned from, of requests it is shown for."""
    missed: int
    """Sessions that failed doing something else, though people showed this."""
    difference: Interval
    """Success of those who followed it minus success of the others, for these requests."""


def mine(
    outcomes: Sequence[Outcome], held_out: Callable[[Case], bool], min_sessions: int, alpha: float = 0.05
) -> list[Procedure]:
    """Procedures that enough sessions agree on and that failures lacked, the most missed first.

    A procedure is returned when people showed it in at least `min_sessions` sessions that failed without it, or when
    following it is certain to go better, and as many failed without it.
    """
    by_tools: dict[tuple[str, ...], list[tuple[Outcome, tuple[Call, ...]]]] = defaultdict(list)
    for outcome in outcomes:
        shown = _shown(outcome)
        tools = tuple(call.name for call in shown)
        if len(set(tools)) > 1:
            by_tools[tools].append((outcome, shown))
    found = []
    for tools, members in sorted(by_tools.items()):
        procedure = _procedure(tools, members, outcomes, held_out, min_sessions, alpha)
        if procedure is not None:
            found.append(procedure)
    return sorted(found, key=lambda p: (-p.missed, p.tools))


def subject_of(case: Case) -> str | None:
    """The end user the client said it spoke for."""
    for name in ("safety_identifier", "user"):
        if isinstance(case.params.get(name), str) and case.params[name]:
            return str(case.params[name])
    metadata = case.params.get("metadata")
    user = metadata.get("user_id") if isinstance(metadata, dict) else None
    return user if isinstance(user, str) and user else None


def _procedure(
    tools: tuple[str, ...],
    members: Sequence[tuple[Outcome, tuple[Call, ...]]],
    outcomes: Sequence[Outcome],
    held_out: Callable[[Case], bool],
    min_sessions: int,
    alpha: float,
) -> Procedure | None:
    train, tests = _split(members, held_out, min_sessions)
    if len({o.case.session for o, _ in train}) < min_sessions:
        return None
    mine_keys = {o.case.key for o, _ in members}
    known = [o for o in outcomes if not o.failed or o.wanted is not None]  # it is known what they are about
    others = [o.case.request for o in known if o.case.key not in mine_keys]
    tenants = tuple(sorted({o.case.tenant for o, _ in train}))
    common = common_words((o.case.tenant, o.case.request) for o in outcomes) if len(tenants) > 1 else None
    when = distinctive([o.case.request for o, _ in train], others, len(members) / len(train), common)
    if not when:
        return None
    alike = [o for o in outcomes if not words(o.case.request).isdisjoint(when)]
    tests = [m for m in tests if not words(m[0].case.request).isdisjoint(when)]
    followed = [not o.failed for o in alike if follows(o.done, tools)]
    without = [not o.failed for o in alike if not follows(o.done, tools)]
    difference = rate_difference(wilson(sum(followed), len(followed), alpha), wilson(sum(without), len(without), alpha))
    missed = {o.case.session for o, _ in members if o.failed and not follows(o.done, tools)}
    failed = {o.case.session for o in alike if o.failed and not follows(o.done, tools)}
    certain = difference.n and difference.low > 0 and len(failed) >= min_sessions
    if len(missed) < min_sessions and not certain:
        return None
    return Procedure(
        tools=tools,
        steps=tuple(_step(n, train, len(tenants) > 1) for n in range(len(tools))),
        when=when,
        tenants=tenants,
        subjects=tuple(sorted({s for o, _ in train if (s := subject_of(o.case)) is not None})),
        sessions=tuple(sorted({o.case.session for o, _ in train})),
        events=tuple(sorted(o.case.event_id for o, _ in train)),
        tests=tuple(sorted(o.case.key for o, _ in tests)[:_TESTS]),
        missed=len(missed) if missed else len(failed),
        difference=difference,
    )


def follows(done: Sequence[Call], tools: Sequence[str]) -> bool:
    """Do the calls include the tools in this order?"""
    names = iter(call.name for call in done)
    return all(tool in names for tool in tools)


def _shown(outcome: Outcome) -> tuple[Call, ...]:
    if outcome.wanted is not None:
        return outcome.wanted
    return () if outcome.failed else outcome.done


def _split(
    members: Sequence[tuple[Outcome, tuple[Call, ...]]], held_out: Callable[[Case], bool], least: int
) -> tuple[list[tuple[Outcome, tuple[Call, ...]]], list[tuple[Outcome, tuple[Call, ...]]]]:
    """What it is learned from, a third of the sessions, and what it is tested on: held-out tasks, and the others."""
    sessions = {o.case.session for o, _ in members}
    open_ = sorted(sessions - {o.case.session for o, _ in members if held_out(o.case)})
    kept = set(open_[: max(least, len(sessions) // 3)])
    train = [m for m in members if m[0].case.session in kept]
    return train, [m for m in members if m[0].case.session not in kept]


def _step(position: int, members: Sequence[tuple[Outcome, tuple[Call, ...]]], shared: bool) -> str:
    name = members[0][1][position].name
    places: dict[str, Counter[str]] = defaultdict(Counter)
    for outcome, calls in members:
        for argument, value in (calls[position].arguments or {}).items():
            places[argument][_source(value, outcome.case, calls[:position])] += 1
    constants = {argument: _constant(position, argument, members, shared) for argument in places}
    told = []
    for argument, counts in sorted(places.items()):
        source, n = counts.most_common(1)[0]
        if constants[argument] is not None:
            told.append(f"{argument} {constants[argument]}")
        elif source and n >= _AGREE * counts.total():
            told.append(f"{argument} from {source}")
        else:
            told.append(argument)
    return f"Call {name}" + (f" with {', '.join(told)}" if told else "") + "."


def _source(value: Any, case: Case, before: Sequence[Call]) -> str:
    """Where a value can be read: the user's words, or an earlier result."""
    text = str(value).lower()
    if len(text) < _SHORTEST:
        return ""
    if text in case.request.lower():
        return "the request"
    names = {call.name for call in before}
    for step in reversed(case.steps):
        if step.name in names and text in step.text.lower():
            return f"the result of {step.name}"
    said = " ".join(str(m.get("content") or "") for m in case.messages if m.get("role") == "user").lower()
    return "what the user said" if text in said else ""


def _constant(
    position: int, argument: str, members: Sequence[tuple[Outcome, tuple[Call, ...]]], shared: bool
) -> str | None:
    """The value everybody gives, if it is nobody's in particular; None when there is none."""
    values = [json.dumps((calls[position].arguments or {}).get(argument)) for _, calls in members]
    value, n = Counter(values).most_common(1)[0]
    tenants = {o.case.tenant for (o, _), v in zip(members, values, strict=True) if v == value}
    alone = n >= _AGREE * len(values) and len(values) > 1 and (not shared or len(tenants) > 1)
    return value if alone and len(value) <= 40 else None
