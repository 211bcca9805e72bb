"""What came of re-making one recorded conversation from one of its decisions on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from evaluators.cases import Action, Call, action_of, same_action
from evaluators.replay.classes import Klass, worst
from evaluators.replay.judging import Judgement
from evaluators.replay.recording import Message, Recording

End = Literal["finished", "user_diverged", "not_on_tape", "write_refused", "malformed_call", "unanswered", "step_limit"]
"""finished: the agent answered and the recording's user said nothing more. user_diverged: nobody knows what the user
would have said to this. not_on_tape: no result is known for a call. write_refused: the same for a call that may
change something, which replay never makes. malformed_call, unanswered: the agent's own failures. step_limit: it went
on for too long."""

UNKNOWN_ENDS: frozenset[End] = frozenset({"user_diverged", "not_on_tape", "write_refused", "step_limit"})
Source = Literal["tape", "environment", "nearest"]


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One decision to be made by the candidate."""

    tenant: str
    messages: Sequence[Message]
    tools: Sequence[dict[str, Any]]
    params: Mapping[str, Any]
    seed: int


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate's answer; token ids and log-probabilities where the server gave them."""

    message: Message
    prompt_token_ids: list[int] = []
    completion_token_ids: list[int] = []
    logprobs: list[float] = []
    """Nats, one for each completion token, under the distribution that was sampled from."""
    policy_version: str = ""


AnswerWith = Callable[[Request], Awaitable[Answer | None]]
"""Asks the candidate; None where it gave no answer at all."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call of the branch and what answered it."""

    call: Call
    result: str
    status: str = "ok"
    source: Source
    klass: Klass
    similarity: float = 1.0
    """Of the arguments to those of the recorded call that answered, 1 unless `nearest`."""


class Branch(msgspec.Struct, frozen=True, kw_only=True):
    recording_id: str
    start: int
    """Place, among the recording's messages, of the decision the branch begins with."""
    repeat: int
    seed: int
    answers: tuple[Answer, ...]
    messages: Sequence[Message]
    """The whole conversation, the recorded beginning included."""
    outcomes: tuple[Outcome, ...]
    end: End
    why: str = ""
    state: str
    """The hash chain of what was written, the recorded beginning included."""
    recorded_state: str
    """The same when the recording ended."""
    diverged: bool
    """Did the agent do or say anything else than what was recorded?"""
    done: bool | None = None
    """The environment's verdict on the task, where it gives one."""
    violations: tuple[str, ...] = ()
    """What the environment, or the rules, say must not have been done."""

    @property
    def klass(self) -> Klass:
        if self.end in UNKNOWN_ENDS:
            return "non_replayable"
        return worst(o.klass for o in self.outcomes)

    @property
    def first(self) -> Action | None:
        """The decision itself, before anything followed from it; None when there was no answer."""
        return action_of(self.answers[0].message) if self.answers else None

    @property
    def final(self) -> Action | None:
        return action_of(self.answers[-1].message) if self.answers else None


def judge_branch(recording: Recording, branch: Branch) -> Judgement:
    """Whether the branch ended well: the environment's verdict, else the record of the same end.

    Without a verdict, only a branch that wrote the same and ended with the same words is known to end as the
    recording did. Everything else is unknown.
    """
    if branch.end in ("malformed_call", "unanswered"):
        return "failure"
    if branch.end in UNKNOWN_ENDS:
        return "unknown"
    if branch.done is not None:
        return "success" if branch.done else "failure"
    if recording.success is None or branch.final is None or recording.final is None:
        return "unknown"
    if branch.state != branch.recorded_state or not same_action(branch.final, recording.final):
        return "unknown"
    return "success" if recording.success else "failure"
