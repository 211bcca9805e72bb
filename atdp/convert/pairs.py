"""Preference pairs: two answers to one prompt, one of them better."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from atdp import messages
from atdp.annotations import in_force
from atdp.convert.base import Record
from atdp.convert.conversation import Conversation
from atdp.convert.loss import LossReport
from atdp.convert.view import Said, TrajectoryView

PAIR = frozenset({"annotation.chosen", "annotation.rejected", "annotation.ext.demonstration"})

SOURCE = {"kind": "human"}
"""Whose preference it is when the file does not say: that of whoever made it."""


class Pair(NamedTuple):
    prompt: list[Said]
    chosen: dict[str, Any]
    rejected: dict[str, Any]
    annotation: Record


def add_pair(conversation: Conversation, chosen: list[dict[str, Any]], rejected: list[dict[str, Any]]) -> None:
    """Both answers to what was shown so far, and which is better; the conversation goes on from that one."""
    for side, answer in (("preferred", chosen), ("non-preferred", rejected)):
        for extra in answer[1:]:
            conversation.loss.lose(f"{side} output after its first message", extra, "an answer is one message")
    worse = conversation.assistant(messages.from_openai(rejected[0]))
    better = conversation.instead(messages.from_openai(chosen[0]))
    conversation.annotate(
        "preference",
        "pair",
        SOURCE,
        chosen=conversation.target(better),
        rejected=conversation.target(worse),
        event_id=better,
    )


def is_pair(annotation: Record) -> bool:
    """Does it say of two answers which is better?"""
    if annotation["kind"] != "preference":
        return False
    return "demonstration" in annotation.get("ext", {}) or {"chosen", "rejected"} <= annotation.keys()


def pairs(view: TrajectoryView, loss: LossReport) -> Iterator[Pair]:
    """The pairs of a trajectory: two of its own answers, or an answer and the demonstration that corrects it."""
    calls = {call["id"]: call for call in view.calls() if call.get("a", {}).get("messages")}
    for annotation in in_force(view.annotations):
        if not is_pair(annotation):
            continue
        demonstration = annotation.get("ext", {}).get("demonstration")
        rejected = annotation.get("rejected") or annotation.get("chosen") or annotation["targets"][0]
        worse = calls.get(rejected.get("event_id", ""))
        better = calls.get(annotation.get("chosen", {}).get("event_id", ""))
        if worse is None or (better is None and demonstration is None):
            loss.lose(
                "annotation.preference (answer not at hand)", annotation["id"], "its answers are not in the records"
            )
            continue
        said = messages.from_openai(demonstration) if demonstration else better["a"]["messages"][0] if better else {}
        yield Pair(view.prompt(worse), _plain(said), _plain(worse["a"]["messages"][0]), annotation)


def _plain(message: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in message.items() if key != "finish_reason"}
