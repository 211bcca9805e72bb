"""What the gateway needs to know about a dialect: how to read its requests and answers, and how it speaks of errors.

A dialect is pure: JSON values in, ATDP messages and `Completion`s out. It keeps everything a model
could have seen, so that a request can be written again as it was, and validates nothing that the
gateway does not need itself: the rest is the upstream's to judge.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import orjson
from msgspec import UNSET, UnsetType

from atdp.records import Usage
from services.proxy.completion import Choice, Completion
from services.proxy.sse import ServerSentEvent

Message = dict[str, Any]
"""A message in ATDP's form, as builtins."""


Path = tuple[str | int, ...]
"""Keys and positions that lead to a value in a request."""


class Place(NamedTuple):
    """Where text can be put into a request."""

    path: Path
    form: Literal["text", "part", "message", "field", "head"]
    """Into the string at `path`, as one more part of the list there, as a message at its head, as that field, or as a
    paragraph before the string."""
    at: int = 0
    """In characters, for `text`."""
    before: tuple[Any, ...] = ()
    """The value of a `field` that has one, though no text."""


class ToolPlace(NamedTuple):
    """Where a request describes a tool."""

    path: Path
    """Of the object with the tool's `description`."""
    schema: str
    """The field of that object that bounds the arguments."""


class WrongRequest(ValueError):
    """A request the gateway can't serve; `param` names the field."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


@dataclass(frozen=True)
class Problem:
    """An error, before a dialect has put it into its own form."""

    status: int
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class Texts:
    """Fields whose text arrives in pieces: joined when somebody asks, since adding strings up costs the square
    of their length."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[int, str], tuple[dict[str, Any], list[str]]] = {}

    def add(self, holder: dict[str, Any], field: str, piece: str) -> None:
        """One more piece of `holder[field]`."""
        waiting = self._waiting.get((id(holder), field))
        if waiting is None:
            self._waiting[id(holder), field] = (holder, [str(holder.get(field) or ""), piece])
        else:
            waiting[1].append(piece)

    def replaced(self, holder: dict[str, Any]) -> None:
        """What `holder` says now is whole: pieces of it that still wait are not added to it."""
        for key in [key for key in self._waiting if key[0] == id(holder)]:
            del self._waiting[key]

    def join(self) -> None:
        for (_, field), (holder, pieces) in self._waiting.items():
            holder[field] = "".join(pieces)
        self._waiting.clear()


class Assembler(ABC):
    """Adds up the events of a streamed answer."""

    def __init__(self) -> None:
        self._completion = Completion()
        self._texts = Texts()

    @property
    def completion(self) -> Completion:
        """The answer as far as it came."""
        self._texts.join()
        return self._completion

    @property
    def done(self) -> bool:
        """Did the event that ends the stream arrive?"""
        return self._completion.done

    def end(self) -> None:
        """The event that ends the stream has arrived."""
        self._completion.done = True

    @abstractmethod
    def add(self, chunk: dict[str, Any]) -> None:
        """Take in the JSON data of one event."""

    def ends(self, event: ServerSentEvent, chunk: dict[str, Any] | None) -> bool:
        """Is this the event after which the dialect's clients expect nothing more?"""
        return False

    def shows(self, chunk: dict[str, Any]) -> bool:
        """Does this event carry something of the answer itself (for the time to first token)?"""
        return True


