"""Wrapping a stdio MCP server: its bytes pass unchanged both ways, and each call is reported to the gateway.

The light way to run it, for clients that wait only a few seconds for a server to start:
`python -m evoplane.cli.mcp_stdio NAME command args…`. It reads EVOPLANE_URL, EVOPLANE_KEY and, when the
client's session is known, EVOPLANE_SESSION_ID. Without them the server runs all the same.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Sequence
from typing import IO, Any

import msgspec

from evoplane.client import Client
from services.proxy.mcp_calls import (
    Call,
    JsonRpc,
    MessageId,
    Server,
    ToolBook,
    answered,
    call_of,
    cancelled_id,
    is_answer,
    message_id,
    unanswered,
)
from services.proxy.reports import Reported

_CHUNK = 65536
_LONGEST_LINE = 64 * 2**20
"""A longer message passes, but is not read."""
_WAIT_S = 0.25
"""How long an answer is held so that its call is on record before the model can see it."""


class Lines:
    """Cuts what passes into JSON-RPC messages, one a line."""

    def __init__(self, read: Callable[[JsonRpc], None]) -> None:
        self._read = read
        self._rest = bytearray()

    def feed(self, data: bytes) -> None:
        self._rest += data
        *lines, rest = bytes(self._rest).split(b"\n") if b"\n" in data else [bytes(self._rest)]
        if len(rest) > _LONGEST_LINE:
            rest = b""
        self._rest = bytearray(rest)
        for line in lines:
            try:
                message = json.loads(line) if line.strip() else None
            except ValueError:
                continue
            for item in message if isinstance(message, list) else [message]:
                if isinstance(item, dict):
                    self._read(item)


class Watcher:
    """Pairs calls with their answers, in both directions, and reports them."""

    def __init__(self, server: str, client: Client, session_id: str | None) -> None:
        self._server = Server(server)
        self._client = client
        self._session_id = session_id
        self._hint = f"mcp-stdio-{server}-{uuid.uuid4().hex}"
        self._book = ToolBook()
        self._lock = threading.Lock()
        self._calls: dict[MessageId, Call] = {}
        self._asked: dict[MessageId, Call] = {}
        self._cancelled: set[MessageId] = set()
        self._patient = True

    def from_client(self, message: JsonRpc) -> None:
        with self._lock:
            if (call := call_of(message)) is not None:
                self._calls[call.id] = call
            elif is_answer(message):
                self._answered(self._asked, message)
            elif (cancelled := cancelled_id(message)) is not None:
                self._cancelled.add(cancelled)

    def from_server(self, message: JsonRpc) -> None:
        with self._lock:
            if (call := call_of(message)) is not None:
                self._asked[call.id] = call
            elif is_answer(message):
                self._answered(self._calls, message)

    def ended(self) -> None:
        """The server is gone: what it had not answered it never will."""
        with self._lock:
            for call in self._calls.values():
                status, kind = ("cancelled", "cancelled") if call.id in self._cancelled else ("error", "server_exited")
                if call.recorded:
                    self._tell(unanswered(self._server, self._book, call, status, kind, ""))  # type: ignore[arg-type]
            self._calls.clear()

    def _answered(self, waiting: dict[MessageId, Call], message: JsonRpc) -> None:
        call = waiting.pop(message_id(message), None)
        if call is None:
            return
        self._cancelled.discard(call.id)
        self._book.read(call.method, message)
        if call.recorded:
            self._tell(answered(self._server, self._book, call, message))
            # a gateway that is away holds up one answer, not every one
            self._patient = self._client.flush(_WAIT_S if self._patient else 0)

    def _tell(self, reported: Reported) -> None:
        fields: dict[str, Any] = {
            name: value
            for name, value in msgspec.to_builtins(reported).items()
            if value is not None and value not in ([], {})
        }
        fields.setdefault("arguments", {})
        where = {"session_id": self._session_id} if self._session_id else {"session_hint": self._hint}
        self._client.report(**fields, **where)


def wrap(server: str, command: Sequence[str]) -> int:
    """Run the command until it ends, with this process's standard streams; gives its exit status."""
    client = Client()
    watcher = Watcher(server, client, os.environ.get("EVOPLANE_SESSION_ID"))
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
    assert child.stdin is not None and child.stdout is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: child.send_signal(number))
    inward = threading.Thread(
        target=_pump, args=(sys.stdin.buffer.fileno(), child.stdin, Lines(watcher.from_client)), daemon=True
    )
    inward.start()
    _pump(child.stdout.fileno(), sys.stdout.buffer, Lines(watcher.from_server), close=False)
    status = child.wait()
    watcher.ended()
    client.close()
    return status if status >= 0 else 128 - status


def _pump(source: int, target: IO[bytes], lines: Lines, close: bool = True) -> None:
    """Copy until the end; a call's answer is read before it is passed on."""
    try:
        while chunk := os.read(source, _CHUNK):
            lines.feed(chunk)
            target.write(chunk)
            target.flush()
    except (BrokenPipeError, ValueError):  # the other side is gone: its end shows in the exit status
        pass
    finally:
        if close:
            target.close()


if __name__ == "__main__":
    sys.exit(wrap(sys.argv[1], sys.argv[2:]))
