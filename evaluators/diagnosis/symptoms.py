"""What one failure looks like: read off what was wanted, what was said about it, and what the tools answered."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any, Literal

import msgspec

from evaluators.cases import Action, Call, Case
from evaluators.diagnosis.outcomes import Outcome, performed
from evaluators.facts import stated_fact
from evaluators.steps import Step

Kind = Literal[
    "missing fact",
    "ignored fact",
    "wrong tool",
    "no call",
    "arguments",
    "rejected call",
    "missing steps",
    "needless call",
    "refused",
    "wrong answer",
    "unexplained",
]

_REFUSAL = re.compile(
    r"\b(?:i(?:'m| am)? (?:can(?:no|')t|not (?:allowed|able|permitted|authori[sz]ed)|unable|must not|may not|won't)|"
    r"(?:is|are) not (?:allowed|permitted)|against (?:our|the|my) (?:policy|rules)|needs? (?:\w+ ){0,3}approval|"
    r"only (?:\w+ ){0,3}(?:supervisor|manager|human|colleague)|not (?:allowed|permitted) to)\b",
    re.IGNORECASE,
)


class Symptom(msgspec.Struct, frozen=True):
    kind: Kind
    tool: str
    """The tool wanted, else the tool called; a fact's topic; `answer`."""
    detail: str = ""
    """The tool called instead, the argument that was wrong, the steps missing, the tenant a fact is missing for."""
    error_class: str = ""

    @property
    def rejected(self) -> bool:
        """Did a tool say itself that it does not take this?"""
        return bool(self.error_class) and self.error_class != "malformed"

    @property
    def about_ability(self) -> bool:
        """May it come from what the model can do, rather than from what it was told?"""
        return self.kind not in ("missing fact", "refused", "unexplained")


def symptom(outcome: Outcome) -> Symptom:
    """The most telling thing about a failure."""
    if outcome.wanted:
        return _of_calls(outcome, outcome.wanted)
    case = outcome.case
    texts = [remark.text for remark in case.corrections] + ([case.wanted.text] if case.wanted else [])
    fact = next((f for text in texts if (f := stated_fact(text))), None)
    if fact is not None:
        known = fact.value in case.shown
        return Symptom("ignored fact" if known else "missing fact", fact.topic, "" if known else case.tenant)
    if outcome.wanted is not None and outcome.done:
        return Symptom("needless call", outcome.done[-1].name)
    rejected = last_rejection(case)
    if rejected is not None:
        return Symptom("rejected call", rejected.name, error_class=rejected.error_class)
    if case.action.malformed:
        return Symptom("rejected call", case.action.kind, error_class="malformed")
    if refuses(case):
        return Symptom("refused", outcome.tool)
    return Symptom("wrong answer" if case.wanted else "unexplained", outcome.tool)


def refuses(case: Case) -> bool:
    """Did the agent call nothing and say that it must not or can't?"""
    return not performed(case) and bool(_REFUSAL.search(_last_words(case)))


def last_rejection(case: Case) -> Step | None:
    """The last tool call of the turn that failed."""
    return next((s for s in reversed(case.steps) if s.name and s.failed), None)


def wrong_arguments(done: Call, wanted: Call) -> dict[str, tuple[Any, Any]]:
    """(given, right) of each argument that differs; of unreadable arguments, all."""
    given, right = done.arguments or {}, wanted.arguments or {}
    return {name: (given.get(name), right.get(name)) for name in {*given, *right} if given.get(name) != right.get(name)}


def _of_calls(outcome: Outcome, wanted: tuple[Call, ...]) -> Symptom:
    case, done = outcome.case, outcome.done
    called, due = Counter(c.name for c in done), Counter(c.name for c in wanted)
    absent, extra = list((due - called).elements()), list((called - due).elements())
    rejected = last_rejection(case)
    error = rejected.error_class if rejected is not None else ("malformed" if case.action.malformed else "")
    if not done:
        if case.action.malformed:
            return Symptom("arguments", outcome.tool, error_class=error)
        return Symptom("refused" if refuses(case) else "no call", outcome.tool, error_class=error)
    if absent and extra:
        return Symptom("wrong tool", absent[-1], extra[-1], error)
    if absent:
        return Symptom("missing steps", outcome.tool, " → ".join(absent), error)
    if extra:
        return Symptom("needless call", extra[-1], error_class=error)
    differing = [n for d, w in zip(done, wanted, strict=True) if d.name == w.name for n in wrong_arguments(d, w)]
    if not differing and [c.name for c in done] != [c.name for c in wanted]:
        return Symptom("missing steps", outcome.tool, "order", error)
    if differing:
        return Symptom("arguments", outcome.tool, Counter(sorted(differing)).most_common(1)[0][0], error)
    return Symptom("wrong answer", outcome.tool, error_class=error)


def _last_words(case: Case) -> str:
    return next((s.text for s in reversed(case.steps) if s.kind == "llm_call" and s.text), case.action.text)


def told(action: Action) -> str:
    """An action as a person reads it."""
    return "; ".join(f"{c.name}({c.arguments})" for c in action.calls) or action.text or "(nothing)"