class Dialect(ABC):
    """One way of talking to a model."""

    name: ClassVar[str]
    """As trajectories call it: `openai.chat`, `anthropic.messages`, …"""
    path: ClassVar[str]
    """Behind `/v1`, here and at the upstream."""
    not_params: ClassVar[frozenset[str]]
    """Fields of a request that are no decoding parameters."""
    content_field: ClassVar[str]
    """The field that holds what is said to the model."""

    @abstractmethod
    def check(self, request: dict[str, Any]) -> None:
        """Raises `WrongRequest` for what the gateway itself can't work with."""

    @abstractmethod
    def conversation(self, request: dict[str, Any]) -> list[Message]:
        """The messages of a request, system instructions that have a field of their own left out."""

    def instructions(self, request: dict[str, Any]) -> Any:
        """System instructions that have a field of their own, as sent; None when there are none."""
        return None

    @abstractmethod
    def answer(self, choice: Choice) -> Message:
        """An answer as the message that a client would send back."""

    @abstractmethod
    def whole(self, body: dict[str, Any]) -> Completion | None:
        """An answer that came as one JSON object; None when it is none."""

    @abstractmethod
    def assembler(self) -> Assembler:
        """For an answer that comes as a stream."""

    @abstractmethod
    def system_end(self, request: dict[str, Any]) -> Place | None:
        """Where text goes that is put behind the system instructions; None when there is no such place."""

    def system_texts(self, request: dict[str, Any]) -> Iterator[Path]:
        """Where the words of the system's and the developer's instructions stand, in order."""
        return spoken_by(("system", "developer"), request.get(self.content_field), (self.content_field,))

    def tools(self, request: dict[str, Any]) -> dict[str, ToolPlace]:
        """The client's own tools, by name."""
        return {}

    @abstractmethod
    def error_body(self, problem: Problem) -> dict[str, Any]:
        """An error as this dialect's clients read it."""

    def error_frame(self, problem: Problem) -> bytes:
        """The same inside a stream that has begun."""
        return b"data: " + orjson.dumps(self.error_body(problem)) + b"\n\n"

    def last_user_text(self, request: dict[str, Any]) -> str:
        """What the user said last, in words. Reads no further back than that: this happens with every request."""
        given = request.get(self.content_field)
        if isinstance(given, str):
            return given
        for message in reversed(given) if isinstance(given, list) else ():
            if isinstance(message, dict) and message.get("role") == "user":
                content = message.get("content")
                if isinstance(content, str):
                    return content
                parts = dicts(content)
                if not parts or any(part.get("type") != "tool_result" for part in parts):
                    texts = (part.get("text") for part in parts if part.get("type") in ("text", "input_text"))
                    return " ".join(text for text in texts if isinstance(text, str))
        return ""

    def subject(self, request: Mapping[str, Any]) -> str | None:
        """The end user the client says it speaks for."""
        for name in ("safety_identifier", "user"):
            if isinstance(request.get(name), str) and request[name]:
                return str(request[name])
        metadata = request.get("metadata")
        user = metadata.get("user_id") if isinstance(metadata, dict) else None
        return user if isinstance(user, str) and user else None

    def usage(self, reported: dict[str, Any] | None) -> Usage | UnsetType:
        """What the upstream counted; absent, never zero, when it counted nothing."""
        if reported is None:
            return UNSET
        read = detail(reported, "input_tokens_details", "prompt_tokens_details")
        wrote = detail(reported, "output_tokens_details", "completion_tokens_details")
        return Usage(
            input_tokens=count(reported, "input_tokens", "prompt_tokens"),
            output_tokens=count(reported, "output_tokens", "completion_tokens"),
            cache_read_input_tokens=count({**read, **reported}, "cache_read_input_tokens", "cached_tokens"),
            cache_creation_input_tokens=count(reported, "cache_creation_input_tokens"),
            reasoning_output_tokens=count(wrote, "reasoning_tokens"),
        )

    def params(self, request: dict[str, Any]) -> dict[str, Any]:
        """The decoding parameters of a request, and whatever else it has that no other field of the event holds."""
        return {key: value for key, value in request.items() if key not in self.not_params}

    def keeps(self, request: Mapping[str, Any]) -> bool:
        """May a client go on from the answer to this request by its id alone?"""
        return False

    def continues(self, request: Mapping[str, Any]) -> str | None:
        """The id of the earlier answer that a request goes on from without repeating it."""
        return None

    def names(self, request: Mapping[str, Any]) -> list[str]:
        """Ids of all else that a request names and the provider keeps: items, conversations, files, containers."""
        return []

    def kept(self, request: Mapping[str, Any], completion: Completion) -> list[str]:
        """The ids in an answer by which later requests may name it, or what the provider keeps beside it."""
        own = [completion.id] if isinstance(completion.id, str) and self.keeps(request) else []
        return [*own, *completion.state]


def spoken_by(roles: tuple[str, ...], messages: Any, path: Path) -> Iterator[Path]:
    """Where the words of these roles stand in a list of messages at `path`."""
    if isinstance(messages, list):
        for position, message in enumerate(messages):
            if isinstance(message, dict) and message.get("role") in roles:
                yield from text_paths(message.get("content"), (*path, position, "content"))


def text_paths(content: Any, path: Path) -> Iterator[Path]:
    """Where the words of a content stand that is a string or a list of parts."""
    if isinstance(content, str):
        yield path
    elif isinstance(content, list):
        for position, part in enumerate(content):
            if isinstance(part, dict) and isinstance(part.get("text"), str):
                yield (*path, position, "text")


def flat_tools(request: Mapping[str, Any], schema: str) -> dict[str, ToolPlace]:
    """Tools that are described without an object of their own for the function."""
    given = request.get("tools")
    found = {}
    for position, tool in enumerate(given if isinstance(given, list) else ()):
        if isinstance(tool, dict) and isinstance(tool.get("name"), str):
            found[tool["name"]] = ToolPlace(("tools", position), schema)
    return found


def field_end(request: Mapping[str, Any], name: str) -> Place:
    """The end of the instructions in a field of their own."""
    given = request.get(name)
    if isinstance(given, str):
        return Place((name,), "text", len(given))
    return Place((name,), "field", before=(given,) if name in request else ())


def count(values: Mapping[str, Any], *names: str) -> int | UnsetType:
    """The first of these fields that is a number of tokens."""
    for name in names:
        value = values.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return UNSET


def detail(values: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """The first of these fields that is an object."""
    return next((values[name] for name in names if isinstance(values.get(name), dict)), {})


def dicts(value: Any) -> list[dict[str, Any]]:
    """The objects in a list; nothing when it is no list."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
