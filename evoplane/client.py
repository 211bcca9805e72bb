"""Tell Evoplane what an agent does beside its model calls. One file, standard library only: copy it if you like.

    client = Client("http://127.0.0.1:8400", key)          # or from EVOPLANE_URL and EVOPLANE_KEY
    with client.session("ticket-17") as session:
        llm = OpenAI(base_url=..., default_headers=session.headers)
        with session.tool("search", {"q": "refunds"}, call_id=call.id) as step:
            step.result = search("refunds")
        session.outcome(reason="solved")

    @client.tool(effect="read")                            # plain functions and coroutines
    def look_up(order_id): ...

It never breaks the agent: nothing here raises, blocks or waits for the network. Events go through a
bounded queue to one background thread, which sends them in order, tries again while the gateway is
away, and flushes at exit. What had to be dropped is counted (`client.dropped`) and reported.
"""

from __future__ import annotations

import asyncio
import atexit
import dataclasses
import functools
import http.client
import inspect
import json
import logging
import os
import random
import threading
import time
import urllib.parse
import uuid
import weakref
from collections import Counter, deque
from collections.abc import Callable
from contextvars import ContextVar
from datetime import datetime, timezone
from typing import Any, TypeVar

__all__ = ["Client", "Session", "Step"]

_log = logging.getLogger("evoplane")
_F = TypeVar("_F", bound=Callable[..., Any])

_MAX_QUEUE = 10_000
_MAX_QUEUE_BYTES = 64 * 2**20
_MAX_VALUE_BYTES = 2**20
"""Of one value; a larger one is replaced by its beginning."""
_BATCH = 200
_BATCH_BYTES = 4 * 2**20
_TIMEOUT_S = 10.0
_BACKOFF_S = (0.1, 5.0)
"""First and longest wait between two tries."""
_EXIT_S = 5.0
"""The longest that flushing may hold up the end of the process."""
_QUIET_S = 60.0
"""One warning about drops within this time."""


