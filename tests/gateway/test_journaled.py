"""A durable gateway whose answers are safe in the journal before they are in the log: clients notice nothing of it."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest

from evoplane.settings import Store
from services.proxy.store import StoreReader
from tests.gateway.conftest import MODEL, Running, gateway, prepared, serve, user
from tests.gateway.upstream import ScriptedUpstream, reply
from tests.proxy.backends import Sqlite

ANSWER = {"role": "assistant", "content": "hello"}


@pytest.fixture
async def running(tmp_path: Path, upstream: ScriptedUpstream) -> AsyncIterator[Running]:
    plain, connection, secrets = prepared(tmp_path, upstream.port)
    settings = plain.model_copy(update={"store": Store(writer="process")})
    async with gateway(settings, upstream, connection, secrets) as running:
        yield running


async def stored(running: Running, *answers: aiohttp.ClientResponse) -> list[dict[str, Any]]:
    """The events of answers, which may have no place yet: that takes a moment."""
    ids = [answer.headers["x-evoplane-event-id"] for answer in answers]
    async with asyncio.timeout(5):
        while None in (found := [running.reader.record("northwind", id) for id in ids]):
            await asyncio.sleep(0.005)
    return [record for record in found if record is not None]


async def metric(running: Running, name: str) -> int:
    async with running.http.get(f"{running.url}/metrics") as response:
        text = await response.text()
    return next(int(line.split()[-1]) for line in text.splitlines() if line.startswith(f"evoplane_{name} "))


@pytest.mark.parametrize("named", [True, False])
async def test_a_turn_that_follows_at_once_goes_on_in_its_trajectory(running: Running, named: bool) -> None:
    headers = {"x-evoplane-session-id": "s"} if named else {}
    said, answers = [user("hi")], []
    for turn in range(8):
        answers.append(await running.chat(said, headers=headers))
        said += [ANSWER, user(f"more {turn}")]
    calls = await stored(running, *answers)
    assert len({call["trajectory_id"] for call in calls}) == 1
    assert [call["o"]["messages"]["prefix"] for call in calls[1:]] == [call["id"] for call in calls[:-1]]
    assert [call["step"] for call in calls] == list(range(1, 9))
    assert running.reader.verify("northwind", calls[0]["trajectory_id"]) == []
    assert await metric(running, "store_journaled_total") == 8


async def test_a_turn_that_follows_at_once_waits_for_a_slow_log(running: Running) -> None:
    headers = {"x-evoplane-session-id": "s"}
    first = await running.chat([user("hi")], headers=headers)
    await stored(running, first)
    said = [user("hi"), ANSWER, user("more")]
    with Sqlite(running.settings.store_dir).locked("northwind"):
        second = await running.chat(said, headers=headers)
        following = asyncio.create_task(running.chat([*said, ANSWER, user("and more")], headers=headers))
        await asyncio.sleep(1.3)
        assert not following.done()
    calls = await stored(running, first, second, await following)
    assert [call["step"] for call in calls] == [1, 2, 3]
    assert calls[2]["o"]["messages"]["prefix"] == calls[1]["id"]


async def test_what_is_said_about_an_answer_at_once_finds_it(running: Running) -> None:
    answer = await running.chat([user("hi")], headers={"x-evoplane-session-id": "s"})
    event = answer.headers["x-evoplane-event-id"]
    told = await running.feedback({"event_id": event, "name": "helpful", "value": 1.0})
    assert (await told.json())["bound"] == [True]
    reported = await running.report({"kind": "tool_call", "session_id": "s", "name": "look", "result": "found"})
    assert reported.status < 300
    (call,) = await stored(running, answer)
    records = running.reader.records("northwind", call["trajectory_id"])
    assert [record.get("kind") for record in records[1:]] == ["user_message", "llm_call", "reward", "tool_call"]


async def test_an_answer_named_at_once_is_known(running: Running) -> None:
    said = [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "yes"}]}]
    running.upstream.default = reply(
        200,
        orjson.dumps({"id": "resp_1", "object": "response", "status": "completed", "model": "gpt-1", "output": said}),
    )
    first = await running.post("/v1/responses", {"model": "gpt-1", "input": "hi"})
    second = await running.post("/v1/responses", {"model": "gpt-1", "input": "more", "previous_response_id": "resp_1"})
    assert (first.status, second.status) == (200, 200)
    one, two = await stored(running, first, second)
    assert one["trajectory_id"] == two["trajectory_id"]


async def test_a_conversation_whose_log_was_taken_away_is_told_anew_though_it_was_answered(running: Running) -> None:
    session = {"x-evoplane-session-id": "s"}
    (before,) = await stored(running, await running.chat([user("hi")], headers=session))
    with sqlite3.connect(running.settings.store_dir / "northwind.sqlite") as log:
        for table in ("records", "trajectories", "contexts"):
            log.execute(f"DELETE FROM {table}")
    said = [user("hi"), ANSWER, user("more")]
    answered = await running.chat(said, headers=session)
    assert answered.status == 200
    (call,) = await stored(running, answered)
    assert call["trajectory_id"] != before["trajectory_id"]
    assert [message["role"] for message in running.resolved(answered)["o"]["messages"]] == ["user", "assistant", "user"]
    follow = await running.chat([*said, ANSWER, user("and more")], headers=session)
    (next_call,) = await stored(running, follow)
    assert (next_call["trajectory_id"], next_call["step"]) == (call["trajectory_id"], call["step"] + 1)
    assert running.reader.verify("northwind", call["trajectory_id"]) == []
    (aside,) = running.settings.store_dir.glob("spool/*/northwind/rejected.jsonl")
    assert call["id"].encode() in aside.read_bytes()


async def test_a_streamed_answer_is_safe_before_its_last_byte(running: Running) -> None:
    request = {"model": MODEL, "messages": [user("hi")], "stream": True}
    async with running.http.post(
        f"{running.url}/v1/chat/completions", json=request, headers=running.headers()
    ) as response:
        assert b"[DONE]" in await response.read()
    await stored(running, response)
    assert await metric(running, "store_journaled_total") == 1


@pytest.mark.stack
async def test_a_gateway_stops_though_what_is_safe_has_no_place_and_the_next_start_places_it(
    tmp_path: Path, upstream: ScriptedUpstream
) -> None:
    plain, connection, secrets = prepared(tmp_path, upstream.port)
    settings = plain.model_copy(update={"store": Store(writer="process")})
    disk = settings.store_dir
    disk.mkdir(parents=True)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"a small disk can't be mounted here: {mounted.stderr.decode().strip()}")
    try:
        url, server, task = await serve(settings)
        async with aiohttp.ClientSession(headers={"authorization": f"Bearer {secrets['northwind']}"}) as http:

            async def chat(text: str) -> tuple[int, str]:
                body = {"model": MODEL, "messages": [user(text)]}
                async with http.post(f"{url}/v1/chat/completions", json=body) as response:
                    return response.status, response.headers.get("x-evoplane-event-id", "")

            first = await chat("hi")
            with (disk / "ballast").open("wb", buffering=0) as ballast, contextlib.suppress(OSError):
                while True:
                    ballast.write(bytes(4096))
            answers = [first, *[await chat(f"more {number}") for number in range(4)]]
        # the second is safe and has no place, unless the journal was cleared before the disk was full
        assert (answers[0][0], answers[-1][0]) == (200, 503)
        server.should_exit = True
        async with asyncio.timeout(15):
            await task
        (disk / "ballast").unlink()
        _, server, task = await serve(settings)
        server.should_exit = True
        await task
        reader = StoreReader(settings.store_dir)
        assert all(reader.record("northwind", id) for status, id in answers if status == 200)
        reader.close()
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)
        connection.close()
