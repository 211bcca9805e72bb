"""Downstream edits: an answer that came back changed in the client's next history was edited by somebody."""

from __future__ import annotations

import re
from difflib import SequenceMatcher

from atdp.records import AnnotationDraft, EventDraft, Message
from services.proxy.harvest.drafts import SHARE, candidate
from services.proxy.harvest.reading import answer_text, parts, text

_CONFIDENCE = 0.8
_SHORT = 20
"""Characters; a shorter answer has no wording to edit."""
_ALIKE = 0.5
"""Less alike than this, it is another text, not an edited one."""
_LOOKED_AT = 20_000
_SPACE = re.compile(r"\s+")


def edited(call: EventDraft, history: list[Message], by: str) -> AnnotationDraft | None:
    """The edit of a call's answer, if the history of the request `by` has it in another wording.

    Whitespace is no edit, nor is an answer that is missing, cut off (a client's own truncation) or only
    longer by what tools said. The value is the share of the wording that stayed.
    """
    given = _normal(answer_text(call))
    if len(given) < _SHORT:
        return None
    said = [_normal(text(message)) for message in history if message.role == "assistant" and parts(message, "text")]
    if not said or any(given == each or given.startswith(each) or each.startswith(given) for each in said if each):
        return None
    best = max((SequenceMatcher(None, given, each, autojunk=False).ratio() for each in said[-3:]), default=0.0)
    if not _ALIKE <= best < 1:
        return None
    return candidate(call, "downstream_edit", "edited", _CONFIDENCE, value=round(best, 3), scale=SHARE, evidence=[by])


def _normal(value: str) -> str:
    return _SPACE.sub(" ", value).strip()[:_LOOKED_AT]
