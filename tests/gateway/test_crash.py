"""`kill -9` and a full disk against the real process: nothing that was acknowledged is lost."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest
from openai import AsyncOpenAI, OpenAIError

from evoplane.settings import Settings
from services.proxy.store import open_reader
from tests.gateway.conftest import MODEL, prepared, user
from tests.gateway.upstream import ScriptedUpstream, say

ROOT = Path(__file__).resolve().parents[2]


class Process:
    """`python -m services.gateway`, killable."""

    def __init__(self, settings: Settings, port: int, limit: int | None = None) -> None:
        self.url = f"http://127.0.0.1:{port}"
        environment = {
            **os.environ,
            "EVOPLANE_CONFIG": os.devnull,
            "EVOPLANE_PATHS__VAR": str(settings.var),
            "EVOPLANE_GATEWAY__PORT": str(port),
            "EVOPLANE_WORKER__VLLM_PORT": str(settings.worker.vllm_port),
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "services.gateway"],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.pid = self._process.pid
        if limit is not None:
            self.limit_files(limit)

    def limit_files(self, size: int) -> None:
        """No file may grow beyond this many bytes: the disk is full for whoever needs more."""
        for pid in (self.pid, *self.writers()):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    def writers(self) -> list[int]:
        """The processes that write its records: one, unless it has just died."""
        return [child.pid for child in psutil.Process(self.pid).children()]

    async def ready(self) -> None:
        async with aiohttp.ClientSession() as http, asyncio.timeout(30):
            while True:
                try:
                    async with http.get(f"{self.url}/readyz") as response:
                        if response.status == 200:
                            return
                except aiohttp.ClientError:
                    pass
                await asyncio.sleep(0.05)

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def stop(self) -> int:
        self._process.terminate()
        return self._process.wait(20)


async def running_gateway(
    root: Path, upstream: ScriptedUpstream, processes: list[Process]
) -> tuple[Process, Settings, Any]:
    """A gateway that is ready, its settings, and its tenants' keys."""
    settings, connection, secrets = prepared(root, upstream.port)
    connection.close()
    process = Process(settings, free_port())
    processes.append(process)
    await process.ready()
    return process, settings, secrets


@pytest.fixture
def processes() -> Iterator[list[Process]]:
    started: list[Process] = []
    yield started
    for process in started:
        process.kill()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Traffic:
    """Agents with the real SDK, each in a session of its own; remembers what was acknowledged."""

    def __init__(self, url: str, secrets: dict[str, str]) -> None:
        self.url = url
        self.secrets = secrets
        self.events: set[tuple[str, str]] = set()
        self.signals: set[tuple[str, str]] = set()
        self.errors = 0
        self.stop = False

    async def run(self, agents: int = 6) -> None:
        await asyncio.gather(*(self._agent(number) for number in range(agents)))

    async def _agent(self, number: int) -> None:
        tenant = ("northwind", "lumen")[number % 2]
        client = AsyncOpenAI(base_url=f"{self.url}/v1", api_key=self.secrets[tenant], max_retries=0, timeout=10)
        async with aiohttp.ClientSession(headers={"authorization": f"Bearer {self.secrets[tenant]}"}) as http:
            turn = 0
            while not self.stop:
                turn += 1
                session = f"agent-{number}-{turn // 4}"
                try:
                    await self._turn(client, http, tenant, session, number, turn)
                except (OpenAIError, aiohttp.ClientError, OSError, ValueError):
                    self.errors += 1
                    await asyncio.sleep(0.02)
        await client.close()

    async def _turn(
        self, client: AsyncOpenAI, http: aiohttp.ClientSession, tenant: str, session: str, number: int, turn: int
    ) -> None:
        streaming = turn % 2 == 0
        raw = await client.chat.completions.with_raw_response.create(
            model=MODEL,
            messages=[user(f"agent {number} turn {turn} " + "x" * 300)],
            stream=streaming,
            extra_headers={"x-evoplane-session-id": session},
        )
        if streaming:
            async for _ in raw.parse():
                pass
        self.events.add((tenant, raw.headers["x-evoplane-event-id"]))
        item = {"session_id": session, "name": "helpful", "value": 1}
        async with http.post(f"{self.url}/v1/feedback", json=item) as response:
            if response.status == 202:
                self.signals.update((tenant, id) for id in (await response.json())["ids"])


