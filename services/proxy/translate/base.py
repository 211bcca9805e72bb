"""What a translation is: a request of one dialect written in another, and the answer written back.

A translation is pure: JSON values and events in, JSON values and events out. It invents nothing and
hides nothing: what the other dialect has no place for is left out, and named in the record.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson

from services.proxy.completion import Completion
from services.proxy.dialects import CHAT, Dialect
from services.proxy.dialects.base import WrongRequest
from services.proxy.dialects.openai import OpenAIDialect
from services.proxy.sse import DONE, ServerSentEvent
from services.proxy.translate.answer import Answer
from services.proxy.translate.notes import Notes
from services.proxy.translate.problems import problem

_LONGEST_MESSAGE = 2000
"""Of an error page that is not in the upstream's own form this much is told, in characters."""


class NotTranslatable(WrongRequest):
    """A request that means something only where it was to be sent: what it points at is kept there."""

    def __init__(self, message: str, param: str, code: str) -> None:
        super().__init__(message, param)
        self.code = code


@dataclass(frozen=True)
class Translation:
    """From one dialect to chat completions, and back."""

    source: Dialect
    request: Callable[[dict[str, Any], Notes, frozenset[str]], dict[str, Any]]
    """The request as chat; raises `NotTranslatable`. The set names further fields that the upstream knows."""
    answer: type[Answer]


class Translator:
    """One request on its way there, and its answer on its way back."""

    target: Dialect = CHAT

    def __init__(
        self,
        translation: Translation,
        asked: dict[str, Any],
        sent: dict[str, Any],
        model: str | None,
        also: frozenset[str],
    ) -> None:
        """`asked` is the client's request, `sent` the same with what was added to it. `model` is the name under
        which the client knows the model; None: as the upstream calls it."""
        notes = Notes()
        self._source = translation.source
        self.request = translation.request(sent, notes, also)
        """For the upstream."""
        self._answer = translation.answer(asked, notes, model)
        self.record: dict[str, Any] = {"from": self._source.name, "to": self.target.name, "dropped": notes.dropped}
        """For the event. What an answer loses is added as it comes."""

    def event(self, event: ServerSentEvent) -> list[ServerSentEvent]:
        """The client's events that one of the upstream's becomes; comments stay what they are."""
        if event.data is None:
            return [event]
        if event.data == DONE:
            return self._answer.close()
        try:
            chunk = orjson.loads(event.data)
        except orjson.JSONDecodeError:
            return []
        return self._answer.add(chunk) if isinstance(chunk, dict) else []

    def close(self) -> list[ServerSentEvent]:
        """The end of the stream for the client; nothing while the upstream has not said that the answer is whole."""
        return self._answer.close()

    def whole(self, body: dict[str, Any]) -> tuple[bytes, Completion] | None:
        """An answer that came as one body: the client's, and what it says for the record; None when it is none."""
        if not body.get("choices") or CHAT.whole(body) is None:
            return None
        translated = self._answer.whole(body)
        completion = self._source.whole(translated)
        assert completion is not None, "an answer is always a whole one of its dialect"
        self.complete(completion)
        return _encoded(translated), completion

    def complete(self, completion: Completion) -> None:
        """Put into the client's completion what only the upstream knows, in the words it used."""
        said = self._answer.said
        completion.model = said.model or completion.model
        completion.usage = said.usage
        completion.prompt_token_ids = said.prompt_token_ids
        completion.error = said.error or completion.error
        if 0 in completion.choices and 0 in said.choices:
            choice, theirs = completion.choices[0], said.choices[0]
            choice.token_ids, choice.logprobs = theirs.token_ids, theirs.logprobs
            choice.finish_reason = theirs.finish_reason

    def error(self, status: int, raw: bytes, parsed: dict[str, Any] | None) -> bytes:
        """An upstream's error as the client's dialect says it."""
        error = (parsed or {}).get("error")
        if isinstance(error, dict) and isinstance(self._source, OpenAIDialect):
            return raw
        said = error or (parsed or {}).get("message") or raw[:_LONGEST_MESSAGE].decode(errors="replace")
        return orjson.dumps(self._source.error_body(problem(said, status)))


def _encoded(body: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(body)
    except TypeError:  # an integer of more than 64 bits in a call's arguments
        return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
