"""Messages in OpenTelemetry's words, and the two forms in which a prompt names what is already stored."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import UNSET, Meta, UnsetType

from atdp.records.common import Count, Id, Leaf, PartOfRecord


class Part(PartOfRecord, frozen=True):
    """One piece of a message, in OpenTelemetry's words (text, reasoning, tool_call, tool_call_response, …)."""

    type: str
    content: Leaf | UnsetType = UNSET
    id: str | UnsetType | None = UNSET
    name: str | UnsetType = UNSET
    arguments: Leaf | UnsetType = UNSET
    """The arguments' value; the text itself when it is not one JSON object (`malformed`)."""
    response: Leaf | UnsetType = UNSET
    raw: Leaf | UnsetType = UNSET
    """The arguments' text, when writing `arguments` as JSON would not give it back byte for byte."""
    malformed: bool | UnsetType = UNSET


class Message(PartOfRecord, frozen=True):
    role: str
    parts: list[Part]
    name: str | UnsetType | None = UNSET
    finish_reason: str | UnsetType = UNSET
    ext: dict[str, Any] | UnsetType = UNSET
    """What a dialect has beyond this form; enough to write the message as it was sent."""


class Changed(PartOfRecord, frozen=True):
    """A message of the prefix that came back in another form than it was sent or generated in."""

    at: Count
    """Its place in the prefix, counted from 0."""
    message: Message


class MessagePrefix(PartOfRecord, frozen=True):
    """The prompt of call `prefix`, then its answer, then `append`.

    An appended `{event}` stands for the message which that `user_message` or operation event holds.
    Clients re-serialise arguments, drop reasoning and move cache marks when they send an answer back:
    `changed` holds such messages as they came, so that the prefix form stays exact.
    """

    prefix: Id
    append: list[
        Annotated[
            dict[str, Any],
            Meta(extra_json_schema={"anyOf": [{"required": ["role", "parts"]}, {"required": ["event"]}]}),
        ]
    ]
    changed: list[Changed] | UnsetType = UNSET
