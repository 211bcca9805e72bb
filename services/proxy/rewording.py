"""Answers that come back in the client's own words.

Some frameworks don't resend an answer but tell of it: smolagents writes its tool calls out as text,
and puts a closing tag behind code. What was said before it is the same all the same, and what comes
back shows its origin: it names the calls' ids, or begins with the answer's text.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from atdp import messages
from services.proxy.conversation import NOTHING_SAID, Fingerprints, Hash, digest

if TYPE_CHECKING:
    from services.proxy.sessions import Session, Step

_LEAST_ID = 8
"""Shorter call ids could stand in a text by chance."""


class Told(msgspec.Struct, frozen=True, gc=False):
    """What an answer is known by."""

    asked: Hash
    """Everything that was said before it."""
    length: int
    text: Hash
    """Of its text, `length` characters."""
    calls: tuple[str, ...]
    """Ids of the tools it called."""

    @classmethod
    def of(cls, answer: dict[str, Any], prints: Fingerprints) -> Told | None:
        """The answer to a request; None when nothing would be left to know it by."""
        text = messages.text(answer).strip()
        calls = tuple(call["id"] for call in messages.tool_calls(answer) if call.get("id"))
        if not prints.meanings or not (text or calls):
            return None
        return cls(prints.meanings[-1], len(text), digest(prints.key, text.encode()), calls)

    def by(self, message: dict[str, Any], key: bytes) -> bool:
        """Does the assistant's message of a later request tell of this answer?"""
        text = messages.text(message).strip()
        named = {call.get("id") for call in messages.tool_calls(message)}
        if any(id in named or (len(id) >= _LEAST_ID and id in text) for id in self.calls):
            return True
        return self.length > 0 and digest(key, text[: self.length].encode()) == self.text


def reworded(session: Session, prints: Fingerprints, at: int) -> Step | None:
    """The session's step whose answer the message at this place tells of."""
    step = session.asked.get(prints.meanings[at - 1]) if _may_tell(prints, at) else None
    return step if step is not None and step.told is not None and step.told.by(prints.said[at], prints.key) else None


def _may_tell(prints: Fingerprints, at: int) -> bool:
    return at > 0 and prints.said[at]["role"] == "assistant" and prints.meanings[at - 1] != NOTHING_SAID


@dataclass
class AskedBefore:
    """Which sessions have had what was said so far, up to an answer; by key."""

    _sessions: dict[tuple[str, Hash], list[Session]] = field(default_factory=dict)

    def add(self, session: Session, asked: Hash) -> None:
        known = self._sessions.setdefault((session.key.id, asked), [])
        if session not in known:
            known.append(session)

    def find(self, key_id: str, prints: Fingerprints, at: int) -> list[Session]:
        """The sessions that the message at this place goes on from."""
        if not _may_tell(prints, at):
            return []
        known = self._sessions.get((key_id, prints.meanings[at - 1]), ())
        return [session for session in known if reworded(session, prints, at) is not None]

    def forget(self, session: Session) -> None:
        for asked in session.asked:
            known = self._sessions.get((session.key.id, asked), [])
            if session in known:
                known.remove(session)
            if not known:
                self._sessions.pop((session.key.id, asked), None)
