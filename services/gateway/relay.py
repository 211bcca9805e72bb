"""Relaying a stream: bytes out as they come in, a tee that reads along, the end only when it is stored.

Held back are the event that ends the dialect's stream and the end of the response; nothing before it
waits. A stream that ends early, or can't be recorded, ends with the dialect's error event and a
connection that is not closed cleanly, because clients take a clean end for a whole answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import TYPE_CHECKING, Any

import aiohttp

from services.gateway import errors
from services.gateway.asgi import Request, Send
from services.gateway.errors import ApiError
from services.gateway.upstream import passed_on, reason
from services.proxy.capture import LARGE_BYTES, Exchange
from services.proxy.completion import Completion
from services.proxy.ending import Ending
from services.proxy.lenient import read_json
from services.proxy.redaction.failure import described
from services.proxy.sse import EventSplitter, ServerSentEvent
from services.proxy.store import StoreUnavailable
from services.proxy.tokens import TokenCapture
from services.proxy.translate import Translator

if TYPE_CHECKING:
    from services.gateway.core import Gateway

_log = logging.getLogger(__name__)


class StreamRelay:
    """One streamed answer. Without `tokens` and `translator` the upstream's events reach the client as they are."""

    def __init__(
        self,
        gateway: Gateway,
        request: Request,
        send: Send,
        exchange: Exchange,
        tokens: TokenCapture | None = None,
        translator: Translator | None = None,
    ) -> None:
        self._gateway = gateway
        self._request = request
        self._send = send
        self._exchange = exchange
        self._tokens = tokens
        self._translator = translator
        self._assembler = exchange.dialect.assembler()
        self._held = b""
        self._odd = False
        """Has it pieces of characters in it?"""
        self._unread = False
        """Is there something in it that could not be made out?"""
        self._ttft_ms: float | None = None

    async def run(self, response: aiohttp.ClientResponse, headers: list[tuple[bytes, bytes]]) -> None:
        head = {"type": "http.response.start", "status": 200, "headers": [*passed_on(response), *headers]}
        await self._send(head)
        gone = self._request.watch()
        gone.add_done_callback(lambda task: None if task.cancelled() else response.close())
        broken: str | None = None
        try:
            await self._pump(response)
        except asyncio.CancelledError:
            # the gateway stops before the answer has ended: what came so far is kept, nobody waits for it
            with contextlib.suppress(StoreUnavailable):
                self._gateway.record_later(self._exchange, self._ending(False, "the gateway stopped"))
            raise
        except TimeoutError:
            broken = "it took too long"
        except aiohttp.ClientError as error:
            broken = reason(error)
        if self._translator is not None:
            await self._tell(self._translator.close())
        await self._end(self._ending(gone.done(), broken))

    async def _pump(self, response: aiohttp.ClientResponse) -> None:
        splitter, size = EventSplitter(), 0
        while chunk := await response.content.readany():
            size += len(chunk)
            self._exchange.large = self._exchange.large or size > LARGE_BYTES
            await self._pass_on(splitter.feed(chunk))
        await self._pass_on(splitter.close())

    async def _pass_on(self, events: list[ServerSentEvent]) -> None:
        if self._translator is not None:
            events = [told for event in events for told in self._translator.event(event)]
        await self._tell(events)

    async def _tell(self, events: list[ServerSentEvent]) -> None:
        out = b""
        for event in events:
            if self._assembler.done:
                self._held += event.raw
            else:
                out += self._read(event)
        if out:
            await self._send({"type": "http.response.body", "body": out, "more_body": True})

    def _read(self, event: ServerSentEvent) -> bytes:
        """Let the tee see an event; gives what the client shall see of it now."""
        parsed, odd = read_json(event.data) if event.data else (None, False)
        chunk = parsed if isinstance(parsed, dict) else None
        if chunk is not None:
            self._odd = self._odd or odd
            self._take_in(chunk)
        if self._assembler.ends(event, chunk):
            self._assembler.end()
            self._held += event.raw
            return self._flush()
        return event.raw if self._tokens is None or chunk is None or odd else self._tokens.event(event, chunk)

    def _take_in(self, chunk: dict[str, Any]) -> None:
        try:
            self._assembler.add(chunk)
            if self._ttft_ms is None and self._assembler.shows(chunk):
                self._ttft_ms = (time.monotonic() - self._exchange.clock) * 1000
        except Exception as error:  # a client gets what an upstream says, whatever it is
            if not self._unread:
                _log.error(
                    "event %s: a piece of the answer can't be read: %s", self._exchange.event_id, described(error)
                )
            self._unread = True

    def _completion(self) -> Completion:
        """What was said, as far as it could be made out."""
        try:
            completion = self._assembler.completion
            if self._odd:
                completion.mend()
            if self._translator is not None:
                self._translator.complete(completion)
        except Exception as error:
            _log.error("event %s: the answer can't be put together: %s", self._exchange.event_id, described(error))
            self._unread = True
            return Completion(done=self._assembler.done)
        return completion

    def _flush(self) -> bytes:
        return b"" if self._tokens is None else self._tokens.flush()

    def _ending(self, client_gone: bool, broken: str | None) -> Ending:
        completion = self._completion()
        ending = Ending("ok", completion, ttft_ms=self._ttft_ms)
        if self._unread:
            ending.ext["unread"] = True
        if self._unread and (completion.done or completion.finished):
            # the client has all of it, the record has not
            ending.status = "unknown"
        elif completion.error is not None:
            ending.status = "error"
            ending.error_type = str(completion.error.get("type") or completion.error.get("code") or "upstream_error")
            ending.error_message = str(completion.error.get("message") or "")
        elif completion.finished:
            pass
        elif completion.done and completion.choices:
            # an end that does not say whether the answer is whole
            ending.status = "unknown"
        elif client_gone:
            ending.status = "cancelled"
            ending.ext["client_disconnected"] = True
        else:
            ending.status = "truncated"
            ending.error_type = "stream_truncated"
            ending.error_message = broken or "the stream ended without a finish reason"
        return ending

    async def _end(self, ending: Ending) -> None:
        """Record, then release the end that fits."""
        rest = self._flush()
        try:
            go_on = await self._gateway.record(self._exchange, ending)
        except StoreUnavailable as error:
            await self._break_off(errors.unrecorded(error))
            return
        try:
            match ending.status:
                case "cancelled":
                    return
                case "truncated":
                    await self._break_off(errors.stream_truncated(ending.error_message or ""), rest)
                case _:
                    await self._send({"type": "http.response.body", "body": rest + self._held, "more_body": False})
        finally:
            go_on()
        if ending.status == "ok":
            self._gateway.shadow.offer(self._exchange)

    async def _break_off(self, error: ApiError, rest: bytes = b"") -> None:
        """An error event, and no clean end: the server closes the connection of a response left open."""
        frame = self._exchange.dialect.error_frame(error.problem)
        await self._send({"type": "http.response.body", "body": rest + frame, "more_body": True})
