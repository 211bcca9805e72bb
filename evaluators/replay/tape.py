"""The tape: what each recorded action came to, by tool, canonical arguments and the state it was done in.

The state is what had been written before: a hash chain over the writes, each with its canonical arguments. A
call that is known to change nothing leaves it; any other moves it on, a failed one too, since nobody knows what
it left behind. Two calls with the same key in one recording were made in the same world as far as the agent
could have changed it; when they nevertheless came to different results, the tool is not a function of its key
and the tape only answers approximately.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from atdp.canonical import canonical, digest

Effect = Literal["none", "read", "idempotent_write", "write", "irreversible"]
Boundary = Literal["inside", "tenant", "external", "human"]
READS: frozenset[str] = frozenset({"none", "read"})
START = digest([])
"""The state before anything was written."""

_NEVER_RAN = frozenset({"denied", "cancelled"})
_WORD = re.compile(r"\w+")
_NEAR = 0.6
"""Similarity of the arguments below which another call is no answer to this one."""


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """One recorded action with its outcome."""

    tool: str
    arguments: Any
    result: str
    """As the model read it."""
    status: str = "ok"
    effect: Effect = "write"
    """What it may have changed; a write unless somebody said otherwise."""
    event_id: str = ""


class Hit(msgspec.Struct, frozen=True):
    recorded: Recorded
    exact: bool
    """Same tool, arguments and state, always with the same result."""
    similarity: float = 1.0


class Tape:
    """The recorded actions of one trajectory, and others' reads to look near ones up in."""

    def __init__(self, recorded: Iterable[Recorded], elsewhere: Iterable[Recorded] = ()):
        """`elsewhere`: actions of other trajectories of the same tenant; they only ever answer approximately."""
        self._by_key: dict[tuple[str, str, str], list[Recorded]] = {}
        self._reads: dict[str, list[Recorded]] = {}
        self.states = [START]
        """The state before each action, and after the last."""
        for action in recorded:
            state = self.states[-1]
            self._by_key.setdefault((action.tool, canonical_arguments(action.arguments), state), []).append(action)
            self._readable(action)
            self.states.append(after(state, action.tool, action.arguments, action.effect, action.status))
        for action in elsewhere:
            self._readable(action)

    def exact(self, tool: str, arguments: Any, state: str) -> Hit | None:
        """The outcome recorded for this very action in this state."""
        found = self._by_key.get((tool, canonical_arguments(arguments), state))
        if not found:
            return None
        return Hit(found[0], exact=len({(r.result, r.status) for r in found}) == 1)

    def nearest(self, tool: str, arguments: Any) -> Hit | None:
        """The most similar recorded call of a tool that only reads, in whatever state; None when none is similar."""
        best: Hit | None = None
        for action in self._reads.get(tool, ()):
            similarity = alike(arguments, action.arguments)
            if similarity >= _NEAR and (best is None or similarity > best.similarity):
                best = Hit(action, exact=False, similarity=similarity)
        return best

    def _readable(self, action: Recorded) -> None:
        if action.effect in READS:
            self._reads.setdefault(action.tool, []).append(action)


def canonical_arguments(arguments: Any) -> str:
    """The one text of these arguments (RFC 8785), whatever order or spacing they came in."""
    return canonical(arguments).decode()


def alike(a: Any, b: Any) -> float:
    """How similar two calls' arguments are, from 0 to 1.

    Only what is written in words may differ: another name, code, number or date asks about another thing. The measure
    is the least similar of the free texts (Ratcliff & Obershelp's ratio).
    """
    if a == b:
        return 1.0
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        return min(alike(a[key], b[key]) for key in a)
    if isinstance(a, str) and isinstance(b, str) and _in_words(a) and _in_words(b):
        if _names(a) != _names(b):
            return 0.0
        return difflib.SequenceMatcher(None, a.lower(), b.lower()).ratio()
    return 0.0


def _in_words(text: str) -> bool:
    return len(text.split()) > 1


def _names(text: str) -> set[str]:
    """The words that stand for one thing: with a digit or a capital inside, or all capitals."""
    return {word for word in _WORD.findall(text) if any(c.isdigit() for c in word) or word[1:] != word[1:].lower()}


def after(state: str, tool: str, arguments: Any, effect: str, status: str = "ok") -> str:
    """The state once this action is done."""
    if effect in READS or status in _NEVER_RAN:
        return state
    return digest([state, tool, canonical_arguments(arguments)])


def as_text(result: Any) -> str:
    """A result as the model reads it."""
    if result is None or isinstance(result, str):
        return result or ""
    if isinstance(result, list) and result and all(isinstance(p, dict) and "text" in p for p in result):
        return "".join(p["text"] for p in result)
    return msgspec.json.encode(result).decode()
