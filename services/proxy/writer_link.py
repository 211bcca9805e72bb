"""One process that writes (`writer_process`), as the gateway holds it: started, sent to, heard, stopped."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import sys
import time
from collections.abc import Callable
from typing import cast

from services.proxy import writer_frames as frames
from services.proxy.drafts import StoreUnavailable
from services.proxy.engines.base import Misconfigured

_log = logging.getLogger(__name__)

_STOP_S = 120.0
"""A stopping writer gets this long to write what has come; what it has not written by then is in the spool, or was
never acknowledged."""


class WriterLink(asyncio.Protocol):
    """One writer process and the socket to it."""

    def __init__(self, heard: Callable[[frames.Answer], None], lost: Callable[[WriterLink], None]) -> None:
        """`heard` is called with whatever it answers once it is open, `lost` when it is gone."""
        self._heard = heard
        self._lost = lost
        self._frames = frames.Frames()
        self._transport: asyncio.Transport
        self._process: asyncio.subprocess.Process
        self._opened: asyncio.Future[frames.Opened | frames.NotOpened]
        self._gone = asyncio.Event()
        self.since = time.monotonic()

    @classmethod
    async def started(
        cls, first: frames.Open, heard: Callable[[frames.Answer], None], lost: Callable[[WriterLink], None]
    ) -> tuple[WriterLink, frames.Health]:
        """A writer that has opened the logs, as `first` tells it to.

        Raises `Misconfigured`, `OSError`, and `StoreUnavailable` when it ends before it says anything.
        """
        loop = asyncio.get_running_loop()
        writer = cls(heard, lost)
        writer._opened = loop.create_future()
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                writer._process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-m",
                    "services.proxy.writer_process",
                    str(theirs.fileno()),
                    pass_fds=(theirs.fileno(),),
                    stdin=asyncio.subprocess.DEVNULL,
                    start_new_session=True,  # what a terminal tells the whole group is the gateway's to hear
                )
            except BaseException:
                ours.close()
                raise
        await loop.create_unix_connection(lambda: writer, sock=ours)
        writer.send(frames.frame(first))
        try:
            answer = await asyncio.shield(writer._opened)
        except BaseException:
            await writer.stop()
            raise
        if isinstance(answer, frames.NotOpened):
            await writer.stop()
            raise (Misconfigured if answer.misconfigured else OSError)(answer.failure)
        if writer._gone.is_set():
            raise StoreUnavailable("it ended as soon as it had opened the log")
        return writer, answer.health

    def send(self, frame: bytes) -> None:
        """Nothing, once it is gone: `lost` sees to what it has not answered."""
        if not self._transport.is_closing():
            self._transport.write(frame)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def stop(self) -> None:
        """Let it write what has come and end; kill it when that takes too long."""
        if not self._gone.is_set():
            self._transport.write_eof()
        try:
            async with asyncio.timeout(_STOP_S):
                await self._gone.wait()
                await self._process.wait()
        except TimeoutError:
            _log.error("the event store's writer does not end and is killed")
            self.kill()
            await self._process.wait()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance

    def data_received(self, data: bytes) -> None:
        for _, body in self._frames.feed(data):
            answer = frames.answer_of(body)
            if isinstance(answer, frames.Opened | frames.NotOpened):
                self._opened.set_result(answer)
            else:
                self._heard(answer)

    def connection_lost(self, error: Exception | None) -> None:
        self._gone.set()
        if not self._opened.done():
            self._opened.set_exception(StoreUnavailable("it ended before it had opened the log"))
        self._lost(self)
