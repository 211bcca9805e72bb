"""Reward harvesting: candidate signals in what a trajectory's events already say.

Pure functions over events. `harvest` looks at what is new after each exchange, `at_close` at what only
the end shows. Nothing here decides what counts as reward: every finding is a candidate with its source,
its confidence and its evidence, and none may be optimised before it is resolved.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from atdp.records import AnnotationDraft, EventDraft
from services.proxy.harvest import words
from services.proxy.harvest.drafts import SHARE, SIGNED, candidate
from services.proxy.harvest.edits import edited
from services.proxy.harvest.outputs import verdicts
from services.proxy.harvest.reading import (
    action,
    answer_text,
    calls,
    event_of,
    last,
    request,
    result_text,
    tool_name,
    user_text,
)
from services.proxy.harvest.replies import reactions
from services.proxy.harvest.results import OPERATIONS, Vocabulary, disposition, ignored

__all__ = ["at_close", "event_of", "harvest", "worth_reading"]

_VERDICT_CONFIDENCE = {"tests": 0.95, "build": 0.9, "types": 0.9, "lint": 0.8, "run": 0.6}
_RUNS = frozenset({"tool_call", "code_exec"})
_ONLY_READS = re.compile(
    r"(^|[_.\-/])(read|cat|view|open|show|get|fetch|search|grep|find|list|browse)([_.\-/]|$)", re.IGNORECASE
)
"""Tools that print what somebody else's run said."""
_PERSON = r"(human|person|agent|supervisor|manager|support|representative|staff|operator)"
_TO_A_PERSON = re.compile(
    rf"(transfer|hand_?off|escalate|connect|route|forward)\w*?_(to_)?(an?_)?(live_)?{_PERSON}s?\b|(^|_)escalate(_|$)",
    re.IGNORECASE,
)
"""Names of tools that give the work to a person."""
_A_PERSON = re.compile(rf"^(live_|human_|a )?{_PERSON}s?$", re.IGNORECASE)
"""Names of hand-offs that are a person's."""


def worth_reading(previous: Sequence[EventDraft], current: Sequence[EventDraft]) -> bool:
    """Can `harvest` find anything in these events? Not in a request and its answer that follow nothing."""
    *inputs, call = current
    return (
        call.kind != "llm_call"
        or any(event.kind != "user_message" for event in inputs)
        or any(event.kind == "llm_call" or event.kind in OPERATIONS for event in previous)
    )


def harvest(previous: Sequence[EventDraft], current: Sequence[EventDraft]) -> list[AnnotationDraft]:
    """Candidates in `current`, the events just stored, after `previous`, the session's last ones; both in order."""
    found: list[AnnotationDraft] = []
    history, vocabulary = list(previous), Vocabulary()
    for event in current:
        if event.kind == "user_message":
            found += _reactions(history, event)
        elif event.kind == "llm_call":
            found += _dispositions(history, event, vocabulary)
            before = last(history, "llm_call")
            edit = edited(before, request(event), event.id) if before is not None and before.y.status == "ok" else None
            found += [edit] if edit is not None else []
        if event.kind in _RUNS:
            found += _verdicts(event)
        found += _people(event)
        history.append(event)
    return found


def at_close(events: Sequence[EventDraft], reason: str) -> list[AnnotationDraft]:
    """Candidates that only the end shows; `events` is the whole trajectory, `reason` why it ended."""
    abandoned = _abandonment(events) if reason == "idle" else None
    return [*([] if abandoned is None else [abandoned]), *_ignored(events)]


def _ignored(events: Sequence[EventDraft]) -> list[AnnotationDraft]:
    vocabulary = Vocabulary()
    found = (
        ignored(event, events[index + 1 :], vocabulary.known(events[:index]), vocabulary)
        for index, event in enumerate(events)
        if event.kind in OPERATIONS
    )
    return [each for each in found if each is not None]