def lost(settings: Settings, traffic: Traffic) -> list[tuple[str, str]]:
    """What was acknowledged and is not there; every chain must verify."""
    reader = open_reader(settings)
    for tenant in reader.tenants():
        for row in reader.trajectories(tenant):
            assert reader.verify(tenant, row.trajectory_id) == []
    return [(tenant, id) for tenant, id in traffic.events | traffic.signals if reader.record(tenant, id) is None]


async def test_kill_9_in_the_middle_of_traffic_loses_nothing_that_was_acknowledged(
    tmp_path: Path, upstream: ScriptedUpstream, processes: list[Process]
) -> None:
    settings, connection, secrets = prepared(tmp_path, upstream.port)
    connection.close()
    upstream.default = say("one two three", 0.002)
    port = free_port()
    traffic = Traffic(f"http://127.0.0.1:{port}", secrets)
    running = None
    for round in range(3):
        process = Process(settings, port)
        processes.append(process)
        await process.ready()
        running = running or asyncio.create_task(traffic.run())
        before = len(traffic.events)
        async with asyncio.timeout(20):
            while len(traffic.events) < before + 25 + round:
                await asyncio.sleep(0.01)
        process.kill()
    traffic.stop = True
    assert running is not None
    await running
    assert len(traffic.events) >= 75
    assert len(traffic.signals) >= 50
    assert traffic.errors  # the kills were felt
    process = Process(settings, port)
    processes.append(process)
    await process.ready()
    assert lost(settings, traffic) == []
    assert process.stop() == 0


async def test_kill_9_of_the_process_that_writes_loses_nothing_and_clients_only_wait(
    tmp_path: Path, upstream: ScriptedUpstream, processes: list[Process]
) -> None:
    upstream.default = say("one two three", 0.002)
    process, settings, secrets = await running_gateway(tmp_path, upstream, processes)
    traffic = Traffic(process.url, secrets)
    running = asyncio.create_task(traffic.run())
    killed = set[int]()
    async with asyncio.timeout(40):
        while len(killed) < 3:
            before = len(traffic.events)
            while len(traffic.events) < before + 20:
                await asyncio.sleep(0.01)
            (writer,) = process.writers()
            os.kill(writer, signal.SIGKILL)
            killed.add(writer)
    traffic.stop = True
    await running
    assert traffic.errors == 0
    assert len(traffic.events) >= 60
    assert lost(settings, traffic) == []
    assert process.stop() == 0


@pytest.mark.stack
async def test_no_writer_outlives_its_gateway(
    tmp_path: Path, upstream: ScriptedUpstream, processes: list[Process]
) -> None:
    settings, connection, _ = prepared(tmp_path, upstream.port)
    connection.close()
    for end in (Process.kill, Process.stop):
        process = Process(settings, free_port())
        processes.append(process)
        await process.ready()
        (writer,) = process.writers()
        os.kill(writer, signal.SIGTERM)  # a supervisor signals the whole group; the gateway is not done yet
        os.kill(writer, signal.SIGINT)
        await asyncio.sleep(0.1)
        assert process.writers() == [writer]
        end(process)
        async with asyncio.timeout(5):
            while psutil.pid_exists(writer):
                await asyncio.sleep(0.01)


@pytest.mark.stack
async def test_a_session_goes_on_in_its_trajectory_after_kill_9(
    tmp_path: Path, upstream: ScriptedUpstream, processes: list[Process]
) -> None:
    settings, connection, secrets = prepared(tmp_path, upstream.port)
    connection.close()
    port = free_port()
    headers = {"authorization": f"Bearer {secrets['northwind']}"}
    messages = [user("hi")]
    seen = []
    for _ in range(2):
        process = Process(settings, port)
        processes.append(process)
        await process.ready()
        body = {"model": MODEL, "messages": messages}
        async with (
            aiohttp.ClientSession(headers=headers) as http,
            http.post(f"{process.url}/v1/chat/completions", json=body) as response,
        ):
            seen.append(response.headers["x-evoplane-event-id"])
            messages += [(await response.json())["choices"][0]["message"], user("more")]
        process.kill()
    reader = open_reader(settings)
    (row,) = reader.trajectories("northwind")
    records = reader.records("northwind", row.trajectory_id)
    assert [r["kind"] for r in records[1:]] == ["user_message", "llm_call", "user_message", "llm_call"]
    assert records[-1]["o"]["messages"]["prefix"] == seen[0]
    assert records[-1]["step"] == 2


