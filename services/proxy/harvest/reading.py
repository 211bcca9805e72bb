"""Reading events as they are before the store makes them small: texts, tool calls, results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from atdp.records import Action, EventDraft, Message, MessagePrefix, Observation, Outcome, Part


def event_of(record: dict[str, Any]) -> EventDraft:
    """A stored event, its content loaded, as the draft it was."""
    chain = ("seq", "prev_hash", "hash", "record")
    return msgspec.convert({key: value for key, value in record.items() if key not in chain}, EventDraft)


def answers(event: EventDraft) -> list[Message]:
    """What the model said; empty for an event that is no model call."""
    action = event.a
    if event.kind != "llm_call" or not isinstance(action, Action) or isinstance(action.messages, msgspec.UnsetType):
        return []
    return action.messages


def parts(message: Message, type: str) -> list[Part]:
    return [part for part in message.parts if part.type == type]


def text(message: Message) -> str:
    """The words of a message."""
    return "".join(part.content for part in parts(message, "text") if isinstance(part.content, str))


def answer_text(event: EventDraft) -> str:
    """The words of a model call's first answer."""
    return next((text(message) for message in answers(event)), "")


def calls(event: EventDraft) -> list[Part]:
    """The tool calls of a model call's first answer."""
    return next((parts(message, "tool_call") for message in answers(event)), [])


def user_text(event: EventDraft) -> str:
    """The words of a `user_message`."""
    observed = event.o
    if not isinstance(observed, Observation) or not isinstance(observed.messages, list):
        return ""
    return "".join(text(message) for message in observed.messages)


def request(event: EventDraft) -> list[Message]:
    """The messages of a model call's request that the event itself holds."""
    observed = event.o
    if not isinstance(observed, Observation):
        return []
    if isinstance(observed.messages, MessagePrefix):
        held = [item for item in observed.messages.append if "parts" in item]
        return msgspec.convert(held, list[Message])
    return observed.messages if isinstance(observed.messages, list) else []


def action(event: EventDraft) -> Action:
    return event.a if isinstance(event.a, Action) else Action()


def tool_name(event: EventDraft) -> str:
    name = action(event).name
    return name if isinstance(name, str) else ""


def arguments(event: EventDraft) -> Any:
    value = action(event).arguments
    return None if value is UNSET else value


def result(event: EventDraft) -> Any:
    """What an operation gave: the result, else the error's words."""
    outcome: Outcome = event.y
    if not isinstance(outcome.result, msgspec.UnsetType):
        return outcome.result
    error = outcome.error
    return (
        None if isinstance(error, msgspec.UnsetType) or isinstance(error.message, msgspec.UnsetType) else error.message
    )


def result_text(event: EventDraft) -> str:
    """The words in an operation's result."""
    return "\n".join(_texts(result(event)))


def last(events: Sequence[EventDraft], *kinds: str) -> EventDraft | None:
    return next((event for event in reversed(events) if event.kind in kinds), None)


def leaves(value: Any) -> Iterable[Any]:
    """The strings and numbers in a JSON value; what stands in for sealed or removed content is none of them."""
    if isinstance(value, dict):
        if "sealed" in value or ("redacted" in value and "labels" in value):
            return
        for item in value.values():
            yield from leaves(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from leaves(item)
    elif value is not None:
        yield value


def _texts(value: Any) -> Iterable[str]:
    return (str(leaf) for leaf in leaves(value) if isinstance(leaf, str))
