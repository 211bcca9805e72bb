"""`python -m benchmarks.gateway.upstream PORT`: a model provider that answers at once, from memory.

Whatever is posted gets the same answer of about 1 kB under a new id, or, with `"stream":true`, `FRAMES` pieces of
it `FRAME_S` apart, the first one at once. A raw protocol on uvloop: what is measured is the way here.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from typing import cast

import httptools
import orjson
import uvloop

FRAMES = 64
FRAME_S = 0.02

MODEL = "gpt-bench"
ANSWER = " ".join(
    f"Step {number}: look at the order, say what was found there, and ask before anything is changed."
    for number in range(1, 9)
)
MARK = b'"content":"'
"""What every frame that carries a piece of the answer has in it once."""

_USAGE = {"prompt_tokens": 201, "completion_tokens": 160, "total_tokens": 361}
_ID_DIGITS = 12
_ids = itertools.count()


def _whole() -> tuple[bytes, bytes]:
    """The reply, before and behind its id."""
    message = {"role": "assistant", "content": ANSWER, "refusal": None}
    body = {
        "id": "chatcmpl-" + "#" * _ID_DIGITS,
        "object": "chat.completion",
        "created": 1_760_000_000,
        "model": MODEL,
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}],
        "usage": _USAGE,
        "system_fingerprint": "fp_bench",
    }
    encoded = orjson.dumps(body)
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(encoded)
    before, after = (head + encoded).split(b"#" * _ID_DIGITS)
    return before, after


def _frame(id: str, delta: dict[str, str], finish_reason: str | None = None, **fields: object) -> bytes:
    chunk = {
        "id": id,
        "object": "chat.completion.chunk",
        "created": 1_760_000_000,
        "model": MODEL,
        "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}],
        **fields,
    }
    return _chunk(b"data: " + orjson.dumps(chunk) + b"\n\n")


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


_BEFORE_ID, _AFTER_ID = _whole()
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
_PIECES = [ANSWER[at : at + 12] or "." for at in range(0, 12 * FRAMES, 12)]


class Upstream(asyncio.Protocol):
    """One client's connection."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._parser = httptools.HttpRequestParser(self)
        self._body = b""
        self._loop = asyncio.get_running_loop()

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        body, self._body = self._body, b""
        if b'"stream":true' in body or b'"stream": true' in body:
            self._stream()
        else:
            self._transport.write(b"%b%0*d%b" % (_BEFORE_ID, _ID_DIGITS, next(_ids), _AFTER_ID))

    def _stream(self) -> None:
        id = f"chatcmpl-{next(_ids)}"
        started = self._loop.time()
        self._transport.write(_STREAM_HEAD)
        for number, piece in enumerate(_PIECES):
            frame = _frame(id, {"content": piece})
            if number == FRAMES - 1:
                usage = {"id": id, "object": "chat.completion.chunk", "model": MODEL, "choices": [], "usage": _USAGE}
                frame += _frame(id, {}, "stop") + _chunk(b"data: " + orjson.dumps(usage) + b"\n\n")
                frame += _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"
            self._loop.call_at(started + number * FRAME_S, self._transport.write, frame)


async def _serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Upstream, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1])))