def _abandonment(events: Sequence[EventDraft]) -> AnnotationDraft | None:
    """The user never came back: to an answer that followed a complaint, or to a question."""
    answer, user = last(events, "llm_call"), last(events, "user_message")
    if answer is None or user is None or last(events, "outcome") is not None or calls(answer):
        return None
    if _index(events, user) > _index(events, answer):
        return None
    reacted = {each.name for each in _reactions(events[: _index(events, user)], user)}
    if reacted:  # who thanked and left has not abandoned anything
        return None if reacted == {"user_thanks"} else _abandoned(answer, "after_complaint", 0.6, user)
    asks = words.ASKS.search(answer_text(answer).strip()[-300:])
    return _abandoned(answer, "question_left", 0.4, user) if asks else None


def _reactions(history: Sequence[EventDraft], message: EventDraft) -> list[AnnotationDraft]:
    """What a user's message says about the answer before it."""
    answer = last(history, "llm_call")
    if answer is None or not (said := answer_text(answer)):
        return []
    earlier = [user_text(event) for event in history if event.kind == "user_message"]
    return [
        candidate(answer, r.name, r.label, r.confidence, value=r.value, scale=SIGNED, evidence=[message.id])
        for r in reactions(user_text(message), said, earlier)
    ]


def _dispositions(history: Sequence[EventDraft], call: EventDraft, vocabulary: Vocabulary) -> list[AnnotationDraft]:
    """What a model call made of the results that came since the call before it."""
    if call.y.status != "ok":
        return []
    before = last(history, "llm_call")
    start = _index(history, before) + 1 if before is not None else 0
    known = vocabulary.known(history[:start])
    known |= vocabulary.known([event for event in history[start:] if event.kind == "user_message"])
    operations = [event for event in history[start:] if event.kind in OPERATIONS]
    found = (disposition(event, call, known, vocabulary) for event in operations)
    return [each for each in found if each is not None]


def _verdicts(event: EventDraft) -> list[AnnotationDraft]:
    """Test runners and compilers in a tool's output."""
    if _ONLY_READS.search(tool_name(event)):
        return []
    return [
        candidate(
            event, verdict.sort, "pass" if verdict.ok else "fail", _VERDICT_CONFIDENCE[verdict.sort],
            value=round(verdict.share, 4), scale=SHARE, source="environment", evidence=[event.id],
            runner=verdict.runner, passed=verdict.passed, failed=verdict.failed,
        )
        for verdict in verdicts(result_text(event))
    ]  # fmt: skip


def _people(event: EventDraft) -> list[AnnotationDraft]:
    """Hand-offs to a person, and how a person decided and how long that took."""
    name = tool_name(event)
    if (event.kind == "handoff" and _A_PERSON.search(name)) or (
        event.kind in ("handoff", "tool_call") and _TO_A_PERSON.search(name)
    ):
        return [candidate(event, "escalated", "to_person", 0.8, value=-1.0, scale=SIGNED, evidence=[event.id])]
    if event.kind != "approval":
        return []
    decision = action(event).decision
    label = decision if isinstance(decision, str) else str(event.y.status)
    found: list[AnnotationDraft] = []
    if isinstance(event.duration_ms, int | float):
        seconds = round(event.duration_ms / 1000, 3)
        found.append(candidate(event, "approval_delay_s", label, 1.0, value=seconds, kind="label", source="code"))
    if event.y.status == "denied" or label.lower() in ("denied", "rejected", "deny", "reject", "no", "decline"):
        found.append(candidate(event, "approval_denied", label, 0.8, value=-1.0, scale=SIGNED))
    return found


def _abandoned(answer: EventDraft, label: str, confidence: float, user: EventDraft) -> AnnotationDraft:
    return candidate(answer, "user_abandons", label, confidence, value=-1.0, scale=SIGNED, evidence=[user.id])


def _index(events: Sequence[EventDraft], event: EventDraft) -> int:
    return next(index for index, each in enumerate(events) if each is event)
