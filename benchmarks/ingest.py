"""Memory while a million small events go in: does the writer's process grow?

A process of its own writes them through the event store and looks at its resident memory after every 20,000;
growth is what it has at most after the first tenth, less what it had then.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec
import psutil

from atdp.records import EventDraft, Message, Observation, Outcome, Part
from benchmarks.group_commit import CONTEXT, opening
from services.proxy.store import EventStore

EVENTS = 1_000_000

_AGENTS = 256
_TRAJECTORY = 50
"""Events in one; then the agent begins another."""


def ingest(events: int = EVENTS) -> dict[str, float]:
    """`ingest_1m_rss_growth_mib` for a million events, and how long they took."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.ingest", folder, str(events)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    result: dict[str, float] = json.loads(done.stdout)
    return result


async def _measure(root: Path, events: int) -> dict[str, float]:
    store = EventStore(root)
    await store.start()
    await store.append("bench", [CONTEXT])
    process = psutil.Process()
    seen: list[int] = []
    written = 0

    async def agent() -> None:
        nonlocal written
        while written < events:
            header = opening()
            await store.append("bench", [header])
            for number in range(_TRAJECTORY):
                await store.append("bench", [_small(header.trajectory_id, number)])
                written += 1
                if written % 20_000 == 0:
                    seen.append(process.memory_info().rss)

    started = time.perf_counter()
    await asyncio.gather(*(agent() for _ in range(_AGENTS)))
    took = time.perf_counter() - started
    await store.close()
    tenth = max(1, len(seen) // 10)
    return {
        "ingest_1m_rss_growth_mib": round((max(seen[tenth:]) - seen[tenth - 1]) / 2**20, 1),
        "ingest_rss_mib": round(max(seen) / 2**20, 1),
        "ingest_events": written,
        "ingest_events_per_s": round(written / took, 1),
    }


def _small(trajectory_id: str, number: int) -> EventDraft:
    message = Message(role="user", parts=[Part(type="text", content=f"message {number}")])
    return EventDraft(
        atdp="1.0",
        id=f"{trajectory_id}-{number}",
        trajectory_id=trajectory_id,
        kind="user_message",
        time="2026-11-30T10:15:00.000Z",
        ctx=CONTEXT.id,
        o=Observation(messages=[message]),
        y=Outcome(status="ok"),
    )


if __name__ == "__main__":
    print(msgspec.json.encode(asyncio.run(_measure(Path(sys.argv[1]), int(sys.argv[2])))).decode())