@pytest.mark.stack
async def test_a_full_disk_is_refused_clearly_and_nothing_acknowledged_is_lost(
    tmp_path: Path, upstream: ScriptedUpstream, processes: list[Process]
) -> None:
    process, settings, secrets = await running_gateway(tmp_path, upstream, processes)
    traffic = Traffic(process.url, secrets)
    process.limit_files(400_000)
    running = asyncio.create_task(traffic.run())
    async with aiohttp.ClientSession() as http, asyncio.timeout(30):
        while (await (response := await http.get(f"{process.url}/readyz")).json())["event_log"] != "refusing":
            await asyncio.sleep(0.02)
        assert response.status == 503
        body = json.dumps({"model": MODEL, "messages": [user("hi")]})
        headers = {"authorization": f"Bearer {secrets['northwind']}"}
        refused = None
        while refused is None:
            async with http.post(f"{process.url}/v1/chat/completions", data=body, headers=headers) as answer:
                if answer.status != 200:
                    refused = (answer.status, answer.headers["retry-after"], (await answer.json())["error"]["code"])
        assert refused == (503, "1", "event_log_unavailable")
        process.limit_files(resource.RLIM_INFINITY)
        started = time.monotonic()
        while (await (await http.get(f"{process.url}/readyz")).json())["event_log"] != "ok":
            await asyncio.sleep(0.02)
        assert time.monotonic() - started < 10
    served = len(traffic.events)
    async with asyncio.timeout(10):
        while len(traffic.events) < served + 5:
            await asyncio.sleep(0.02)
    traffic.stop = True
    await running
    assert traffic.errors
    assert process.stop() == 0
    assert lost(settings, traffic) == []


@pytest.mark.stack
def test_a_gateway_that_is_stopped_before_it_listens_for_that_ends(tmp_path: Path) -> None:
    code = (
        "import os, signal\n"
        "from services.gateway import __main__ as gateway\n"
        "gateway.create_app = lambda *_, **__: os.kill(os.getpid(), signal.SIGTERM)\n"
        "gateway.main()\n"
        "raise AssertionError('it went on')\n"
    )
    environment = {**os.environ, "EVOPLANE_CONFIG": os.devnull, "EVOPLANE_PATHS__VAR": str(tmp_path)}
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, timeout=60, capture_output=True)
    assert ended.returncode == 0, ended.stderr.decode()


@pytest.mark.stack
async def test_stopping_lets_the_request_in_flight_finish_and_stores_it(
    tmp_path: Path, upstream: ScriptedUpstream, processes: list[Process]
) -> None:
    upstream.default = say("one two three four", 0.2)
    process, settings, secrets = await running_gateway(tmp_path, upstream, processes)
    client = AsyncOpenAI(base_url=f"{process.url}/v1", api_key=secrets["northwind"], max_retries=0)
    raw = await client.chat.completions.with_raw_response.create(model=MODEL, messages=[user("hi")], stream=True)
    stopping = asyncio.create_task(asyncio.to_thread(process.stop))
    text = "".join([chunk.choices[0].delta.content or "" async for chunk in raw.parse() if chunk.choices])
    await client.close()
    assert text == "one two three four"
    assert await stopping == 0
    reader = open_reader(settings)
    assert reader.record("northwind", raw.headers["x-evoplane-event-id"])["y"]["status"] == "ok"


@pytest.mark.stack
async def test_a_tool_whose_description_was_redacted_is_found_from_every_call_whichever_writer_stored_it(
    tmp_path: Path, upstream: ScriptedUpstream, processes: list[Process]
) -> None:
    """Its context has another id in the log than the gateway made it under."""
    process, settings, secrets = await running_gateway(tmp_path, upstream, processes)
    tool = {"type": "function", "function": {"name": "mail", "description": "to anna@example.com", "parameters": {}}}
    ids = []
    async with aiohttp.ClientSession() as http:
        for turn in range(4):
            if turn == 2:
                os.kill(process.writers()[0], signal.SIGKILL)
            async with http.post(
                f"{process.url}/v1/chat/completions",
                json={"model": MODEL, "messages": [{"role": "user", "content": f"turn {turn}"}], "tools": [tool]},
                headers={"authorization": f"Bearer {secrets['northwind']}", "x-evoplane-session-id": "s"},
            ) as response:
                assert response.status == 200
                ids.append(response.headers["x-evoplane-event-id"])
    reader = open_reader(settings)
    records = [reader.record("northwind", id) for id in ids]
    assert all(record is not None for record in records)
    (context,) = {record["ctx"] for record in records if record is not None}
    (schema,) = reader.tools("northwind", context)
    assert "anna@example.com" not in str(schema)
    assert schema["function"]["name"] == "mail"
