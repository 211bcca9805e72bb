"""What the classifier says, as signals for `/v1/feedback`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from atdp.ids import derived_id
from evaluators.next_state.classifier import Classifier, Embed
from evaluators.next_state.replies import TOLD, Reply

_DIGITS = 12
_VALUES = {"positive": 1.0, "negative": 0.0}
"""A neutral reply says nothing about the answer."""


def reply_signals(replies: Sequence[Reply], classifier: Classifier, embed: Embed) -> list[dict[str, Any]]:
    """A signal about each answer whose reply is, surely enough, positive or negative. Never optimised as it is."""
    version = classifier.digest.removeprefix("sha256:")[:_DIGITS]
    source = {"kind": "reward_model", "id": "next-state", "version": version}
    return [
        {
            "name": TOLD,
            "event_id": reply.event_id,
            "value": _VALUES[said.label],
            "confidence": round(said.confidence, 4),
            "source": source,
            "optimizable": False,
            "id": derived_id("fb", TOLD, reply.event_id, version),
        }
        for reply, said in zip(replies, classifier.say(replies, embed), strict=True)
        if said.label in _VALUES
    ]