class Step:
    """One operation while it runs: `with`, `async with`, or a decorator. Set `result` and what else is known."""

    def __init__(self, owner: _Operations, kind: str, name: str | None, arguments: Any, fields: dict[str, Any]) -> None:
        self.id = uuid.uuid4().hex
        self.result: Any = None
        self.status = "ok"
        self.error: str | None = None
        self.error_type: str | None = None
        self.decision: str | None = None
        self.exit_code: int | None = None
        self.tags: dict[str, str] = {}
        self._owner, self._kind, self._name, self._arguments, self._fields = owner, kind, name, arguments, fields

    def fail(self, message: str, type: str = "error") -> None:
        """It failed without raising."""
        self.status, self.error, self.error_type = "error", message, type

    def __enter__(self) -> Step:
        self._session = self._owner._session_id()
        self._time, self._clock = time.time(), time.monotonic()
        self._sent = _frozen(self._arguments)
        return self

    def __exit__(self, type: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        if error is not None:
            self.status, self.error, self.error_type = _status(error), _text(error), error.__class__.__name__
        self._owner._client._send(
            "events",
            self._session,
            {
                "kind": self._kind,
                "id": self.id,
                "name": self._name,
                "arguments": self._sent,
                "result": _frozen(self.result),
                "status": self.status,
                "error": self.error,
                "error_type": self.error_type,
                "decision": self.decision,
                "exit_code": self.exit_code,
                "tags": self.tags or None,
                "time": _timestamp(self._time),
                "duration_ms": round((time.monotonic() - self._clock) * 1000, 3),
                **self._fields,
            },
        )

    async def __aenter__(self) -> Step:
        return self.__enter__()

    async def __aexit__(self, *what: Any) -> None:
        self.__exit__(*what)

    def __call__(self, function: _F) -> _F:
        """Decorate a function: each call is a step with the call's own arguments."""
        name = self._name or getattr(function, "__name__", "function")

        def step(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Step:
            return Step(self._owner, self._kind, name, _bound(function, args, kwargs), self._fields)

        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def wait(*args: Any, **kwargs: Any) -> Any:
                with step(args, kwargs) as running:
                    running.result = await function(*args, **kwargs)
                return running.result

            return wait  # type: ignore[return-value]

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            with step(args, kwargs) as running:
                running.result = function(*args, **kwargs)
            return running.result

        return run  # type: ignore[return-value]


class _Operations:
    """What can be reported, of a session or (on the client) of whichever session is current."""

    _client: Client

    def _session_id(self) -> str:
        raise NotImplementedError

    def tool(self, name: str | Callable[..., Any] | None = None, arguments: Any = None, **fields: Any) -> Any:
        """A tool call. `call_id` is the model's id of it; `effect` what it may change (none, read, write, …)."""
        if callable(name):
            return Step(self, "tool_call", None, None, fields)(name)
        return Step(self, "tool_call", name, arguments, fields)

    def retrieval(self, name: str, arguments: Any = None, **fields: Any) -> Step:
        """A search in documents; `arguments` holds the query, `result` what was found."""
        return Step(self, "retrieval", name, arguments, fields)

    def memory_read(self, name: str, arguments: Any = None, **fields: Any) -> Step:
        return Step(self, "memory_read", name, arguments, fields)

    def memory_write(self, name: str, arguments: Any = None, **fields: Any) -> Step:
        return Step(self, "memory_write", name, arguments, fields)

    def file(self, name: str, arguments: Any = None, **fields: Any) -> Step:
        """A file operation, such as `file("write", {"path": …})`."""
        return Step(self, "file_op", name, arguments, fields)

    def browser(self, name: str, arguments: Any = None, **fields: Any) -> Step:
        return Step(self, "browser_op", name, arguments, fields)

    def code(self, name: str, arguments: Any = None, **fields: Any) -> Step:
        """Code that runs; set `exit_code`."""
        return Step(self, "code_exec", name, arguments, fields)

    def approval(self, name: str, arguments: Any = None, **fields: Any) -> Step:
        """A person is asked; set `decision`. How long it takes is the approval's delay."""
        return Step(self, "approval", name, arguments, fields)

    def guardrail(self, name: str, arguments: Any = None, **fields: Any) -> Step:
        return Step(self, "guardrail", name, arguments, fields)

    def handoff(self, name: str, arguments: Any = None, **fields: Any) -> Step:
        """Work goes to another agent or to a person."""
        return Step(self, "handoff", name, arguments, fields)

    def user_message(self, text: str) -> None:
        """Words of the user that no model call shows."""
        self._event({"kind": "user_message", "text": text})

    def outcome(self, status: str = "ok", reason: str | None = None, **fields: Any) -> None:
        """The task has ended; its trajectory closes."""
        self._event({"kind": "outcome", "status": status, "reason": reason, **fields})

    def feedback(self, name: str, value: float | bool | None = None, **fields: Any) -> None:
        """What came of the work: `resolved`, `user_correction` with `explanation`, or a reward of any name."""
        target = {} if fields.keys() & {"event_id", "trajectory_id"} else {"session_id": self._session_id()}
        said = {"name": name, "value": value, "id": uuid.uuid4().hex, **target, **fields}
        self._client._send("feedback", None, {key: _frozen(item) for key, item in said.items()})

    def report(self, kind: str, **fields: Any) -> None:
        """A step in the form `/v1/events` takes."""
        self._event({"kind": kind, **{name: _frozen(value) for name, value in fields.items()}})

    def _event(self, fields: dict[str, Any]) -> None:
        said = {"id": uuid.uuid4().hex, "time": _timestamp(time.time()), **fields}
        self._client._send("events", None if "session_hint" in said else self._session_id(), said)


class Session(_Operations):
    """A conversation or task. `headers` binds model calls to it; as a context manager it is the current one."""

    def __init__(self, client: Client, session_id: str) -> None:
        self._client = client
        self.id = session_id
        self.headers = {"x-evoplane-session-id": session_id}
        self._tokens: list[Any] = []

    def _session_id(self) -> str:
        return self.id

    def __enter__(self) -> Session:
        self._tokens.append(self._client._current.set(self))
        return self

    def __exit__(self, *what: Any) -> None:
        try:
            self._client._current.reset(self._tokens.pop())
        except (ValueError, IndexError):  # left in another context than it was entered in
            self._client._current.set(None)

    async def __aenter__(self) -> Session:
        return self.__enter__()

    async def __aexit__(self, *what: Any) -> None:
        self.__exit__(*what)


class Client(_Operations):
    """Reports to one gateway under one key. Make one a process; it may be used from any thread or task.

    Without a URL or a key it reports nothing and says so once.
    """

    def __init__(self, url: str | None = None, key: str | None = None, *, session_id: str | None = None) -> None:
        self._client = self
        self._url = (url or os.environ.get("EVOPLANE_URL", "")).rstrip("/").removesuffix("/v1")
        self._key = key or os.environ.get("EVOPLANE_KEY", "")
        self._current: ContextVar[Session | None] = ContextVar("evoplane_session", default=None)
        self._default = Session(self, session_id or os.environ.get("EVOPLANE_SESSION_ID") or uuid.uuid4().hex)
        self._sender = _Sender(self._url, self._key)
        if not (self._url and self._key):
            _log.warning("set EVOPLANE_URL and EVOPLANE_KEY: nothing is reported")

    def session(self, session_id: str | None = None) -> Session:
        """The session of this id; a new one without."""
        return Session(self, session_id or uuid.uuid4().hex)

    @property
    def current(self) -> Session:
        """The session entered last in this thread or task, else the client's own."""
        return self._current.get() or self._default

    @property
    def dropped(self) -> dict[str, int]:
        """How many events were dropped, by reason: `queue_full`, `refused`, `unreachable`, `unreadable`, `off`."""
        return dict(self._sender.dropped)

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until everything reported so far is stored (or dropped); False when time ran out."""
        return self._sender.flush(timeout)

    def close(self, timeout: float = _EXIT_S) -> None:
        """Flush and stop. Happens by itself at exit."""
        self._sender.close(timeout)

    def _session_id(self) -> str:
        return self.current.id

    def _send(self, path: str, session: str | None, body: dict[str, Any]) -> None:
        try:
            fields = {key: value for key, value in body.items() if value is not None}
            if session is not None and "trajectory_id" not in fields:
                fields.setdefault("session_id", session)
            data = _encode(fields)
        except Exception:
            self._sender.drop("unreadable", 1, session)
            return
        self._sender.put(path, session, data)


class _Sender:
    """The queue and the thread behind it. The thread starts with the first event and ends with `close`."""

    def __init__(self, url: str, key: str) -> None:
        split = urllib.parse.urlsplit(url)
        self._secure, self._host, self._prefix = split.scheme == "https", split.netloc, split.path
        self._headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
        self._off = not (split.netloc and key)
        self.dropped: Counter[str] = Counter()
        self._unreported: Counter[str] = Counter()
        self._dropped_of: str | None = None
        self._warned = float("-inf")
        self._fresh()
        atexit.register(_weakly(self, "close"), _EXIT_S)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=_weakly(self, "_fresh"))

    def _fresh(self) -> None:
        """Empty, with no thread: also in a forked child, whose parent sends what was queued."""
        self._queue: deque[tuple[str, str | None, bytes]] = deque()
        self._bytes = self._in_flight = 0
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None
        self._connection: http.client.HTTPConnection | None = None
        self._closing = False
        self._deadline = float("inf")

    def put(self, path: str, session: str | None, data: bytes) -> None:
        if self._off:
            self.dropped["off"] += 1
            return
        with self._wake:
            full = len(self._queue) >= _MAX_QUEUE or self._bytes + len(data) > _MAX_QUEUE_BYTES
            if not full and not self._closing and self._alive():
                self._queue.append((path, session, data))
                self._bytes += len(data)
                self._wake.notify()
                return
        self.drop("queue_full" if full else "unreachable", 1, session)

    def drop(self, reason: str, count: int, session: str | None) -> None:
        self.dropped[reason] += count
        self._unreported[reason] += count
        self._dropped_of = session or self._dropped_of
        if time.monotonic() - self._warned > _QUIET_S:
            self._warned = time.monotonic()
            _log.warning("events were dropped: %s", dict(self.dropped))

    def flush(self, timeout: float | None) -> bool:
        with self._wake:
            return self._wake.wait_for(lambda: not self._queue and not self._in_flight, timeout)

    def close(self, timeout: float) -> None:
        with self._wake:
            self._closing, self._deadline = True, time.monotonic() + timeout
            self._wake.notify_all()
        if self._thread is not None:
            self._thread.join(timeout + 1)

    def _alive(self) -> bool:
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="evoplane-client", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the interpreter is going down
                return False
            self._thread = thread
        return True

    def _run(self) -> None:
        while True:
            with self._wake:
                self._in_flight = 0
                self._wake.notify_all()
                self._wake.wait_for(lambda: self._queue or self._closing)
                if not self._queue:
                    return
                path, batch = self._take()
                self._in_flight = len(batch)
            try:
                self._deliver(path, batch)
            except Exception:
                _log.exception("the sender failed")
                self.drop("unreadable", len(batch), batch[0][0])

    def _take(self) -> tuple[str, list[tuple[str | None, bytes]]]:
        """The longest run of events that go to one address, within a batch's size."""
        path, size = self._queue[0][0], 0
        batch: list[tuple[str | None, bytes]] = []
        while self._queue and self._queue[0][0] == path and len(batch) < _BATCH:
            size += len(self._queue[0][2])
            if batch and size > _BATCH_BYTES:
                break
            _, session, data = self._queue.popleft()
            self._bytes -= len(data)
            batch.append((session, data))
        return path, batch

    def _deliver(self, path: str, batch: list[tuple[str | None, bytes]]) -> None:
        wait = _BACKOFF_S[0]
        while True:
            status = self._post(path, [data for _, data in batch])
            if status is not None and 200 <= status < 300:
                self._report_drops()
                return
            if status is not None and 400 <= status < 500 and status not in (408, 429):
                break
            with self._wake:
                left = self._deadline - time.monotonic()
                if left <= 0:
                    self.drop("unreachable", len(batch), batch[0][0])
                    return
                pause = min(wait * (0.5 + random.random()), left)  # noqa: S311
                if not self._closing:
                    self._wake.wait_for(lambda: self._closing, pause)
                else:
                    self._wake.wait(pause)
            wait = min(wait * 2, _BACKOFF_S[1])
        if status in (401, 403) or len(batch) == 1:
            self.drop("refused", len(batch), batch[0][0])
        else:  # one of them is wrong: the others must not suffer for it
            for each in batch:
                self._deliver(path, [each])

    def _report_drops(self) -> None:
        """Tell the gateway what it will never see."""
        if not self._unreported:
            return
        counts = dict(self._unreported)
        event = {"kind": "x.client.dropped", "id": uuid.uuid4().hex, "arguments": counts, "effect": "none"}
        event["session_id"] = self._dropped_of or "evoplane-client"
        if self._post("events", [_encode(event)]) == 202:
            self._unreported.subtract(counts)
            self._unreported += Counter()

    def _post(self, path: str, items: list[bytes]) -> int | None:
        """The status of a request; None when the gateway could not be reached."""
        body = b"[" + b",".join(items) + b"]"
        for fresh in (False, True):
            if fresh or self._connection is None:
                kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
                self._connection, fresh = kind(self._host, timeout=_TIMEOUT_S), True
            try:
                self._connection.request("POST", f"{self._prefix}/v1/{path}", body, self._headers)
                response = self._connection.getresponse()
                response.read()
                return response.status
            except (OSError, http.client.HTTPException) as error:
                self._connection.close()
                self._connection = None
                if fresh:  # else the server had only closed a connection that was kept too long
                    _log.debug("the gateway can't be reached: %s", error)
                    return None
        return None


def _weakly(owner: Any, method: str) -> Callable[..., None]:
    """A callback that does not keep its owner alive."""
    reference = weakref.ref(owner)

    def call(*args: Any) -> None:
        if (alive := reference()) is not None:
            getattr(alive, method)(*args)

    return call


def _status(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "timeout"
    return "cancelled" if isinstance(error, asyncio.CancelledError | KeyboardInterrupt | GeneratorExit) else "error"


def _bound(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """A call's arguments by name, defaults left out."""
    try:
        return dict(inspect.signature(function).bind(*args, **kwargs).arguments)
    except (TypeError, ValueError):
        return {"args": list(args), **kwargs}


def _timestamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="milliseconds")  # noqa: UP017


class _Frozen:
    """A value as it was when it was given: JSON text."""

    def __init__(self, text: str) -> None:
        self.text = text


def _frozen(value: Any) -> Any:
    if value is None or (isinstance(value, str | int | bool) and len(str(value)) < 1000):
        return value
    try:
        text = json.dumps(value, default=_plain, allow_nan=False)
    except Exception:  # whatever a stranger's object does in here
        text = json.dumps(_text(value))
    if len(text) > _MAX_VALUE_BYTES:
        text = json.dumps({"truncated": True, "bytes": len(text), "begins": text[: _MAX_VALUE_BYTES // 4]})
    return _Frozen(text)


def _plain(value: Any) -> Any:
    """What JSON has no form for, as near as it comes."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    for method in ("model_dump", "to_dict", "tolist"):
        if callable(getattr(value, method, None)):
            return getattr(value, method)()
    if isinstance(value, set | frozenset | tuple):
        return list(value)
    return value.decode(errors="replace") if isinstance(value, bytes | bytearray) else _text(value)


def _text(value: Any) -> str:
    try:
        return str(value)[: _MAX_VALUE_BYTES // 4]
    except Exception:
        return f"<{type(value).__name__}>"


def _encode(fields: dict[str, Any]) -> bytes:
    pieces = [
        f"{json.dumps(key)}:{value.text if isinstance(value, _Frozen) else json.dumps(value, default=_plain)}"
        for key, value in fields.items()
    ]
    return ("{" + ",".join(pieces) + "}").encode()
