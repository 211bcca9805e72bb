"""Durable events a second through the event store, and through a bare SQLite loop with the same bytes and groups.

32 agents at once, each waiting for its turn to be durable before the next: a user's message and a model's
answer, two events. The bare loop inserts the same records' JSON into a table without any index, in
transactions as large as the store's were on average, through a connection with the same settings. The two take
turns, so that a disk that is slow for a while is slow for both.

All of it is done on the disk as it is, and again as on one whose sync takes `SLOW_SYNC_MS` more: each of the two sleeps
so long behind each of its commits, as a sync does without Python's lock.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import orjson

from atdp import clock
from atdp.canonical import digest
from atdp.ids import new_id
from atdp.records import (
    Action,
    Actor,
    Agent,
    Cause,
    Context,
    ContextBody,
    EventDraft,
    Gov,
    HarnessInfo,
    Message,
    Metadata,
    Observation,
    Outcome,
    Part,
    Replay,
    TrajectoryDraft,
    Usage,
)
from services.proxy.drafts import StoreDraft
from services.proxy.engines import sqlite
from services.proxy.store import EventStore, StoreReader

AGENTS = 32
ROUNDS = 8
TURNS = 60
"""Of each agent in a round."""

SLOW_SYNC_MS = 5.0
"""What the sync of a plain cloud disk takes."""

_TENANT = "bench"
_BODY = ContextBody(harness=HarnessInfo(name="support"))
CONTEXT = Context(atdp="1.0", id=digest(msgspec.to_builtins(_BODY)), body=_BODY)


def group_commit() -> dict[str, float]:
    """`durable_events_per_s` and `sqlite_group_commit_per_s`, and what they were taken with."""
    with tempfile.TemporaryDirectory() as folder:
        as_it_is = asyncio.run(_measure(Path(folder), 0.0))
    with tempfile.TemporaryDirectory() as folder:
        slow = asyncio.run(_measure(Path(folder), SLOW_SYNC_MS / 1000))
    names = ("durable_events_per_s", "sqlite_group_commit_per_s", "events_per_commit")
    return as_it_is | {"slow_disk_sync_added_ms": SLOW_SYNC_MS} | {f"slow_disk_{name}": slow[name] for name in names}


async def _measure(root: Path, pause_s: float) -> dict[str, float]:
    store = EventStore(root / "store", engine=_SlowDisk(root / "store", pause_s))
    await store.start()
    bare = Bare(root / "bare.sqlite", pause_s)
    events, stored_s, bare_s, commits, size = 0, 0.0, 0.0, 0, 0
    for _ in range(ROUNDS):
        headers = [opening() for _ in range(AGENTS)]
        agents = [(header, [turn(header.trajectory_id, number) for number in range(TURNS)]) for header in headers]
        await store.append(_TENANT, [CONTEXT, *headers])
        before, started = store.counters.commits, time.perf_counter()
        await asyncio.gather(*(_run(store, turns) for _, turns in agents))
        stored_s += time.perf_counter() - started
        written = store.counters.commits - before
        bodies = _bodies(root / "store", [header.trajectory_id for header in headers])
        started = time.perf_counter()
        bare.insert(bodies, group=round(len(bodies) / written))
        bare_s += time.perf_counter() - started
        events, commits, size = events + len(bodies), commits + written, size + sum(map(len, bodies))
    await store.close()
    return {
        "durable_events_per_s": round(events / stored_s, 1),
        "sqlite_group_commit_per_s": round(events / bare_s, 1),
        "events_per_commit": round(events / commits, 1),
        "bytes_per_event": round(size / events),
        "fsync_p50_ms": fsync_ms(root),
    }


async def _run(store: EventStore, turns: list[list[StoreDraft]]) -> None:
    for drafts in turns:
        await store.append(_TENANT, drafts)


class Bare:
    """What SQLite alone does: the log's own connection settings, one table, one insert an event, one commit a group.

    The bodies are the records' JSON, unpacked and made beforehand: packing is the store's own idea, so the time it
    takes and the bytes it saves are both the store's.
    """

    def __init__(self, path: Path, pause_s: float) -> None:
        self._pause_s = pause_s
        self._connection = sqlite.connect(path)
        self._connection.execute("CREATE TABLE events (position INTEGER PRIMARY KEY, body BLOB NOT NULL)")

    def insert(self, bodies: list[bytes], group: int) -> None:
        for start in range(0, len(bodies), group):
            self._connection.execute("BEGIN IMMEDIATE")
            rows = ((body,) for body in bodies[start : start + group])
            self._connection.executemany("INSERT INTO events (body) VALUES (?)", rows)
            self._connection.execute("COMMIT")
            if self._pause_s:
                time.sleep(self._pause_s)


class _SlowDisk(sqlite.SqliteEngine):
    """The log's own engine, whose commits take `pause_s` longer."""

    def __init__(self, root: Path, pause_s: float) -> None:
        super().__init__(root)
        self._folder, self._pause_s = root, pause_s

    def writing(self, tenant: str) -> sqlite.SqliteWriter:
        return _SlowWriter(sqlite.database(self._folder, tenant), self._pause_s)


