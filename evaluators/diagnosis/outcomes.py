"""What is counted in a diagnosis: one outcome for each verdict, with what was done and what was wanted."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence

import msgspec

from evaluators.cases import Call, Case, Key

ANSWER = "answer"
"""What an outcome is about when no tool is."""


class Outcome(msgspec.Struct, frozen=True):
    """One judged piece of work: a decision, or the decisions that share one verdict."""

    case: Case
    """Of several decisions, the one that says most about what went wrong."""
    done: tuple[Call, ...]
    """Calls of the decisions and of what followed them, in order; look-ups left out."""
    wanted: tuple[Call, ...] | None
    """Calls somebody demonstrated, in order; None when nobody demonstrated anything."""

    @property
    def failed(self) -> bool:
        return not self.case.success

    @property
    def subject(self) -> str:
        """What the work is about: the tools of the right action as far as it is known, else of what was done."""
        calls = self.done if self.wanted is None else self.wanted
        return "+".join(sorted({call.name for call in calls})) or ANSWER

    @property
    def tool(self) -> str:
        """The last tool of the subject's: what the work comes down to."""
        calls = self.done if self.wanted is None else self.wanted
        return calls[-1].name if calls else ANSWER


def outcomes_of(cases: Sequence[Case], look_ups: Collection[str] = ()) -> list[Outcome]:
    """The judged work among cases, in order. `look_ups` are tools that change nothing: no demonstration need show them.

    Decisions of one trajectory with the same verdict at the same time were judged together and are counted once.
    """
    verdicts: dict[tuple[Key, str, float], list[Case]] = defaultdict(list)
    for case in cases:
        if case.reward is not None:
            verdicts[case.trajectory, case.judged_at, case.reward].append(case)
    return [_outcome(members, set(look_ups)) for members in verdicts.values()]


def read_only(cases: Sequence[Case]) -> frozenset[str]:
    """Tools of which every record says that a call changes nothing."""
    effects: dict[str, set[str]] = defaultdict(set)
    for case in cases:
        for step in case.steps:
            if step.name:
                effects[step.name].add(step.effect)
    return frozenset(name for name, found in effects.items() if found <= {"none", "read"})


def _outcome(members: Sequence[Case], look_ups: set[str]) -> Outcome:
    shown = [c.wanted for c in members if c.wanted is not None]
    wanted = tuple(call for action in shown for call in action.calls) if shown else None
    idle = look_ups - {call.name for call in wanted or ()}
    done = tuple(call for case in members for call in performed(case) if call.name not in idle)
    return Outcome(case=max(members, key=_says), done=done, wanted=wanted)


def performed(case: Case) -> list[Call]:
    """Every call of the turn in order, each once: the decision's own are among the steps when results came back."""
    calls = list(case.action.calls)
    known = Counter(_key(call) for call in calls)
    for step in case.steps:
        if step.kind == "llm_call" or not step.name:
            continue
        call = Call(step.name, step.arguments)
        if known[_key(call)] > 0:
            known[_key(call)] -= 1
        else:
            calls.append(call)
    return calls


def _key(call: Call) -> tuple[str, bytes]:
    return call.name, msgspec.json.encode(call.arguments, order="sorted")


def _says(case: Case) -> tuple[int, str]:
    """How much a decision tells about a failure; the later one among equals."""
    told = 4 * (case.wanted is not None) + 2 * bool(case.corrections) + any(s.failed for s in case.steps)
    return told, case.at
