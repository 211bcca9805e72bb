"""Replies: what a user said after an answer, and what is known of that answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from evaluators.next_state import LABELS, Label
from evaluators.rewards import RewardRule, resolve

TOLD = "next_state"
"""Name of a label annotation that says outright what a reply was; anything in `LABELS`."""
_KNOWS = frozenset({"human", "end_user", "environment"})
"""Sources that know the outcome. What was harvested from the reply itself, or a model said, would teach an echo."""
_GOOD, _BAD = 0.75, 0.25


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """One exchange and the user's next message."""

    tenant: str = ""
    trajectory_id: str
    event_id: str
    """The answer it is about."""
    request: str
    """What the user had said before the answer."""
    answer: str
    text: str
    label: Label | None = None
    """None where nobody knows."""
    label_from: str = ""


def replies_of(records: Sequence[Mapping[str, Any]], rule: RewardRule, tenant: str = "") -> list[Reply]:
    """The replies in the resolved records of a tenant's trajectory, labelled where something about the answer is known.

    A `next_state` label by a person decides; else what a person, user or environment said about that very answer,
    as the rule reads it. The outcome of the whole trajectory labels no single reply.
    """
    annotations = [dict(r) for r in records if r["record"] == "annotation"]
    found = resolve(annotations, rule)
    told = {
        target["event_id"]: a["label"]
        for a in annotations
        if a.get("name") == TOLD and a["source"]["kind"] == "human" and a.get("label") in LABELS
        for target in a["targets"]
        if target.get("event_id")
    }
    replies: list[Reply] = []
    request, answered = "", None
    for event in records:
        if event["record"] != "event":
            continue
        if event["kind"] == "llm_call" and (said := _text((event.get("a") or {}).get("messages"))):
            answered = (event["id"], said)
        elif event["kind"] == "user_message":
            text = _text((event.get("o") or {}).get("messages"))
            if answered is not None and text:
                label, source = _label(answered[0], told, found.signals)
                replies.append(
                    Reply(
                        tenant=tenant, trajectory_id=str(event["trajectory_id"]), event_id=answered[0], request=request,
                        answer=answered[1], text=text, label=label, label_from=source,
                    )
                )  # fmt: skip
            request, answered = text, None
    return replies


def _label(event_id: str, told: Mapping[str, Any], signals: Sequence[Any]) -> tuple[Label | None, str]:
    if event_id in told:
        return told[event_id], TOLD
    for signal in reversed(signals):
        if event_id in signal.events and signal.in_force and signal.source in _KNOWS and signal.value is not None:
            label: Label = "neutral"
            if signal.value >= _GOOD or signal.value <= _BAD:
                label = "positive" if signal.value >= _GOOD else "negative"
            return label, signal.name
    return None, ""


def _text(messages: Any) -> str:
    """The words of messages; of several answers the first one's."""
    told = messages[:1] if isinstance(messages, list) else []
    parts = [part for message in told for part in message.get("parts") or [] if part.get("type") == "text"]
    return "".join(part["content"] for part in parts if isinstance(part.get("content"), str))
