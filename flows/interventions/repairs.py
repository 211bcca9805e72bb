"""Calls that a tool rejected and then accepted, or that people showed right: how the argument should have looked."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from evaluators.cases import Case

_NOT_ABOUT_ARGUMENTS = frozenset({"unknown_tool", "rate_limited", "permission_denied", "timeout", "unavailable"})
"""Failures (`atdp.error_class`) that other arguments would not have mended."""
_LISTED = re.compile(
    r"(?:one of|allowed(?: values)?(?: are)?|valid (?:values|options)(?: are)?|expected|choose from)\s*[:=]?\s*"
    r"[\[({]?\s*([^\])}.\n]+)",
    re.IGNORECASE,
)
_MOST = re.compile(
    r"(?:at most|maximum(?: is| of)?|no more than|<=|less than or equal to|up to)\s*(-?\d+)", re.IGNORECASE
)
_LEAST = re.compile(
    r"(?:at least|minimum(?: is| of)?|no less than|>=|greater than or equal to)\s*(-?\d+)", re.IGNORECASE
)
_RUN = re.compile(r"\d+|[A-Z]+|[a-z]+|\s+|.", re.DOTALL)
_CLASSES = (("d", r"\d"), ("A", "[A-Z]"), ("a", "[a-z]"))
_LIKE = {"d": "1234567890", "A": "ABCDEFGHIJ", "a": "abcdefghij"}
"""What an example is made of: nobody's value."""
_MANY = 20
_SAME = 5
"""Different values after which what is the same in all of them is part of the form."""
_MISFORMED = 0.8
"""Of the wrong values, how many must have another form: some were wrong for what they name."""


class Repair(msgspec.Struct, frozen=True):
    """One argument, wrong and then right."""

    tool: str
    argument: str
    given: Any
    """None where it was missing."""
    right: Any
    error: str
    case: Case


def repairs(cases: Sequence[Case]) -> list[Repair]:
    """Every argument that changed between a rejected call and the next accepted one of its session, or a shown one."""
    by_session: dict[tuple[str, str], list[Case]] = defaultdict(list)
    for case in sorted(cases, key=lambda c: (c.at, c.event_id)):
        by_session[case.session].append(case)
    found = []
    for members in by_session.values():
        waiting: dict[str, tuple[dict[str, Any], str]] = {}
        for case in members:
            for step in case.steps:
                if not step.name or step.arguments is None:
                    continue
                if step.failed:
                    if step.error_class not in _NOT_ABOUT_ARGUMENTS:
                        waiting[step.name] = (step.arguments, step.text)
                elif step.name in waiting:
                    given, error = waiting.pop(step.name)
                    found += _changed(step.name, given, step.arguments, error, case)
            found += _shown(case)
    return found


def accepted_values(cases: Iterable[Case], tool: str, argument: str) -> list[tuple[Any, Case]]:
    """What the tool accepted for this argument, and what people showed."""
    found = []
    for case in cases:
        calls = [s.arguments for s in case.steps if s.name == tool and not s.failed]
        calls += [c.arguments for c in (case.wanted.calls if case.wanted else ()) if c.name == tool]
        if case.success and not any(s.name == tool for s in case.steps):
            calls += [c.arguments for c in case.action.calls if c.name == tool]
        found += [(arguments[argument], case) for arguments in calls if arguments and argument in arguments]
    return found


def constraint(wrong: Sequence[Any], right: Sequence[Any], errors: Sequence[str]) -> tuple[dict[str, Any], str] | None:
    """JSON Schema keywords that all right values meet and wrong ones don't, and the same in words; None without any."""
    for rule in (_listed, _bounded, _typed, _formed):
        found = rule(wrong, right, errors)
        if found is not None:
            return found
    return None


def _shown(case: Case) -> list[Repair]:
    if case.wanted is None or case.success:
        return []
    error = next((s.text for s in reversed(case.steps) if s.failed), "")
    found = []
    for call in case.wanted.calls:
        tried = next((c for c in case.action.calls if c.name == call.name), None)
        if tried is not None and tried.arguments is not None and call.arguments is not None:
            found += _changed(call.name, tried.arguments, call.arguments, error, case)
    return found