class _SlowWriter(sqlite.SqliteWriter):
    def __init__(self, path: Path, pause_s: float) -> None:
        super().__init__(path)
        self._pause_s = pause_s

    @contextmanager
    def transaction(self, sync: bool = True) -> Iterator[bool]:
        with super().transaction(sync) as undisturbed:
            yield undisturbed
        if self._pause_s and sync:
            time.sleep(self._pause_s)


def fsync_ms(root: Path) -> float:
    """Median time of an fsync of 4 KiB, milliseconds."""
    times = []
    with (root / "fsync").open("wb", buffering=0) as file:
        for _ in range(101):
            file.write(bytes(4096))
            started = time.perf_counter()
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - started)
    return round(sorted(times)[50] * 1000, 3)


def _bodies(root: Path, trajectories: list[str]) -> list[bytes]:
    """The events as they were stored, as JSON."""
    reader = StoreReader(root)
    records = [record for id in trajectories for record in reader.records(_TENANT, id)[1:]]
    reader.close()
    return [orjson.dumps(record) for record in records]


def opening() -> TrajectoryDraft:
    """The header of another session."""
    return TrajectoryDraft(
        atdp="1.0",
        trajectory_id=new_id("tr"),
        session_id=new_id("se"),
        time=clock.now(),
        agent=Agent(name="support"),
        gov=Gov(tenant=_TENANT),
    )


def turn(trajectory_id: str, number: int) -> list[StoreDraft]:
    """A user's message of 300 characters and an answer of 700, as the gateway captures them."""
    asked, answered = new_id("ev"), new_id("ev")
    tags = {"agent": "support", "agent_version": "1", "role": "champion", "purpose": "serve"}
    common = {"atdp": "1.0", "trajectory_id": trajectory_id, "time": clock.now(), "ctx": CONTEXT.id, "turn": number}
    question = Message(role="user", parts=[Part(type="text", content=f"{number} {_prose(number, 300)}")])
    answer = Message(role="assistant", parts=[Part(type="text", content=_prose(number + 7, 700))], finish_reason="stop")
    return [
        EventDraft(
            id=asked,
            kind="user_message",
            actor=Actor(type="user"),
            o=Observation(messages=[question]),
            y=Outcome(status="ok"),
            m=Metadata(tags=tags),
            **common,  # type: ignore[arg-type]
        ),
        EventDraft(
            id=answered,
            kind="llm_call",
            step=number,
            duration_ms=812.25,
            actor=Actor(type="agent"),
            causes=[Cause(id=asked, rel="input")],
            o=Observation(messages=[question]),
            a=Action(messages=[answer], params={"temperature": 0.7, "max_tokens": 1024}),
            y=Outcome(status="ok", finish_reason="stop", retries=0),
            m=Metadata(usage=Usage(input_tokens=211, output_tokens=170), ttft_ms=190.5, tags=tags),
            replay=Replay(class_="approximate", boundary="inside", effect="none", stub=True),
            **common,  # type: ignore[arg-type]
        ),
    ]


def _prose(number: int, length: int) -> str:
    start = number * 137 % (len(_PROSE) - length)
    return _PROSE[start : start + length]


def _documentation() -> str:
    from pydoc_data.topics import topics

    return " ".join(topics.values())


_PROSE = _documentation()
"""English of Python's own documentation."""
