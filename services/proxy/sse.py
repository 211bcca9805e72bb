"""Server-sent events out of a byte stream, each with the exact bytes it came in.

CR, LF and CRLF end a line, a blank line ends an event, and one space after `data:` is optional
(WHATWG HTML, 9.2). Chunk boundaries mean nothing.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_EVENT_END = re.compile(rb"(?:\r\n|\n|\r(?!\n)){2}")
_LINE_END = re.compile(rb"\r\n|\n|\r")

_LONGEST_END = 4
"""Bytes of two CRLF."""

DONE = b"[DONE]"
"""What OpenAI-style streams end with."""


class ServerSentEvent(NamedTuple):
    raw: bytes
    """The event as received, its ending blank line included."""
    data: bytes | None
    """The `data` lines joined by LF; None for comments and keep-alives."""

    def with_data(self, data: bytes) -> bytes:
        """The event's bytes with other data; framing and line ends stay when there was one data line."""
        assert self.data is not None
        if self.raw.count(self.data) == 1:
            return self.raw.replace(self.data, data)
        return b"data: " + data + b"\n\n"


class EventSplitter:
    """Cuts a stream into events; keeps what is not complete yet."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._searched = 0

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        """The events completed by `chunk`."""
        self._buffer += chunk
        # what was searched before holds no end; one may have begun in its last bytes
        ends = [end.end() for end in _EVENT_END.finditer(self._buffer, max(0, self._searched - _LONGEST_END + 1))]
        events, start = [], 0
        for end in ends:
            events.append(_event(bytes(self._buffer[start:end])))
            start = end
        del self._buffer[:start]
        self._searched = len(self._buffer)
        return events

    def close(self) -> list[ServerSentEvent]:
        """What is left when the stream ends: an event that was not closed by a blank line, or nothing."""
        rest = bytes(self._buffer)
        self._buffer.clear()
        self._searched = 0
        return [_event(rest)] if rest else []


def _event(raw: bytes) -> ServerSentEvent:
    data = []
    for line in _LINE_END.split(raw):
        if line.startswith(b"data:"):
            value = line[5:]
            data.append(value[1:] if value.startswith(b" ") else value)
        elif line == b"data":
            data.append(b"")
    return ServerSentEvent(raw, b"\n".join(data) if data else None)
