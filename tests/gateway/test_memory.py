"""What has been said is in the log, and not in the gateway's memory."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from typing import Any

import pytest

from tests.gateway.conftest import Running, user
from tests.gateway.upstream import call

LONG = 300_000


def long_texts() -> Iterator[tuple[str, int]]:
    """What was said, as strings or bytes, with the type of whatever in this process holds it."""
    gc.collect()
    seen: set[int] = set()
    waiting = [(each, 0) for each in gc.get_objects()]
    while waiting:
        holder, depth = waiting.pop()
        for each in gc.get_referents(holder):
            if isinstance(each, str | bytes | bytearray):
                if len(each) >= LONG and id(each) not in seen and _said(each):
                    seen.add(id(each))
                    yield type(holder).__name__, len(each)
            elif depth < 3 and not gc.is_tracked(each) and not isinstance(each, int | float | type):
                waiting.append((each, depth + 1))  # what can be part of no cycle is not listed by itself


def _said(text: str | bytes | bytearray) -> bool:
    return "w" * 1000 in text if isinstance(text, str) else b"w" * 1000 in text


@pytest.mark.stack  # looks at every object there is
async def test_nothing_that_was_said_stays_in_memory_when_it_is_stored(running: Running) -> None:
    running.upstream.scripts.append(call(("c1", "look", '{"q": 1}')))
    for number in range(4):
        asked: list[dict[str, Any]] = [user(f"{number} " + "w" * LONG)]
        tool = {"type": "function", "function": {"name": "look", "description": "w" * LONG}}
        first = await running.chat(asked, tools=[tool])
        said = (await first.json())["choices"][0]["message"]
        if said.get("tool_calls"):
            asked += [said, {"role": "tool", "tool_call_id": "c1", "content": "w" * LONG}]
            assert (await running.chat(asked, tools=[tool])).status == 200
        event = {"kind": "tool_call", "session_id": f"s{number}", "name": "f", "result": "w" * LONG}
        assert (await running.report({**event, "arguments": {"q": "w" * LONG}})).status == 202
    assert (await running.post("/v1/events", {**event, "arguments": {"w" * LONG: 1}})).status == 202
    running.upstream.requests.clear()
    running.upstream.bodies.clear()
    del asked, event, tool, first, said
    async with asyncio.timeout(60):
        # the tools' text is kept with its context, for the next request with the same tools
        while held := [each for each in long_texts() if each[0] != "Content"]:
            await asyncio.sleep(0.5)
            assert len(held) < 100
