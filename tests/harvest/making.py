"""Small events for harvesting tests."""

from __future__ import annotations

from itertools import count
from typing import Any

from atdp.records import Action, EventDraft, Message, Observation, Outcome, Part

_numbers = count()


def event(kind: str, **fields: Any) -> EventDraft:
    given: dict[str, Any] = {"y": Outcome(status="ok"), **fields}
    return EventDraft(
        atdp="1.0",
        id=f"e{next(_numbers)}",
        trajectory_id="t1",
        kind=kind,
        time="2026-09-02T10:15:00.950Z",
        ctx="sha256:" + "0" * 64,
        **given,
    )


def words(role: str, text: str) -> Message:
    return Message(role=role, parts=[Part(type="text", content=text)])


def user(text: str) -> EventDraft:
    return event("user_message", o=Observation(messages=[words("user", text)]))


def answer(text: str = "", *calls: tuple[str, Any], history: list[Message] | None = None) -> EventDraft:
    """A model call; `history` is its request when it is written out."""
    parts = [Part(type="text", content=text)] if text else []
    parts += [Part(type="tool_call", id=f"c{i}", name=name, arguments=args) for i, (name, args) in enumerate(calls)]
    observed = {} if history is None else {"o": Observation(messages=history)}
    return event("llm_call", a=Action(messages=[Message(role="assistant", parts=parts)]), **observed)


def tool(name: str, arguments: Any, result: Any, status: Any = "ok", kind: str = "tool_call") -> EventDraft:
    return event(kind, a=Action(name=name, arguments=arguments), y=Outcome(status=status, result=result))
