"""Which surface a cluster of failures suggests, and the evidence for it. A suggestion: replay decides."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Literal

from evaluators.diagnosis.clusters import Group
from evaluators.diagnosis.outcomes import Outcome
from evaluators.diagnosis.symptoms import Kind, last_rejection, wrong_arguments

Surface = Literal["memory", "skill", "harness", "tools", "policy", "rollback", "no-op"]
Suggestion = tuple[Surface, tuple[str, ...]]

_FORM_SHARE = 0.6
"""Of the wrong values, how many must have another form than every right one for the form to be what is wrong."""
_SENTENCE = re.compile(r"[^.!?\n]+[.!?]?")
_FORBIDS = re.compile(
    r"\b(never|must not|do not|don't|not allowed|not permitted|only after|only with|without (?:\w+ ){0,3}approval|"
    r"under no circumstances|refuse|decline|forbidden|may not)\b",
    re.IGNORECASE,
)


def suggest(group: Group, outcomes: Sequence[Outcome]) -> Suggestion:
    """The surface for a group of failures among all outcomes."""
    if not group.real:
        return "no-op", ("no more of them than chance brings",)
    if group.broad:
        return "policy", (_breadth(group),)
    return _BY_KIND[group.symptom.kind](group, outcomes)


def _breadth(group: Group) -> str:
    tools = sorted({o.tool for o in group.members})
    tenants = sorted({o.case.tenant for o in group.members})
    return f"across {len(tools)} tools or topics ({', '.join(tools)}) and {len(tenants)} tenants, none stands out"


def _missing_fact(group: Group, outcomes: Sequence[Outcome]) -> Suggestion:
    sessions = {o.case.session for o in group.members}
    return "memory", (f"{len(sessions)} sessions of {group.symptom.detail} were told it; it was not in the prompt",)


def _ability(group: Group, outcomes: Sequence[Outcome]) -> Suggestion:
    return "policy", (f"{group.symptom.kind} in {len(group.members)} of {group.exposed}; nothing it was told is wrong",)


def _wrong_tool(group: Group, outcomes: Sequence[Outcome]) -> Suggestion:
    wanted, called = group.symptom.tool, group.symptom.detail
    return "tools", (
        f"{called} was called where people show {wanted}, in {len(group.members)} of {group.exposed}",
        *_descriptions(group.members, (called, wanted)),
    )


def _no_call(group: Group, outcomes: Sequence[Outcome]) -> Suggestion:
    tool = group.symptom.tool
    right = sum(not o.failed and o.tool == tool for o in outcomes)
    if right:
        return "policy", (f"{tool} was called rightly in {right} other sessions: it is known, and often forgotten",)
    evidence = f"{tool} was never called, though people show it in {len(group.members)} sessions"
    others = sorted({c.name for o in outcomes for c in o.done})
    if not others:
        return "policy", (evidence, "nor was any other tool")
    return "tools", (evidence, f"{', '.join(others)} are called", *_descriptions(group.members, (tool,)))


def _arguments(group: Group, outcomes: Sequence[Outcome]) -> Suggestion:
    tools, argument = sorted({o.tool for o in group.members}), group.symptom.detail
    rejected = [r for o in group.members if (r := last_rejection(o.case)) is not None]
    pairs = [pair for o in group.members for pair in _differing(o, argument)]
    others = [_shape(v) for o in outcomes if not o.failed for v in _values(o, tools, argument)]
    right = Counter([_shape(value) for _, value in pairs] + others)
    misformed = [given for given, _ in pairs if _shape(given) not in right]
    evidence = [f"{argument} of {', '.join(tools)} is wrong in {len(group.members)} of {group.exposed}"]
    if pairs:
        given, wanted = pairs[-1]
        evidence.append(f"for example {given!r} instead of {wanted!r}")
    if rejected:
        classes = Counter(r.error_class for r in rejected).most_common(1)[0]
        evidence.append(f"the tool itself rejected {len(rejected)} ({classes[0]}): “{rejected[-1].text[:120]}”")
    if rejected and len(rejected) >= _FORM_SHARE * len(group.members):
        return "tools", tuple(evidence)
    if pairs and len(misformed) >= _FORM_SHARE * len(pairs):
        return "tools", (*evidence, f"{len(misformed)} of {len(pairs)} values have a form that no right value has")
    return "policy", (*evidence, "the form of the values is right, their content is not")


def _rejected(group: Group, outcomes: Sequence[Outcome]) -> Suggestion:
    tool = group.symptom.tool
    said = Counter(s.text[:120] for o in group.members if (s := last_rejection(o.case)) is not None)
    accepted = sum(any(s.name == tool and not s.failed for s in o.case.steps) for o in outcomes)
    evidence = [f"{tool} rejected {len(group.members)} calls ({group.symptom.error_class}); {accepted} were accepted"]
    evidence += [f"“{text}” ({n})" for text, n in said.most_common(2)]
    return ("tools" if accepted else "no-op"), tuple(evidence)


def _missing_steps(group: Group, outcomes: Sequence[Outcome]) -> Suggestion:
    wanted = Counter(" → ".join(c.name for c in o.wanted or ()) for o in group.members).most_common(1)[0][0]
    did = Counter(" → ".join(c.name for c in o.done) for o in group.members).most_common(1)[0][0]
    through = sum(not o.failed and " → ".join(c.name for c in o.done) == wanted for o in outcomes)
    return "skill", (
        f"it did {did or 'nothing'} where people show {wanted}, in {len(group.members)} of {group.exposed}",
        f"{through} sessions went through all steps and succeeded",
    )


def _needless(group: Group, outcomes: Sequence[Outcome]) -> Suggestion:
    return "harness", (f"{group.symptom.tool} was called in {len(group.members)} sessions where nothing was due",)


def _refused(group: Group, outcomes: Sequence[Outcome]) -> Suggestion:
    told = sum(o.wanted is not None for o in group.members)
    evidence = [f"refused in {len(group.members)} of {group.exposed}; people wanted it done in {told}"]
    wording = Counter(s for o in group.members for s in forbidding(o))
    if not wording:
        return "policy", (*evidence, "nothing in the prompt forbids it")
    return "harness", (*evidence, *(f"the prompt says “{text}” ({n})" for text, n in wording.most_common(3)))


def _unexplained(group: Group, outcomes: Sequence[Outcome]) -> Suggestion:
    return "no-op", ("nobody said or showed what would have been right",)


_BY_KIND: dict[Kind, Callable[[Group, Sequence[Outcome]], Suggestion]] = {
    "missing fact": _missing_fact,
    "ignored fact": _ability,
    "wrong tool": _wrong_tool,
    "no call": _no_call,
    "arguments": _arguments,
    "rejected call": _rejected,
    "missing steps": _missing_steps,
    "needless call": _needless,
    "refused": _refused,
    "wrong answer": _ability,
    "unexplained": _unexplained,
}


def forbidding(outcome: Outcome) -> list[str]:
    """Sentences in front of the model that forbid something: of its system text, and of what overlays added."""
    texts = [m["content"] for m in outcome.case.messages if m.get("role") in ("system", "developer")]
    texts.append(outcome.case.overlay_text)
    sentences = [s.strip() for text in texts if isinstance(text, str) for s in _SENTENCE.findall(text)]
    return list(dict.fromkeys(s for s in sentences if _FORBIDS.search(s)))


def _differing(outcome: Outcome, argument: str) -> list[tuple[Any, Any]]:
    found = []
    for done, wanted in zip(outcome.done, outcome.wanted or (), strict=False):
        differing = wrong_arguments(done, wanted) if done.name == wanted.name else {}
        if argument in differing:
            found.append(differing[argument])
    return found


def _values(outcome: Outcome, tools: Sequence[str], argument: str) -> list[Any]:
    calls = [c for c in outcome.done if c.name in tools and c.arguments]
    return [c.arguments[argument] for c in calls if c.arguments and argument in c.arguments]


def _shape(value: Any) -> str:
    """The form of a value: letters and digits masked in what has a digit; words and the like as they are."""
    if not isinstance(value, str):
        return type(value).__name__
    if any(c.isdigit() for c in value):
        return re.sub(r"\d+", "9", re.sub(r"[A-Z]", "A", re.sub(r"[a-z]", "a", value)))
    return value if "_" in value or value.islower() else re.sub(r"[^\W\d]+", "Aa", value)


def _descriptions(members: Sequence[Outcome], names: Sequence[str]) -> list[str]:
    """How the tools were described to the model."""
    tools = {t["function"]["name"]: t["function"] for o in members[-1:] for t in o.case.tools if "function" in t}
    return [f"{n}: “{tools[n].get('description', '')}”" for n in names if n in tools]