def _changed(tool: str, given: dict[str, Any], right: dict[str, Any], error: str, case: Case) -> list[Repair]:
    return [
        Repair(tool, argument, given.get(argument), value, error, case)
        for argument, value in right.items()
        if given.get(argument) != value
    ]


def _listed(wrong: Sequence[Any], right: Sequence[Any], errors: Sequence[str]) -> tuple[dict[str, Any], str] | None:
    """The values that the tool's own words name."""
    for error in errors:
        match = _LISTED.search(error)
        if match is None:
            continue
        named = [part.strip(" '\"`") for part in re.split(r",|\||\bor\b|\band\b", match[1])]
        values = [value for value in dict.fromkeys(named) if value]
        if 1 < len(values) <= _MANY and all(v in values for v in right) and not any(v in values for v in wrong):
            return {"enum": values}, f"One of: {', '.join(values)}."
    return None


def _bounded(wrong: Sequence[Any], right: Sequence[Any], errors: Sequence[str]) -> tuple[dict[str, Any], str] | None:
    if not all(_number(v) for v in [*wrong, *right]):
        return None
    for error in errors:
        most, least = _MOST.search(error), _LEAST.search(error)
        if most and all(v <= int(most[1]) for v in right) and all(v > int(most[1]) for v in wrong):
            return {"maximum": int(most[1])}, f"At most {most[1]}."
        if least and all(v >= int(least[1]) for v in right) and all(v < int(least[1]) for v in wrong):
            return {"minimum": int(least[1])}, f"At least {least[1]}."
    return None


def _typed(wrong: Sequence[Any], right: Sequence[Any], errors: Sequence[str]) -> tuple[dict[str, Any], str] | None:
    types = {_type(v) for v in right}
    if len(types) != 1 or types & {_type(v) for v in wrong}:
        return None
    (name,) = types
    return {"type": name}, f"Must be of type {name}."


def _formed(wrong: Sequence[Any], right: Sequence[Any], errors: Sequence[str]) -> tuple[dict[str, Any], str] | None:
    """The one form that all right values have: runs of digits, capitals, small letters, and what stands between or is
    the same in all of them."""
    if not all(isinstance(v, str) and v for v in right):
        return None
    forms = [_runs(v) for v in right]
    kinds = {tuple(kind for kind, _ in form) for form in forms}
    if len(kinds) != 1:
        words = r"^[a-z]+(?:[_-][a-z]+)*$"
        if all(re.fullmatch(words, v) for v in right) and not any(_matches(words, v) for v in wrong):
            return {"pattern": words}, "Small letters, words joined by _ or -."
        return None
    pattern, example = "^", ""
    for position, (kind, _) in enumerate(forms[0]):
        runs = {form[position][1] for form in forms}
        of_class = dict(_CLASSES).get(kind)
        constant = kind != "d" and len(runs) == 1 and len(set(right)) >= _SAME  # numbers alike are this year's, no form
        if of_class is None or constant:
            text = kind if of_class is None else next(iter(runs))
            pattern += re.escape(text)
            example += text
            continue
        lengths = {len(run) for run in runs}
        length = min(lengths)
        pattern += of_class + (("" if length == 1 else f"{{{length}}}") if len(lengths) == 1 else "+")
        example += "".join(_LIKE[kind][n % 10] for n in range(length))
    pattern += "$"
    if sum(not _matches(pattern, v) for v in wrong) < _MISFORMED * len(wrong):
        return None
    return {"pattern": pattern}, f"In the form {example}."


def _runs(value: str) -> list[tuple[str, str]]:
    """(class, characters) of each run of one class of characters; any other character is its own class."""
    found: list[tuple[str, str]] = []
    for run in _RUN.findall(value):
        kind = next((name for name, of_class in _CLASSES if re.fullmatch(f"{of_class}+", run, re.ASCII)), None)
        found += [(kind, run)] if kind else [(character, character) for character in run]
    return found


def _matches(pattern: str, value: Any) -> bool:
    return isinstance(value, str) and re.search(pattern, value) is not None


def _type(value: Any) -> str:
    names = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}
    return names.get(type(value), "null")


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
