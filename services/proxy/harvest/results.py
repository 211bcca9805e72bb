"""What became of a tool's result: used, corrected, contradicted or ignored by what the model did then.

`used`: values that only the result could have given show up in the next answer or its tool calls.
`corrected`: the call failed and the model made it again with other arguments. `contradicted`: it
failed and the answer claims success. `ignored`, which only the end shows: it had such values, and no
later answer or call has any of them. Where nothing of this is clear, nothing is said.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence, Set
from typing import Any

from atdp.error_class import tells_failure
from atdp.records import AnnotationDraft, EventDraft
from services.proxy.harvest.drafts import candidate
from services.proxy.harvest.reading import (
    answer_text,
    arguments,
    calls,
    leaves,
    result,
    result_text,
    tool_name,
    user_text,
)

OPERATIONS = frozenset({"tool_call", "retrieval", "memory_read", "code_exec", "browser_op", "file_op"})

_CONFIDENCE = {"used": 0.9, "corrected": 0.9, "contradicted": 0.6, "ignored": 0.5}
_WORD = re.compile(r"[^\W_]+(?:[.,:/@_-][^\W_]+)*")
_MOST_VALUES = 400
_KNOWN_EVENTS = 40
"""How far back something may have been said to count as known already."""
_LOOKED_AT = 20_000
"""Characters of one text."""
_FEW = 3
"""Fewer ids, codes or amounts than this, and their absence says nothing."""
_CLAIMS = re.compile(
    r"\b(successfully|has been (updated|changed|cancell?ed|booked|refunded|sent|created|deleted|saved|fixed|added)|"
    r"i('ve| have) (now |just )?(updated|changed|cancell?ed|booked|refunded|sent|created|deleted|saved|fixed|added)|"
    r"erfolgreich|avec succès|con éxito|com sucesso|con successo)\b",
    re.IGNORECASE,
)
_ADMITS = re.compile(
    r"\b(error|fail|unable|could ?n[o']t|can ?n[o']t|unfortunately|sorry|problem|issue|not (found|possible|able)|"
    r"fehler|leider|erreur|malheureusement|lamentablemente|erro|errore)",
    re.IGNORECASE,
)


class Vocabulary:
    """The words of each event, read once: what it put before the model, or what the model made."""

    def __init__(self) -> None:
        self._words: dict[str, Set[str]] = {}

    def of(self, event: EventDraft) -> Set[str]:
        found = self._words.get(event.id)
        if found is None:
            found = self._words[event.id] = _words(_said(event))
        return found

    def known(self, history: Sequence[EventDraft]) -> set[str]:
        """What was said not long before."""
        return set().union(*(self.of(event) for event in history[-_KNOWN_EVENTS:]))


def disposition(tool: EventDraft, call: EventDraft, known: set[str], words: Vocabulary) -> AnnotationDraft | None:
    """What the next model call made of a tool's result; `known` is what was in front of the model before it."""
    label = _failure(tool, call) if failed(tool) else ("used" if _values(tool, known) & words.of(call) else None)
    return None if label is None else _labelled(tool, label, call)


def ignored(
    tool: EventDraft, later: Sequence[EventDraft], known: set[str], words: Vocabulary
) -> AnnotationDraft | None:
    """The finding that none of the later model calls has anything of a result, if there was something to have."""
    made = [call for call in later if call.kind == "llm_call"]
    if failed(tool) or not any(answer_text(call) for call in made):
        return None
    values = _values(tool, known)
    telling = sum(any(char.isdigit() for char in value) or value.isupper() for value in values)
    if telling < _FEW or any(not values.isdisjoint(words.of(call)) for call in made):
        return None
    return _labelled(tool, "ignored", made[-1])


def _labelled(tool: EventDraft, label: str, call: EventDraft) -> AnnotationDraft:
    return candidate(tool, "tool_result", label, _CONFIDENCE[label], kind="label", source="code", evidence=[call.id])


def _failure(tool: EventDraft, call: EventDraft) -> str | None:
    answer, made = answer_text(call), calls(call)
    if any(each.name == tool_name(tool) and each.arguments != arguments(tool) for each in made):
        return "corrected"
    return "contradicted" if not made and _CLAIMS.search(answer) and not _ADMITS.search(answer) else None


def _values(tool: EventDraft, known: set[str]) -> set[str]:
    return distinctive(result(tool), known | _words(_json(arguments(tool))))


def _said(event: EventDraft) -> str:
    """The words of an event, as many as count."""
    if event.kind == "llm_call":
        return f"{answer_text(event)} {_json([each.arguments for each in calls(event)])}"[:_LOOKED_AT]
    if event.kind == "user_message":
        return user_text(event)[:_LOOKED_AT]
    return f"{_json(arguments(event))[:_LOOKED_AT]} {result_text(event)[:_LOOKED_AT]}"


def _json(value: Any) -> str:
    return json.dumps(value, default=str, ensure_ascii=False)


def failed(tool: EventDraft) -> bool:
    """Did the operation fail, by its status or by the first thing its result says?"""
    return tool.y.status in ("error", "timeout", "denied") or tells_failure(result_text(tool))


def distinctive(value: Any, known: set[str]) -> set[str]:
    """Words and numbers of a result that were not known before: ids, names, amounts, dates."""
    texts = [str(leaf)[:_LOOKED_AT] for leaf in leaves(_parsed(value)) if not isinstance(leaf, bool)]
    found: set[str] = set()
    # read as one text: no word goes over the end of a line
    for word in _words("\n".join(texts)):
        if word not in known and _tells(word):
            found.add(word)
            if len(found) >= _MOST_VALUES:
                break
    return found


def _tells(word: str) -> bool:
    """Would an answer hold this by chance? Digits make a word telling, capitals (codes) and length do."""
    if len(word) < 3:
        return False
    return len(word) >= 7 or word.isupper() or (not word.isalpha() and any(map(str.isdigit, word)))


def _words(text: str) -> Set[str]:
    """The words as they are, and numbers without what writers put into them (1,367.50 and 1367.5 are one).

    In the order of the text.
    """
    return dict.fromkeys(_number(word) if word[:1].isdigit() else word for word in _WORD.findall(text)).keys()


def _number(word: str) -> str:
    plain = word.replace(",", "")
    try:
        return f"{float(plain):g}" if len(plain) < 15 else plain
    except ValueError:
        return word


def _parsed(value: Any) -> Any:
    """Results often are JSON in a string; keys are the tool's own words, not findings."""
    if isinstance(value, str) and value[:1] in "{[":
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value
