"""The client library: reports everything, in order, and never breaks or slows the agent."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from evoplane import client as module
from evoplane.client import Client

ROOT = Path(__file__).parents[2]


class Gateway:
    """A listener that remembers what it got and answers with the next of its statuses."""

    def __init__(self, port: int = 0) -> None:
        self.got: list[tuple[str, dict[str, Any]]] = []
        self.statuses: list[int] = []
        gateway = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                items = json.loads(self.rfile.read(int(self.headers["content-length"])))
                status = gateway.statuses.pop(0) if gateway.statuses else 202
                if any(item.get("name") == "bad" for item in items):
                    status = 400
                if status == 202:
                    gateway.got += [(self.path, item) for item in items]
                self.send_response(status)
                self.send_header("content-length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    @property
    def events(self) -> list[dict[str, Any]]:
        return [item for path, item in self.got if path == "/v1/events"]


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    listening = Gateway()
    yield listening
    listening.close()


@pytest.fixture
def client(gateway: Gateway) -> Iterator[Client]:
    made = Client(gateway.url, "key")
    yield made
    made.close()


def test_a_step_is_told_with_its_arguments_result_and_time(client: Client, gateway: Gateway) -> None:
    with client.session("s1") as session, session.tool("search", {"q": "x"}, call_id="c1", effect="read") as step:
        step.result = ["found"]
    assert client.flush(5)
    (event,) = gateway.events
    told = {key: event[key] for key in ("kind", "session_id", "name", "arguments", "result", "status", "call_id")}
    assert told == {
        "kind": "tool_call",
        "session_id": "s1",
        "name": "search",
        "arguments": {"q": "x"},
        "result": ["found"],
        "status": "ok",
        "call_id": "c1",
    }
    assert event["effect"] == "read"
    assert event["duration_ms"] >= 0


async def test_decorated_functions_and_coroutines_work_as_before_and_are_told(client: Client, gateway: Gateway) -> None:
    @client.tool
    def add(a: int, b: int = 2) -> int:
        return a + b

    @client.tool("twice", effect="read")
    async def double(a: int) -> int:
        await asyncio.sleep(0)
        return 2 * a

    @client.tool
    def fail() -> None:
        raise ValueError("no")

    async with client.session("s1"):
        assert add(1) == 3
        assert await double(a=4) == 8
        with pytest.raises(ValueError, match="no"):
            fail()
    assert await asyncio.to_thread(client.flush, 5)
    told = [(e["name"], e["arguments"], e.get("result"), e["status"], e.get("error_type")) for e in gateway.events]
    assert told == [
        ("add", {"a": 1}, 3, "ok", None),
        ("twice", {"a": 4}, 8, "ok", None),
        ("fail", {}, None, "error", "ValueError"),
    ]
    assert {event["session_id"] for event in gateway.events} == {"s1"}


async def test_each_task_has_its_own_current_session(client: Client, gateway: Gateway) -> None:
    async def work(name: str) -> None:
        async with client.session(name):
            await asyncio.sleep(0.01)
            with client.retrieval("docs", {"of": name}):
                await asyncio.sleep(0.01)

    await asyncio.gather(*(work(f"s{i}") for i in range(5)))
    assert await asyncio.to_thread(client.flush, 5)
    assert all(event["session_id"] == event["arguments"]["of"] for event in gateway.events)
    assert len(gateway.events) == 5


async def test_a_cancelled_step_is_told_as_cancelled(client: Client, gateway: Gateway) -> None:
    @client.tool
    async def forever() -> None:
        await asyncio.sleep(60)

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(forever(), 0.01)
    assert await asyncio.to_thread(client.flush, 5)
    assert gateway.events[0]["status"] == "cancelled"


def test_every_kind_and_feedback_arrive_in_order(client: Client, gateway: Gateway) -> None:
    session = client.session("s1")
    session.user_message("hi")
    for make in (session.memory_read, session.memory_write, session.file, session.browser, session.code):
        with make("name") as step:
            step.exit_code = 0
    with session.approval("refund") as step:
        step.decision = "approved"
    with session.guardrail("pii"), session.handoff("billing"):
        pass
    session.feedback("resolved", 1)
    session.outcome(reason="solved")
    assert client.flush(5)
    assert [item.get("kind", path) for path, item in gateway.got] == [
        "user_message", "memory_read", "memory_write", "file_op", "browser_op", "code_exec", "approval", "handoff",
        "guardrail", "/v1/feedback", "outcome",
    ]  # fmt: skip


def test_values_that_json_does_not_know_are_told_as_near_as_it_comes(client: Client, gateway: Gateway) -> None:
    class Hostile:
        def __str__(self) -> str:
            raise RuntimeError

    loop: list[Any] = []
    loop.append(loop)
    for value in ({1, 2}, float("nan"), loop, Hostile(), {(1, 2): 3}, b"\xff", "x" * (2 * module._MAX_VALUE_BYTES)):
        with client.tool("t", value) as step:
            step.result = value
    assert client.flush(5)
    assert len(gateway.events) == 7
    assert gateway.events[0]["arguments"] == [1, 2]
    assert gateway.events[-1]["result"]["truncated"] is True
    assert client.dropped == {}


def test_what_is_changed_after_the_step_was_told_is_told_as_it_was(client: Client, gateway: Gateway) -> None:
    arguments = {"q": ["x"]}
    with client.tool("t", arguments):
        arguments["q"].append("y")
    assert client.flush(5)
    assert gateway.events[0]["arguments"] == {"q": ["x"]}


def test_a_gateway_that_is_away_for_a_while_loses_nothing(client: Client, gateway: Gateway) -> None:
    gateway.statuses = [503, 429, 500]
    for index in range(20):
        with client.tool("t", index):
            pass
    assert client.flush(10)
    assert [event["arguments"] for event in gateway.events] == list(range(20))
    assert client.dropped == {}


def test_one_refused_event_does_not_take_the_others_with_it_and_is_reported(client: Client, gateway: Gateway) -> None:
    gateway.statuses = [503]  # so that all of them wait for one batch
    for name in ("good", "bad", "good"):
        with client.session("s1").tool(name):
            pass
    assert client.flush(10)
    assert [event.get("name", event["kind"]) for event in gateway.events] == ["good", "good", "x.client.dropped"]
    assert gateway.events[-1]["arguments"] == {"refused": 1}
    assert client.dropped == {"refused": 1}


def test_an_unreachable_gateway_neither_raises_nor_blocks_and_drops_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_MAX_QUEUE", 10)
    lonely = Client("http://127.0.0.1:9", "key")
    began = time.monotonic()
    for index in range(50):
        with lonely.tool("t", index):
            pass
    assert time.monotonic() - began < 0.5
    lonely.close(timeout=0.2)
    assert sum(lonely.dropped.values()) == 50
    assert lonely.dropped["queue_full"] >= 30


def test_without_url_or_key_it_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EVOPLANE_URL", raising=False)
    silent = Client()
    with silent.tool("t") as step:
        step.result = 1
    assert silent.flush(1)
    assert silent.dropped == {"off": 1}


def test_what_is_queued_when_the_process_ends_is_still_sent(gateway: Gateway) -> None:
    program = "from evoplane.client import Client\nc = Client()\nfor i in range(300):\n    with c.tool('t', i): pass\n"
    gateway.statuses = [503]
    environment = {**os.environ, "EVOPLANE_URL": gateway.url, "EVOPLANE_KEY": "k", "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, timeout=30)
    assert [event["arguments"] for event in gateway.events] == list(range(300))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_sends_its_own_events_and_not_its_parents(gateway: Gateway) -> None:
    program = (
        "import os\n"
        "from evoplane.client import Client\n"
        "c = Client()\n"
        "with c.tool('parent'): pass\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    with c.tool('child'): pass\n"
        "    c.close()\n"
        "    os._exit(0)\n"
        "os.waitpid(pid, 0)\n"
    )
    environment = {**os.environ, "EVOPLANE_URL": gateway.url, "EVOPLANE_KEY": "k", "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, timeout=30)
    assert sorted(event["name"] for event in gateway.events) == ["child", "parent"]


def test_the_file_needs_nothing_but_the_standard_library(tmp_path: Path) -> None:
    (tmp_path / "copied.py").write_text(Path(module.__file__).read_text())
    program = f"""import sys; sys.path.insert(0, {str(tmp_path)!r})
import copied; print(copied.Client('http://127.0.0.1:9', 'k').session('s').headers)"""
    done = subprocess.run([sys.executable, "-IS", "-c", program], capture_output=True, text=True, timeout=30)
    assert done.stdout.strip() == "{'x-evoplane-session-id': 's'}", done.stderr
