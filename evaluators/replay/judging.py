"""What the tape says about an answer: the recorded outcome, a demonstration, a stated correction; never an opinion."""

from __future__ import annotations

from typing import Literal

from evaluators.cases import Action, Case, same_action
from evaluators.facts import quantities, same_quantities, stated_fact

Judgement = Literal["success", "failure", "unknown"]


def judge(case: Case, answer: Action | None) -> Judgement:
    """What the tape says about this answer to this case."""
    if answer is None:
        return "failure"
    if case.success and same_action(answer, case.action):
        return "success"
    if answer.malformed:
        return "failure"
    if case.wanted is not None:
        return "success" if same_action(answer, case.wanted) else "failure"
    right = correct_quantities(case)
    if right:
        return "success" if not answer.calls and quantities(answer.text) == right else "failure"
    if not case.success and same_action(answer, case.action):
        return "failure"
    if case.success and not case.action.calls and quantities(case.action.text):
        return "success" if same_quantities(answer.text, case.action.text) else "failure"
    return "unknown"


def correct_quantities(case: Case) -> list[tuple[str, str]]:
    """The quantities the latest correction says are right; empty when it names none."""
    for remark in reversed(case.corrections):
        fact = stated_fact(remark.text)
        found = quantities(fact.value if fact else remark.text)
        if found:
            return found
    return []
